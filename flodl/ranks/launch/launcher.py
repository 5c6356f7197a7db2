"""Read what a launcher passed to this process: torchrun, SLURM, Kubernetes, or none.

Two files tell the launcher whether the training of this rank has begun. A rank ends when its
launcher is gone: a killed launcher cannot end its ranks.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fdl.base.run_record import status
from fdl.base.slurm_task import is_one_of_several
from flodl import log
from flodl.errors import DistributedError

_DEFAULT_PORT = 29500

LAUNCHED_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Set in the ranks of torchrun, and in those that a program starts itself."""

JOIN_VARIABLE = "FLODL_JOIN"
"""Address of a training that this process joins: ``http://HOST:PORT/#TOKEN``."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """The facts that a launcher passed to one of its processes."""

    rank: int
    world_size: int
    local_rank: int = 0
    """Number of this process on its host."""
    local_world_size: int = 1
    """Processes on this host."""
    node: int
    """Number of this host."""
    run_id: str = ""
    """Name of the launch, the same on all ranks and after a restart; empty without a name."""
    restart: int = 0
    """How often the launcher has restarted all ranks."""
    restarts_left: int = 0
    """How often it will still do so after a failure, as far as it says."""
    source: str
    """Name of the launcher, for messages."""
    address: str
    """Host of rank 0."""
    port: int


_JOINS = Launched(rank=1, world_size=2, node=1, source=JOIN_VARIABLE, address="", port=0)
"""A rank that joins later: its number is not known before it meets the others."""


def detect(environ: Mapping[str, str]) -> Launched | None:
    """Read the launcher's variables from the environment; return None if there is no launcher.

    * torchrun, the elastic launcher and Kubeflow's PyTorchJob: ``RANK``, ``WORLD_SIZE``,
      ``MASTER_ADDR``, ``MASTER_PORT`` and, except in the last, ``LOCAL_RANK``.
    * ``srun`` of SLURM: ``SLURM_PROCID``, ``SLURM_NTASKS``, ``SLURM_LOCALID``. Rank 0 is on the
      first host of the node list, and the port is computed from the job. ``MASTER_ADDR`` and
      ``MASTER_PORT`` override both. A shell inside a job, its batch script, and a job of one task
      do not count as a launch.
    * ``FLODL_JOIN``: this process joins a training whose ranks come and go. It is none of those
      that write files or print.
    * an indexed Job of Kubernetes: ``JOB_COMPLETION_INDEX`` with ``WORLD_SIZE`` and
      ``MASTER_ADDR``. Without both of them it does not count as a launch.

    Raises:
        DistributedError: Variables are missing, malformed or contradict each other.
    """
    if "RANK" in environ:
        return _torchrun(_Variables(environ, "torchrun"))
    if environ.get(JOIN_VARIABLE):
        return _JOINS
    if is_one_of_several(environ):
        return _slurm(_Variables(environ, "SLURM"))
    if "JOB_COMPLETION_INDEX" in environ:
        if "WORLD_SIZE" not in environ and "MASTER_ADDR" not in environ:
            return None
        return _indexed_job(_Variables(environ, "Kubernetes"))
    if "WORLD_SIZE" in environ:
        raise DistributedError(
            f"WORLD_SIZE={environ['WORLD_SIZE']} is set and RANK is not: set both, or neither "
            "(torchrun sets them)"
        )
    return None


def first_host(nodes: str) -> str:
    """Return the first host of a SLURM node list: ``gpu03`` for ``gpu[03-05,7],login``."""
    host, rest = "", nodes.strip()
    while rest and rest[0] not in ", ":
        if rest[0] == "[":
            inside, _, rest = rest[1:].partition("]")
            host += inside.split(",")[0].split("-")[0]
        else:
            host, rest = host + rest[0], rest[1:]
    return host


@final
class _Variables:
    """Reads the variables of one launcher and raises errors that name it."""

    def __init__(self, environ: Mapping[str, str], source: str) -> None:
        self.environ = environ
        self.source = source

    def text(self, name: str) -> str:
        """Return a variable that must be set."""
        value = self.environ.get(name, "")
        if not value:
            raise DistributedError(
                f"{name} is missing in the environment of this {self.source} process: set it, or "
                "leave the start of the ranks to torchrun or fdl"
            )
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Return a variable that must be a whole number."""
        if default is not None and not self.environ.get(name):
            return default
        value = self.text(name)
        if not value.isdecimal():
            raise DistributedError(f"{name}={value!r}: it must be a whole number")
        return int(value)

    def index(self, name: str, of: str, count: int, default: int | None = None) -> int:
        """Return a variable that must be below the value of another one."""
        value = self.number(name, default)
        if value >= count:
            raise DistributedError(
                f"{name}={value} and {of}={count} contradict each other: {name} counts from 0"
            )
        return value


