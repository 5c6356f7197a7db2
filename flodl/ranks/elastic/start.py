"""Start ranks that may end one by one, each through torch's launcher of processes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    ProcessFailure,
    RunProcsResult,
    SignalException,
    start_processes,
)

from fdl.base.files import staging
from fdl.base.signals import handled
from flodl import log
from flodl.ranks.elastic.meeting_place import MeetingPlace, lighthouse
from flodl.ranks.launch.launcher import JOIN_VARIABLE, LAUNCHED_VARIABLE, any_begun
from flodl.ranks.launch.start_ranks import (
    MONITOR_SECONDS,
    SIGNALS,
    LaunchError,
    Start,
    cause_of,
    own_signals,
    quiet_torch,
    run_rank,
    task_of,
    was_asked_to_end,
)

_ENDING_SECONDS = 30.0
"""After a signal, a rank has so long to write its checkpoint, as torch's launcher has it."""


@final
@dataclass(frozen=True, slots=True)
class ElasticLaunch:
    """Starts ranks of which each may end while the others train on.

    Attributes:
        min_ranks: The fewest ranks that train; fewer wait for others to join.
    """

    min_ranks: int

    def __call__(
        self,
        start: Start,
        function: Callable[..., Any],
        args: Sequence[object],
        ranks: int,
        run_id: str,
    ) -> dict[int, Any]:
        """Call a function in new processes; return its results by rank, without lost ranks.

        Raises:
            LaunchError: One failed before its first step, or all that could write the files did.
        """
        server, place = lighthouse(os.environ, self.min_ranks)
        log.msg(f"  other hosts join with {JOIN_VARIABLE}={place.text}")
        task = task_of(function, args)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        asked: list[int] = []
        with (
            staging(tempfile.gettempdir(), mode=0o700) as folder,
            quiet_torch(),
            own_signals(),
            handled(SIGNALS, asked.append),
        ):
            running: dict[int, PContext] = {}
            try:
                for rank in range(ranks):
                    environ = _environment(place, rank, ranks, store.port, run_id)
                    running[rank] = _started((start, task), environ, folder)
                return _wait(running, folder, asked)
            finally:
                _end(running, asked[0] if asked else signal.SIGTERM)
                server.shutdown()


def _environment(
    place: MeetingPlace, rank: int, ranks: int, port: int, run_id: str
) -> dict[str, str]:
    """Return the variables from which a rank knows the others, as torchrun sets them."""
    return {
        JOIN_VARIABLE: place.text,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        LAUNCHED_VARIABLE: run_id,
    }


def _started(args: tuple[Any, ...], environ: dict[str, str], folder: Path) -> PContext:
    own = folder / environ["RANK"]
    own.mkdir()
    # In the main thread, torch would let each signal raise an exception, also a second one that
    # comes while the ranks are ended.
    with ThreadPoolExecutor(1) as starter:
        return starter.submit(
            start_processes,
            name="rank",
            entrypoint=run_rank,
            args={0: args},
            envs={0: environ},
            logs_specs=DefaultLogsSpecs(log_dir=str(own)),
            start_method="spawn",
        ).result()


def _end(running: dict[int, PContext], number: int) -> None:
    """Pass a signal on to all ranks, and kill those that it does not end."""
    for one in running.values():
        for process in one.pids().values():
            with suppress(ProcessLookupError):
                os.kill(process, number)
    until = time.monotonic() + _ENDING_SECONDS
    while running and time.monotonic() < until:
        _ended(running)
        time.sleep(MONITOR_SECONDS)
    for one in running.values():
        one.close(signal.SIGKILL)


def _ended(running: dict[int, PContext]) -> dict[int, RunProcsResult]:
    """Remove the ranks that have ended from ``running``; return how they did."""
    results = {rank: process.wait(timeout=0) for rank, process in running.items()}
    ended = {rank: result for rank, result in results.items() if result is not None}
    for rank in ended:
        del running[rank]
    return ended


def _wait(running: dict[int, PContext], folder: Path, asked: Sequence[int]) -> dict[int, Any]:
    """Wait until all ranks have ended; remove them from ``running``.

    Raises:
        SignalException: A signal asked this process to end.
        LaunchError: A rank failed before the first step, or all that could write files did.
    """
    results: dict[int, Any] = {}
    lost: dict[int, ProcessFailure] = {}
    while running:
        if asked:
            raise SignalException("asked to end", signal.Signals(asked[0]))
        for rank, ended in _ended(running).items():
            if not ended.failures:
                results[rank] = ended.return_values[0]
                continue
            lost[rank] = ended.failures[0]
            if not any_begun(folder):
                raise _failure(rank, lost[rank], folder)
            if running and not results and not was_asked_to_end(lost[rank]):
                told = cause_of(lost[rank])[0]
                log.warning(f"rank {rank} ended with {told}; the others train on")
        time.sleep(MONITOR_SECONDS)
    if lost and all(result is None for result in results.values()):
        raise _failure(*lost.popitem(), folder)
    return results


def _failure(rank: int, failure: ProcessFailure, folder: Path) -> LaunchError:
    reached = any((folder / str(rank)).glob("**/reached"))
    return LaunchError(rank, failure, reached=reached, has_begun=any_begun(folder))
