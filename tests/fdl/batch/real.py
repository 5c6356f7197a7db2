"""A real SLURM cluster of three nodes on this machine, started by ``scripts/slurm.sh``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.surroundings import CLIENTS, found, of_machine
from tests.waiting import wait_for

SCRIPT = Path(__file__).parents[3] / "scripts" / "slurm.sh"
DAEMONS = ("munged", "slurmctld", "slurmd")
WITH_ACCOUNTING = ("slurmdbd", "mariadbd")


class RealCluster:
    """The cluster, and what a test does to it.

    Attributes:
        folder: All its files.
        variables: The variables of a machine of the cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name in CLIENTS:
            if there := found(name):
                (programs / name).symlink_to(there)
        path = os.pathsep.join(
            [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        self.variables = {"PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *words: str) -> str:
        """What a program of SLURM prints."""
        done = subprocess.run(
            words, env={**os.environ, **self.variables}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, id: str) -> str:
        """The state of a job: ``RUNNING``; with an array, of one of its jobs."""
        said = self.run("scontrol", "show", "job", id)
        return re.findall(r"JobState=(\S+)", said)[0]

    def is_idle(self) -> bool:
        """Whether no job holds a node."""
        return self.run("sinfo", "-h", "-p", "main", "-o", "%T") == "idle"

    def take_all_nodes(self, partition: str) -> str:
        """Submit a job that needs all nodes for a second; its number."""
        words = ("-p", partition, "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
        return self.run("sbatch", "--parsable", *words)

    def lose(self, node: str) -> None:
        """End a node and the steps that run on it, as when its power fails."""
        file = self.folder / "pids" / node
        for pid in (int(file.read_text()), *self._steps(node)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        file.unlink()
        wait_for(lambda: "down" in self.run("sinfo", "-h", "-N", "-n", node, "-o", "%T"), 90)

    def _steps(self, node: str) -> Iterator[int]:
        """What manages the tasks of a node, each in a session of its own."""
        for name in Path("/proc").iterdir():
            if name.name.isdigit() and self._is_step(name, node):
                yield int(name.name)

    def _is_step(self, process: Path, node: str) -> bool:
        try:
            words = (process / "cmdline").read_bytes()
            mine = (process / "environ").read_bytes()
        except OSError:
            return False
        folder = str(self.folder).encode()
        return words.startswith(b"slurmstepd") and folder in mine and node.encode() in mine

    def repair(self, node: str) -> None:
        """Start a node that was lost."""
        self.script("node", node)
        wait_for(self.is_idle, 90)

    def script(self, action: str, *words: str) -> None:
        """Call ``scripts/slurm.sh``."""
        command = ["bash", str(SCRIPT), action, str(self.folder), *words]
        done = subprocess.run(
            command, env={**os.environ, **of_machine()}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def real_cluster(folder: Path, *, accounting: bool) -> Iterator[RealCluster]:
    """Start a cluster below a folder, and stop it at the end."""
    needed = DAEMONS + (WITH_ACCOUNTING if accounting else ())
    if os.geteuid() or not all(map(shutil.which, needed)):
        pytest.skip("needs root and Debian's packages of SLURM")
    cluster = RealCluster(folder)
    cluster.script("start", "--owner", str(os.getpid()), *(["--accounting"] * accounting))
    try:
        yield cluster
    finally:
        cluster.script("stop")
