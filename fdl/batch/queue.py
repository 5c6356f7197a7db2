"""Jobs that this project has in the queue of a cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

from fdl.errors import FdlError
from fdl.light_record import Record as _Record
from fdl.own_files import put_own
from fdl.regular import names, subfolders
from fdl.run_directory.json_file import read_json

FOLDER = ".fdl/slurm"
"""Batch files and logs of jobs, in a folder for each call; only their owner may read them."""

_PATIENCE_S = 20


class Record(_Record):
    """What is known about a job when it is submitted.

    Attributes:
        name: The command, or the name of a run of a sweep.
        directory: The run directory that it writes, absolute; empty if it has none.
    """

    name: str
    directory: str = ""


class Queued(_Record):
    """A job in the queue.

    Attributes:
        id: Its number; ``123_4`` in an array.
        state: ``PENDING``, ``RUNNING``, … as ``squeue`` writes it.
        reason: Why it waits, or the nodes on which it runs.
        record: What was submitted.
    """

    id: str
    state: str
    reason: str
    record: Record

    def as_json(self) -> dict[str, str]:
        """The job for ``--json``."""
        kept = {"name": self.record.name, "directory": self.record.directory}
        return {"id": self.id, "state": self.state, "reason": self.reason, **kept}


def new_folder(root: str) -> Path:
    """A new folder for the jobs of one call.

    submitit loads the results of jobs as pickles, which run code. So no file may be there that
    somebody else has brought with the project.

    Raises:
        FdlError: It cannot be made.
    """
    from fdl.manifest.cache import make_folder
    from fdl.own_files import inside

    name = now = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    attempt = 1
    try:
        above = Path(inside(root, FOLDER))
        make_folder(str(above.parent))
        above.mkdir(exist_ok=True)
        # Batch files show command lines, and what lies here is run.
        above.chmod(0o700)
        while os.path.lexists(above / name):
            attempt += 1
            name = f"{now}-{attempt}"
        (above / name).mkdir(mode=0o700)
    except OSError as problem:
        raise FdlError(
            f"the folder for jobs cannot be made: {problem.filename}: {problem.strerror}",
            hint=f"check {FOLDER} in {root}",
        ) from None
    return above / name


def remember(folder: Path, id: str, record: Record) -> None:
    """Write what a job is, beside its batch file."""
    content = {"name": record.name, "directory": record.directory}
    put_own(folder, folder / f"{id}.json", (json.dumps(content) + "\n").encode())


def queued(root: str) -> list[Queued]:
    """The jobs of a project that wait or run; empty where there is no cluster."""
    folder = Path(root, FOLDER)
    ids = {
        name.removesuffix(".json"): folder / call / name
        for call in subfolders(folder)
        for name in names(folder / call)
        if name.endswith(".json")
    }
    if not ids or shutil.which("squeue") is None:
        return []
    # -r writes one line for each job of an array.
    command = ["squeue", "--me", "-r", "--noheader", "--format=%i|%T|%R"]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.splitlines():
        id, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        if id in ids:
            kept = read_json(ids[id]) or {}
            record = Record(str(kept.get("name", "")), str(kept.get("directory", "")))
            found.append(Queued(id, state, reason.strip("()"), record))
    return found
