"""Jobs that this project has in the queue of a cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from fdl.light_record import Record as _Record
from fdl.regular import names
from fdl.rewrite import put
from fdl.run_directory.json_file import read_json

FOLDER = ".fdl/slurm"
"""Batch files and logs of jobs, below the project; only their owner may read them."""

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


def remember(folder: Path, id: str, record: Record) -> None:
    """Write what a job is, beside its batch file."""
    content = {"name": record.name, "directory": record.directory}
    put(folder / f"{id}.json", (json.dumps(content) + "\n").encode())


def queued(root: str) -> list[Queued]:
    """The jobs of a project that wait or run; empty where there is no cluster."""
    folder = Path(root, FOLDER)
    ids = {name.removesuffix(".json") for name in names(folder) if name.endswith(".json")}
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
            kept = read_json(folder / f"{id}.json") or {}
            record = Record(str(kept.get("name", "")), str(kept.get("directory", "")))
            found.append(Queued(id, state, reason.strip("()"), record))
    return found
