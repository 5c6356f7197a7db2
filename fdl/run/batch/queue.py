"""Jobs that this project has in the queue of a cluster, and what the cluster says about them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from fdl.base.errors import FdlError
from fdl.base.files import names, new_folder, subfolders
from fdl.base.light_record import Record
from fdl.base.own_files import inside, put_own, read_json
from fdl.base.run_record import FOLDER_NAME
from fdl.manifest.cache import make_folder

FOLDER = ".fdl/slurm"
"""Batch files and logs of jobs, in a folder for each call; only their owner may read them."""

_PATIENCE_S = 20
_OFTEN_S, _SELDOM_S = 2.0, 30.0
"""How long it takes at least, and at most, to ask the cluster again."""

OVER = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
))  # fmt: skip
"""States of a job that does not run again. A job that is queued again is ``PENDING``."""

GONE = "no longer in the queue"
"""Instead of a state: the cluster has forgotten the job."""


class Queued(Record):
    """A job in the queue.

    Attributes:
        id: Its number; ``123_4`` in an array.
        state: ``PENDING``, ``RUNNING``, … as ``squeue`` writes it.
        reason: Why it waits, or the nodes on which it runs.
        name: The command, or the name of a run of a sweep.
        directory: The run directory that it writes, absolute; empty if it has none.
    """

    id: str
    state: str
    reason: str
    name: str
    directory: str


def folder_of_call(root: str) -> Path:
    """A new folder for the jobs of one call.

    submitit loads the results of jobs as pickles, which run code. So no file may be there that
    somebody else has brought with the project.

    Raises:
        FdlError: It cannot be made.
    """
    try:
        above = Path(inside(root, FOLDER))
        make_folder(str(above.parent))
        above.mkdir(exist_ok=True)
        # Batch files show command lines, and what lies here is run.
        above.chmod(0o700)
        return Path(new_folder(above, time.strftime(FOLDER_NAME), 0o700))
    except OSError as problem:
        raise FdlError(
            f"the folder for jobs cannot be made: {problem.filename}: {problem.strerror}",
            hint=f"check {FOLDER} in {root}",
        ) from None


def remember(folder: Path, id: str, name: str, directory: str) -> None:
    """Write what a job is, beside its batch file."""
    content = {"name": name, "directory": directory}
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
    found = []
    for id, state, reason in _squeue("--me", "--format=%i|%T|%R") or ():
        if id in ids:
            kept = read_json(ids[id]) or {}
            said = (str(kept.get(key, "")) for key in ("name", "directory"))
            found.append(Queued(id, state, reason.strip("()"), *said))
    return found


class States:
    """The states of jobs, asked for more and more seldom.

    ``squeue`` knows a job until some time after its end (``MinJobAge``). Then ``sacct`` knows it,
    on a cluster with accounting. That one alone would not do: it is told later, and says
    ``PREEMPTED`` of a job that is queued again.

    Args:
        ids: Their numbers.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = set(ids)
        self._began = self._asked = time.monotonic()

    def asked(self, *, soon: bool) -> dict[str, tuple[str, str]]:
        """The state and its reason of each job; nothing if it is too early to ask again.

        Args:
            soon: Whether a job is about to end.
        """
        now = time.monotonic()
        pause = _OFTEN_S if soon else min(_SELDOM_S, max(_OFTEN_S, (now - self._began) / 10))
        if now - self._asked < pause:
            return {}
        self._asked = now
        numbers = ",".join(sorted({id.partition("_")[0] for id in self._ids}))
        known = _squeue(f"--jobs={numbers}", "--states=all", "--format=%i|%T|%r")
        if known is None:
            return {}
        found = {id: (state, reason) for id, state, reason in known if id in self._ids}
        if forgotten := self._ids - found.keys():
            recorded = _sacct(numbers)
            for id in forgotten:
                state = recorded.get(id, "")
                found[id] = (state if state in OVER else GONE, "")
        self._ids -= {id for id, (state, _) in found.items() if state in (*OVER, GONE)}
        return found


def _squeue(*words: str) -> list[list[str]] | None:
    """What squeue says, a job in each line; None if it does not answer."""
    # --array writes one line for each job of an array.
    done = _run("squeue", "--array", "--noheader", *words)
    if done is None or (done.returncode and "Invalid job id" not in done.stderr):
        return None
    lines = [line.strip().split("|", 2) for line in done.stdout.splitlines()]
    return [[_job(line[0]), *line[1:]] for line in lines if len(line) > 2]


def _job(id: str) -> str:
    """The number of a job; that of its first component, if its machines differ: ``7+0`` is 7."""
    return id.removesuffix("+0")


def _sacct(numbers: str) -> dict[str, str]:
    done = _run("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", numbers)
    lines = [] if done is None else done.stdout.splitlines()
    # "CANCELLED by 1000" names who did it.
    pairs = [line.partition("|") for line in lines]
    return {_job(id): state.split(" ")[0] for id, _, state in pairs}


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