def _torchrun(given: _Variables) -> Launched:
    world = _world(given, "WORLD_SIZE")
    rank = given.index("RANK", "WORLD_SIZE", world)
    local_world = given.number("LOCAL_WORLD_SIZE", 1)
    if local_world > world:
        raise DistributedError(
            f"LOCAL_WORLD_SIZE={local_world} and WORLD_SIZE={world} contradict each other"
        )
    # Without LOCAL_WORLD_SIZE, LOCAL_RANK cannot contradict it.
    local_count = local_world if "LOCAL_WORLD_SIZE" in given.environ else world
    name = given.environ.get(LAUNCHED_VARIABLE, "")
    alone = world == 1
    restart = given.number("TORCHELASTIC_RESTART_COUNT", 0)
    return Launched(
        rank=rank,
        world_size=world,
        local_rank=given.index("LOCAL_RANK", "LOCAL_WORLD_SIZE", local_count, 0),
        local_world_size=local_world,
        node=given.number("GROUP_RANK", rank // local_world),
        # Without --rdzv-id the launcher calls every run "none".
        run_id="" if name == "none" else name,
        restart=restart,
        restarts_left=max(0, given.number("TORCHELASTIC_MAX_RESTARTS", 0) - restart),
        source="torchrun",
        address=given.environ.get("MASTER_ADDR", "") if alone else given.text("MASTER_ADDR"),
        port=given.number("MASTER_PORT", _DEFAULT_PORT if alone else None),
    )


def _slurm(given: _Variables) -> Launched:
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in given.environ else "SLURM_NTASKS"
    world = _world(given, size)
    if given.number("WORLD_SIZE", world) != world:
        raise DistributedError(
            f"WORLD_SIZE={given.environ['WORLD_SIZE']} and {size}={world} contradict each other: "
            "leave WORLD_SIZE out, srun knows it"
        )
    local_rank = given.number("SLURM_LOCALID")
    job, step = given.number("SLURM_JOB_ID", 0), given.number("SLURM_STEP_ID", 0)
    lists = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = next((given.environ[name] for name in lists if given.environ.get(name)), "")
    address = given.environ.get("MASTER_ADDR") or first_host(nodes)
    if not address:
        raise DistributedError(
            "SLURM_NODELIST is missing in the environment of this SLURM process: set it, or "
            "MASTER_ADDR, so that the ranks find each other"
        )
    return Launched(
        rank=given.index("SLURM_PROCID", size, world),
        world_size=world,
        local_rank=local_rank,
        local_world_size=_tasks_here(given, local_rank),
        node=given.number("SLURM_NODEID", 0),
        run_id=f"slurm-{job}.{step}" if job else "",
        restart=given.number("SLURM_RESTART_COUNT", 0),
        source="SLURM",
        address=address,
        # Below the ports that systems assign, and different from those of adjacent jobs.
        port=given.number("MASTER_PORT", 15000 + (job + 997 * step) % 15000),
    )


def _tasks_here(given: _Variables, local_rank: int) -> int:
    """Return the number of tasks on this host: ``2(x3),1`` means 2, 2, 2 and 1."""
    text = given.environ.get("SLURM_STEP_TASKS_PER_NODE") or given.environ.get(
        "SLURM_TASKS_PER_NODE", ""
    )
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        if count.isdecimal():
            counts += [int(count)] * (int(times[:-1]) if times[:-1].isdecimal() else 1)
    node = given.number("SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else local_rank + 1


def _indexed_job(given: _Variables) -> Launched:
    world = _world(given, "WORLD_SIZE")
    rank = given.index("JOB_COMPLETION_INDEX", "WORLD_SIZE", world)
    return Launched(
        rank=rank,
        world_size=world,
        node=rank,
        source="Kubernetes",
        address=given.text("MASTER_ADDR"),
        port=given.number("MASTER_PORT", _DEFAULT_PORT),
    )


def _world(given: _Variables, name: str) -> int:
    world = given.number(name)
    if world < 1:
        raise DistributedError(f"{name}={world}: there is at least one process")
    return world


BEGUN = "training-has-begun"
"""File beside the error file of a rank, once the rank has trained a step or has a checkpoint.

Only then the ranks are started again after a failure: a program that fails at its start would fail
in the same way again.
"""

WATCHED = "training-is-watched"
"""File beside the error file of a rank that will say when it has begun.

Without it, fdl takes a program that has run for a minute for one that has begun.
"""


def mark_begun(environ: Mapping[str, str] = os.environ) -> None:
    """Record that the training has begun; does nothing without a launcher that gives a file."""
    _mark(environ.get("TORCHELASTIC_ERROR_FILE"), BEGUN)


def mark_watched(environ: Mapping[str, str] = os.environ) -> None:
    """Record that this program will call :func:`mark_begun` after its first step."""
    _mark(environ.get("TORCHELASTIC_ERROR_FILE"), WATCHED)


def has_begun(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this rank has begun."""
    file = environ.get("TORCHELASTIC_ERROR_FILE")
    return file is not None and Path(file).with_name(BEGUN).exists()


def any_begun(folder: Path) -> bool:
    """Whether a rank has begun, according to the files in the folder of a launch."""
    return any(folder.rglob(BEGUN))


@functools.cache  # it is called after every step
def _mark(file: str | None, name: str) -> None:
    if file is not None:
        # A launcher that keeps no files names the null device.
        with contextlib.suppress(OSError):
            Path(file).with_name(name).touch()


FDL_VARIABLE = "FDL_PID"
"""Process id of the ``fdl`` that started torchrun."""

_LOOK = 0.5
"""Seconds between two checks of the launcher."""

_GRACE = 8.0
"""Seconds a rank has to stop at the next exchange, with a checkpoint, before it is killed."""

_watched = False


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """End this process and its loader processes soon after its launcher has ended.

    A thread checks twice a second whether this process still has its original parent. On Linux it
    also checks whether torchrun still has the ``fdl`` that started it. Once one of them is gone,
    the rank gets SIGTERM, which makes it write a checkpoint and stop. Eight seconds later the rank
    ends in any case. In the first window the ranks need the store of torchrun; if torchrun is
    killed then, they end without a checkpoint.

    Does nothing on Windows, when called again, or if the launcher does not stay as long as its
    ranks (batch systems end the ranks themselves).

    Args:
        environ: Environment variables of this process.
    """
    global _watched
    if _watched or os.name != "posix" or LAUNCHED_VARIABLE not in environ:
        return
    _watched = True
    watch = _Watch(environ)
    threading.Thread(target=watch.run, name="flodl-lifeline", daemon=True).start()


@final
class _Watch:
    """Watches the processes that started this rank."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._parent = os.getppid()
        self._tells = environ.get("LOCAL_RANK") == "0"
        self._above = _line_to(environ.get(FDL_VARIABLE, ""), self._parent)

    def run(self) -> None:
        """Wait until a launcher is gone, then end this process."""
        while (gone := self._gone()) is None:
            time.sleep(_LOOK)
        with contextlib.suppress(OSError, ValueError):
            log.warning(f"process {gone}, which started this rank, is gone: the rank ends")
        self._ask(gone)
        time.sleep(_GRACE)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)

    def _gone(self) -> int | None:
        """Return the process id of a launcher that has ended; None while all run."""
        if os.getppid() != self._parent:
            return self._parent
        return next((above for own, above in self._above if _parent_of(own) != above), None)

    def _ask(self, gone: int) -> None:
        """Ask for an orderly end, once: a second request would end the rank immediately."""
        if gone != self._parent:
            # torchrun still runs and would restart ranks that end, so torchrun gets the signal.
            if self._tells:
                with contextlib.suppress(OSError):
                    os.kill(self._parent, signal.SIGTERM)
        elif sys.platform != "linux" or multiprocessing.parent_process() is None:
            # On Linux, a process that torch has spawned gets SIGINT from the kernel instead.
            os.kill(os.getpid(), signal.SIGTERM)


def _line_to(first: str, parent: int) -> list[tuple[int, int]]:
    """Return every process from ``parent`` up to ``first`` with its own parent.

    Empty if ``first`` is not an ancestor: it belongs to another launch, or the system does not
    report parents.
    """
    line: list[tuple[int, int]] = []
    while first and str(parent) != first:
        above = _parent_of(parent)
        if above is None or above <= 1:
            return []
        line.append((parent, above))
        parent = above
    return line


def _parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone or the system does not report it."""
    fields = status(pid)
    return int(fields[1]) if fields else None
