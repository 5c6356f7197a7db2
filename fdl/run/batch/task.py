"""What a job does on its node: it runs fdl, and is queued again when its time is over.

submitit writes a :class:`Task` to a file and calls it on the node. The file holds a command line
and a folder; variables, also secret ones, travel in the environment as with any ``sbatch``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OF_THE_TASK = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS",
)  # fmt: skip
"""A program takes these for its rank. fdl starts ranks itself, one torchrun on each node."""

_FIRST_PORT = 29400
_PORTS = 2000
_LATER_S = 5.0


class FailedError(Exception):
    """The exit code of a command that failed; fdl reads it from the text."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")


class Task:
    """A command of fdl as a job.

    Args:
        words: The command line after ``fdl``, with its global flags.
        folder: Where it is typed.
        row: Of a run of a sweep, its ``folder`` and what is ``varied``. The commands that it needs
            have run before.
        nodes: How many machines take part.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: str,
        *,
        row: Mapping[str, Any] | None = None,
        nodes: int = 1,
    ) -> None:
        self.words = list(words)
        self.folder = folder
        self.row = row
        self.nodes = nodes
        self._child = 0
        self._ending = False

    def __call__(self) -> None:
        """Run the command.

        Raises:
            FailedError: It ended with another exit code than 0. To SLURM, too, the job has failed.
        """
        from submitit.core.utils import UncompletedJobError

        rank = int(os.environ.get("SLURM_PROCID", "0"))
        self._child = self._start()
        # submitit ignores SIGTERM. SLURM sends it when it takes the node away, with notice, and
        # when the job is canceled. Only SLURM knows which, and queues the job again itself.
        signal.signal(signal.SIGTERM, self._end)
        if rank:
            # submitit tells only the first node. The others stop their ranks with it.
            signal.signal(signal.SIGUSR1, self._end)
        try:
            code = _code(os.waitpid(self._child, 0)[1])
        except UncompletedJobError:
            if self._child:
                raise
            code = 0
        if code and self._ending:
            # Without a result, the job is over only when SLURM says so. A code other than 0 would
            # stop the other machines, which may be writing a checkpoint.
            sys.exit(code if self.nodes == 1 else 0)
        if code == 1 and self.nodes > 1:
            # torchrun, perhaps: another machine has failed, and is about to say with what code.
            time.sleep(_LATER_S)
        if code:
            # The log has the program's own error, so no traceback follows it.
            sys.excepthook = lambda *_: None
            raise FailedError(code)

    def checkpoint(self) -> Any:
        """Tell the program to write a checkpoint, wait, and give the job for the next start.

        submitit calls this in its handler of SIGUSR1. A program that ends with exit code 0 is done.
        """
        from submitit.helpers import DelayedSubmission

        self._pass_on(signal.SIGUSR1)
        try:
            code = _code(os.waitpid(self._child, 0)[1])
        except ChildProcessError:
            code = 0
        if code == 0:
            self._child = 0
            return None
        return DelayedSubmission(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_child": 0, "_ending": False}

    def _end(self, number: int, *_: object) -> None:
        self._ending = True
        self._pass_on(number)

    def _pass_on(self, number: int, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _start(self) -> int:
        words = self.words
        if self.nodes > 1:
            from submitit import JobEnvironment

            port = _FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % _PORTS
            words = joining(words, f"{JobEnvironment().hostnames[0]}:{port}", self.nodes)
        environ = {name: text for name, text in os.environ.items() if name not in _OF_THE_TASK}
        environ["PYTHONUNBUFFERED"] = "1"
        # One machine of several records the run.
        records = int(os.environ.get("SLURM_PROCID", "0")) == 0
        asked = json.dumps({"words": words, "row": self.row, "records": records})
        os.chdir(self.folder)
        # In a group of its own a signal for the task reaches it once, through this process.
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "fdl.cli.batch_node", asked],
            environ,
            setpgroup=0,
            setsigdef=[signal.SIGUSR1, signal.SIGTERM],
        )


def joining(words: Sequence[str], meeting: str, count: int) -> list[str]:
    """The words after ``fdl`` on each of several machines, whose ranks are those of one program.

    Args:
        words: The command line. What stands behind ``--`` is the program's.
        meeting: Where they meet, ``host:port``.
        count: How many machines there are.
    """
    if count == 1:
        return list(words)
    end = list(words).index("--") if "--" in words else len(words)
    return [*words[:end], "--nodes", str(count), "--rdzv", meeting, *words[end:]]


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
