"""Start ranks that may end one by one, each through torch's launcher of processes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    ProcessFailure,
    SignalException,
    start_processes,
)

from flodl import log
from flodl.ranks.elastic.meeting_place import MeetingPlace, lighthouse
from flodl.ranks.launch.launcher import JOIN_VARIABLE, any_begun
from flodl.ranks.launch.start_ranks import (
    MONITOR_SECONDS,
    LaunchError,
    Start,
    cause_of,
    own_signals,
    quiet_torch,
    run_rank,
    task_of,
)


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
        with (
            tempfile.TemporaryDirectory(prefix="flodl-ranks-", ignore_cleanup_errors=True) as made,
            quiet_torch(),
            own_signals(),
        ):
            folder = Path(made)
            running: dict[int, PContext] = {}
            number = signal.SIGTERM
            try:
                for rank in range(ranks):
                    environ = _environment(place, rank, ranks, store.port, run_id)
                    running[rank] = _started((start, task), environ, folder)
                return _wait(running, folder)
            except SignalException as stop:
                number = stop.sigval
                raise
            finally:
                for one in running.values():
                    one.close(number)
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
        "TORCHELASTIC_RUN_ID": run_id,
    }


def _started(args: tuple[Any, ...], environ: dict[str, str], folder: Path) -> PContext:
    own = folder / environ["RANK"]
    own.mkdir()
    return start_processes(
        name="rank",
        entrypoint=run_rank,
        args={0: args},
        envs={0: environ},
        logs_specs=DefaultLogsSpecs(log_dir=str(own)),
        start_method="spawn",
    )


def _wait(running: dict[int, PContext], folder: Path) -> dict[int, Any]:
    """Wait until all ranks have ended; remove them from ``running``."""
    results: dict[int, Any] = {}
    lost: dict[int, ProcessFailure] = {}
    while running:
        for rank, process in list(running.items()):
            ended = process.wait(timeout=0)
            if ended is None:
                continue
            del running[rank]
            if not ended.failures:
                results[rank] = ended.return_values[0]
                continue
            lost[rank] = ended.failures[0]
            if not any_begun(folder):
                raise _failure(rank, lost[rank], folder)
            if running and not results:
                told = cause_of(lost[rank])[0]
                log.warning(f"rank {rank} ended with {told}; the others train on")
        time.sleep(MONITOR_SECONDS)
    if lost and all(result is None for result in results.values()):
        raise _failure(*lost.popitem(), folder)
    return results


def _failure(rank: int, failure: ProcessFailure, folder: Path) -> LaunchError:
    reached = any((folder / str(rank)).glob("**/reached"))
    return LaunchError(rank, failure, reached=reached, has_begun=any_begun(folder))
