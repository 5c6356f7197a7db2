"""Trainings that torchrun launches, watched from the outside by what they write into a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests import fork_server, typed

PROGRAM = Path(__file__).parent / "programs" / "train.py"
ROOT = PROGRAM.parents[4]


class Job:
    """One launcher with its ranks.

    Args:
        folder: Where the ranks write.
        options: For the program.
        torchrun: Arguments of the launcher.
        within: Words before the command: what it is to run in.
        environ: What its environment has beside that of the tests.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, Any],
        torchrun: Sequence[str],
        *,
        within: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        options = {"n": 640, "epochs": 5, "folder": str(folder), **options}
        self._options = folder / "options.json"
        self._options.write_text(json.dumps(options))
        self._log = (folder / f"log-{len(list(folder.iterdir()))}").open("wb")
        told = {"OMP_NUM_THREADS": "1", **(environ or {})}
        python = sys.executable
        if not within:
            python = fork_server.torch_program({**os.environ, **told})
            told["PYTHON_EXEC"] = python
        else:
            told["PYTHONPATH"] = str(ROOT)
        command = [*within, python, "-m", "torch.distributed.run", *torchrun, str(PROGRAM)]
        self.process = subprocess.Popen(
            [*command, str(self._options)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **told},
            start_new_session=True,
        )
        words = ("-m", "torch.distributed.run", *torchrun, str(PROGRAM))
        typed.note(words, folder, os.environ, lambda: (self.process.poll(), self.output()))

    def wait(self, seconds: float = 90.0) -> int:
        return self.process.wait(timeout=seconds)

    def wait_for(self, what: str, there: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait until something is there, and return it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := there():
                return found
            assert self.process.poll() is None, self.output()
            time.sleep(0.01)
        raise AssertionError(f"{what} did not come in {seconds:g} s\n{self.output()}")

    def rank_in_epoch(self, rank: int, epoch: int) -> int:
        """Wait until a rank trains an epoch, and return its process id."""
        self.wait_for(f"epoch {epoch}", lambda: self.epoch(rank) >= epoch)
        return self.pid(rank, 0)

    def epoch(self, rank: int) -> int:
        return int(self.read(f"epoch-{rank}") or -1)

    def pid(self, rank: int, restart: int) -> int:
        return int(self.wait_for("a process id", lambda: self.read(f"pid-{rank}-{restart}")))

    def read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return ""

    def starts(self, world: int) -> list[dict[str, Any]]:
        """Every start of a rank, in groups of this size: its host and what was there already."""
        starts = map(json.loads, self.read("starts").splitlines())
        return [start for start in starts if start["world"] == world]

    def result(self, rank: int) -> Any:
        return json.loads(self.read(f"result-{rank}.json"))

    @property
    def run(self) -> Path:
        """The only run directory."""
        (only,) = (self.folder / "runs").iterdir()
        return only

    def output(self) -> str:
        # By its name: the launcher writes where our own descriptor points to.
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Let the launcher and its ranks vanish all at once, as when a host loses its power."""
        launcher = psutil.Process(self.process.pid)
        launcher.suspend()  # else it could start new ones meanwhile
        for process in [*launcher.children(recursive=True), launcher]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def end(self) -> None:
        """Leave no process behind."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()


def runs(pid: int) -> bool:
    """Whether a process is there, and not merely waiting for its parent to hear of its end."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def job(folder: Path, options: Mapping[str, Any], *torchrun: str, **how: Any) -> Iterator[Job]:
    """Launch a training of two ranks, or as ``torchrun`` says."""
    started = Job(folder, options, torchrun or ("--standalone", "--nproc-per-node=2"), **how)
    try:
        yield started
    finally:
        started.end()
