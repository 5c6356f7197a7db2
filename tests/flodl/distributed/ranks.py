"""Ranks for tests: processes that wait, and are the ranks of one group after the other.

Starting a process that imports torch takes seconds, joining a group of those that wait less than
a tenth of one. A process that failed or was killed is never used again.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing import connection, spawn
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from flodl.ranks.group import ProcessGroups
from tests import fork_server

# Gloo would look up the name of the machine, and use the address it finds.
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_GRACE = 3.0
"""Seconds that the other ranks have to end once one has failed: those that wait for it never do."""


class RankError(AssertionError):
    """A rank raised, ended or did not end in time; carries its traceback."""


@dataclass(frozen=True)
class _Job:
    """What one rank has to do."""

    rank: int
    world_size: int
    port: int
    call: int
    device: str
    sync_timeout: timedelta
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    environment: dict[str, str]
    folder: str


@contextmanager
def _forks_from_torch() -> Iterator[None]:
    """Let the process that forks the ranks be itself a fork that has imported torch."""
    usual = spawn.get_executable()
    spawn.set_executable(fork_server.torch_program(os.environ))
    try:
        yield
    finally:
        spawn.set_executable(usual)


class _Worker:
    """A process that waits for jobs."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pytest", "torch._dynamo", "flodl.train.runner"])
        self.answers, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        with _forks_from_torch():
            self.process.start()
        theirs.close()

    def close(self) -> None:
        """End it, whatever it does."""
        self.answers.close()
        self.process.kill()
        self.process.join()


class Ranks:
    """Runs a function on several ranks: ``results = ranks(3, function, argument)``.

    The function belongs to a module, so that every rank finds it by name. It is called as
    ``function(group, *arguments)`` with a :class:`~flodl.ranks.group.ProcessGroups` of its
    own over Gloo, the environment and working directory of the caller, seed 0 and warnings as
    errors.
    """

    def __init__(self) -> None:
        # A process keeps its number: torch keeps by mesh which part of a tensor is its own.
        self._idle: dict[int, _Worker] = {}
        self._calls = 0
        # One for all calls: now and then a client that connects holds its group up for seconds.
        self._store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        # Before multiprocessing waits for its children.
        atexit.register(self.close)

    def __call__(
        self,
        world_size: int,
        function: Callable[..., Any],
        *arguments: object,
        device: str = "cpu",
        limit: float = 60.0,
        sync_timeout: float = 30.0,
    ) -> list[Any]:
        """Return what the function returns on each rank.

        Args:
            world_size: Number of ranks.
            function: Of a module.
            arguments: Pickled for each rank.
            device: Of every rank; ``{rank}`` in it stands for its number.
            limit: Seconds until all are killed.
            sync_timeout: Seconds an exchange of the group may take.

        Raises:
            RankError: With the traceback of the rank that failed first.
        """
        self._calls += 1
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": _LOOPBACK}
        team = [self._idle.pop(rank, None) or _Worker() for rank in range(world_size)]
        try:
            for rank, worker in enumerate(team):
                job = _Job(
                    rank=rank,
                    world_size=world_size,
                    port=self._store.port,
                    call=self._calls,
                    device=device,
                    sync_timeout=timedelta(seconds=sync_timeout),
                    function=function,
                    arguments=arguments,
                    environment=environment,
                    folder=str(Path.cwd()),
                )
                worker.answers.send_bytes(pickle.dumps(job))
            results = _results(team, limit)
        except BaseException:
            for worker in team:
                worker.close()
            raise
        self._idle |= enumerate(team)
        return results

    def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._idle.popitem()[1].close()


def _results(team: list[_Worker], limit: float) -> list[Any]:
    """Wait for all; of several failures those come first that the others follow from."""
    results: list[Any] = [None] * len(team)
    waiting = {worker.answers: rank for rank, worker in enumerate(team)}
    until = time.monotonic() + limit
    ended, raised = [], []
    while waiting:
        ready = connection.wait(list(waiting), max(0.0, until - time.monotonic()))
        if not ready:
            raised.append(f"rank(s) {sorted(waiting.values())} did not end within {limit:g} s")
            break
        for answers in ready:
            rank = waiting.pop(answers)
            named = f"rank {rank} of {len(team)}"
            try:
                good, results[rank] = pickle.loads(answers.recv_bytes())
                if not good:
                    raised.append(f"{named}: {results[rank]}")
            except (EOFError, ConnectionError):
                team[rank].process.join()
                ended.append(f"{named}: {_ending(team[rank].process.exitcode)}")
            if ended or raised:
                until = min(until, time.monotonic() + _GRACE)
    if ended or raised:
        raise RankError("\n".join([*ended, *raised]))
    return results


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _serve(jobs: Any) -> None:
    """Do job after job until nobody is left to send one."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    gc.freeze()
    while True:
        try:
            data = jobs.recv_bytes()
        except EOFError:
            return
        try:
            answer = pickle.dumps((True, _do(pickle.loads(data), jobs)))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        jobs.send_bytes(answer)
        # Cycles keep the groups that were closed. Their threads look for messages a hundred times
        # a second, while the process waits for other tests.
        gc.collect()


@cache
def _store_at(port: int) -> distributed.TCPStore:
    return distributed.TCPStore("127.0.0.1", port, is_master=False)


def _do(job: _Job, answers: Any) -> Any:
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    torch.manual_seed(0)
    group = ProcessGroups(
        rank=job.rank,
        world_size=job.world_size,
        local_rank=job.rank,
        device=torch.device(job.device.format(rank=job.rank)),
        sync_timeout=job.sync_timeout,
        store=distributed.PrefixStore(str(job.call), _store_at(job.port)),
    )
    try:
        return job.function(group, *job.arguments)
    except BaseException:
        # Before the connections close: that fails the other ranks, and their failure is no news.
        answers.send_bytes(pickle.dumps((False, traceback.format_exc())))
        raise
    finally:
        group.close()
