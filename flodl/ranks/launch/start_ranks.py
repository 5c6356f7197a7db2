"""Start the ranks of a training from the program itself, through torch's elastic launcher."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing import current_process
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Literal, NoReturn, final

import cloudpickle
import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    get_error_handler,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from fdl.base.files import staging
from flodl import log
from flodl.errors import StateError, WorkersFailed
from flodl.ranks.launch.interrupt import InterruptRequest, Terminated
from flodl.ranks.launch.join import DEVICE_VARIABLE
from flodl.ranks.launch.launcher import any_begun, end_with_launcher

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals that torch's launcher passes on to the ranks."""
MONITOR_SECONDS = 0.1
_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit codes of a rank that ends because a rank was asked to end."""
_REACHED = "reached"
"""File beside the error file of a rank; it exists once the rank has reached the function."""
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket|timed out|timeout|nccl|gloo|"
    r"recv(value)? failed|store",
    re.IGNORECASE,
)
"""Matches the error messages of ranks that failed because another rank is gone."""


@final
@dataclass(frozen=True, slots=True)
class Start:
    """The facts that every rank of one launch gets."""

    restart: int
    threads: int | None
    devices: tuple[int, ...] | None


@final
class LaunchError(Exception):
    """A rank ended with an error, and the others were stopped."""

    def __init__(
        self, rank: int, failure: ProcessFailure, *, reached: bool, has_begun: bool
    ) -> None:
        super().__init__(rank)
        self.rank = rank
        self.reached = reached
        """Whether the rank reached the function; it does not if the program cannot be imported."""
        self.has_begun = has_begun
        """Whether a rank has trained a step, or has begun from a checkpoint."""
        self.cause, self.traceback = cause_of(failure)


def launch_ranks(
    function: Callable[..., Any],
    args: Sequence[object],
    ranks: int,
    *,
    max_restarts: int = 3,
    simulated: bool = False,
    devices: Sequence[int] | None = None,
    last_checkpoint: Path | None = None,
    once: Callable[..., dict[int, Any]] | None = None,
) -> dict[int, Any]:
    """Call ``function(*args)`` in new processes on this host and wait for them.

    The processes get an environment that
    :func:`~flodl.ranks.launch.launcher.detect` reads. When a process fails, the others
    are stopped and all are started again; ``restart`` then increases by 1. A training that had not
    begun (:func:`~flodl.ranks.launch.launcher.mark_begun`) is not started again. If the ranks have
    devices of their own, a device that failed twice is not used any more, and there is one rank
    less.

    Ctrl-C and SIGTERM are forwarded to the ranks, which end before this function returns.

    Args:
        function: A function that new processes find by its name in its module. In a notebook, any
            function: they get its code.
        args: Arguments of the function; they are pickled.
        ranks: Number of processes, if ``devices`` is None.
        max_restarts: How often all processes are started again.
        simulated: Whether the ranks only simulate devices; each uses one thread then.
        devices: Number of the GPU of each rank; None: the ranks have no devices of their own.
        last_checkpoint: A checkpoint that the error names if it exists.
        once: Starts the processes once, with the arguments of :func:`launch_once`, which is the
            default.

    Returns:
        The results of the function, by rank.

    Raises:
        ValueError: A value cannot be pickled; the message names it.
        StateError: The program starts its ranks while one of them imports it.
        WorkersFailed: A rank failed, and no restart was left or the training had not begun.
        KeyboardInterrupt: Ctrl-C.
        Terminated: SIGTERM.
    """
    _refuse_import()
    check_picklable(function, args)
    left = list(devices) if devices is not None else None
    run_id = uuid.uuid4().hex
    failures: Counter[int] = Counter()
    restart, has_begun = 0, False
    while True:
        count = len(left) if left is not None else ranks
        start = Start(restart, _threads(count, simulated), tuple(left) if left else None)
        try:
            return (once or launch_once)(start, function, args, count, run_id)
        except LaunchError as failed:
            has_begun = has_begun or failed.has_begun
            if restart >= max_restarts or not (failed.reached and has_begun):
                raise _workers_failed(failed, restart, last_checkpoint) from None
            rank, cause = failed.rank, failed.cause
        restart += 1
        if left is not None:
            failures[left[rank]] += 1
            if failures[left[rank]] == 2 and len(left) > 1:
                log.warning(f"device {left[rank]} failed twice and is left out from now on")
                del left[rank]
        again = f"starting all ranks again ({restart} of {max_restarts})"
        log.warning(f"rank {rank} ended with {cause}: {again}")


def record_failure(error: Exception) -> None:
    """Record for the launcher why this rank ends; call it where the error is caught.

    A rank that fails because it lost another rank is not the cause. It waits for a second, so that
    the launcher sees the other rank first. The launcher then sends SIGTERM, and that must not end
    this rank before it has said what happened.
    """
    get_error_handler().record_exception(error)
    if _lost_a_peer(error):
        limit = time.monotonic() + 10 * MONITOR_SECONDS
        with InterruptRequest() as request:
            while not request.requested and time.monotonic() < limit:
                time.sleep(MONITOR_SECONDS / 4)


def task_of(function: Callable[..., Any], args: Sequence[object]) -> Any:
    """Return a function and its arguments in the form in which new processes get them."""
    task = (function, tuple(args))
    return ByValue(task) if is_typed_in() else task


def run_rank(start: Start, task: tuple[Callable[..., Any], Sequence[object]]) -> Any:
    """Set up a new process as a rank and run the function of the task with its arguments."""
    # The terminal's Ctrl-C must not reach the rank: the launcher forwards it, and two are too many.
    with contextlib.suppress(OSError, AttributeError):
        os.setpgid(0, 0)
    end_with_launcher(os.environ)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(start.restart)
    if start.devices is not None:
        os.environ[DEVICE_VARIABLE] = str(start.devices[int(os.environ["LOCAL_RANK"])])
    if start.threads is not None:
        torch.set_num_threads(start.threads)
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_name(_REACHED).touch()
    function, args = task
    try:
        return function(*args)
    except KeyboardInterrupt:
        # torch ends the process with exit code 0, and its launcher then waits for the result.
        sys.exit(_INTERRUPTED)
    except Exception as error:
        record_failure(error)
        raise


def launch_once(
    start: Start, function: Callable[..., Any], args: Sequence[object], ranks: int, run_id: str
) -> dict[int, Any]:
    """Start ranks that end together, and wait for them.

    Raises:
        LaunchError: One of them failed.
    """
    with (
        staging(tempfile.gettempdir(), mode=0o700) as folder,
        quiet_torch(),
        own_signals(),
    ):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=run_id,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            # Restarts are counted here: torch would start them on the same devices.
            max_restarts=0,
            monitor_interval=MONITOR_SECONDS,
            start_method="spawn",
            logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        )
        launch = elastic_launch(config, run_rank)
        try:
            results: dict[int, Any] = launch(start, task_of(function, args))
        except ChildFailedError as failed:
            rank, failure = failed.get_first_failure()
            # On one host the rank is also the local rank, which names the folder.
            reached = any(folder.glob(f"*/*/{rank}/{_REACHED}"))
            has_begun = any_begun(folder)
            raise LaunchError(rank, failure, reached=reached, has_begun=has_begun) from None
        return results


def _threads(ranks: int, simulated: bool) -> int | None:
    """Return the number of threads per rank; None if the user has set it."""
    if simulated:
        return 1
    if "OMP_NUM_THREADS" in os.environ:
        return None
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, cores // ranks)


def _refuse_import() -> None:
    # multiprocessing sets this while a new process imports its program.
    if getattr(current_process(), "_inheriting", False):
        raise StateError(
            "this program starts its ranks each time it is imported, and every rank imports it: "
            "put what starts the training under `if __name__ == '__main__':`, or launch the "
            "program with fdl or torchrun"
        )
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file and not Path(file).exists():
        raise StateError(
            "this program starts ranks, and they cannot import it, because it is not a file: "
            f"{file}; save it under a name that ends with .py"
        )


def was_asked_to_end(failure: ProcessFailure) -> bool:
    """Whether a process ended because it, or another rank, got Ctrl-C or SIGTERM."""
    return failure.exitcode in (_INTERRUPTED, _TERMINATED)


def cause_of(failure: ProcessFailure) -> tuple[str, str]:
    """Return why a process ended, in a few words, and its traceback or an empty text."""
    message: Any = failure.message
    if isinstance(message, dict):
        return str(message["message"]), str(message.get("extraInfo", {}).get("py_callstack", ""))
    if failure.exitcode < 0:
        return f"signal {failure.signal_name()}", ""
    return f"exit code {failure.exitcode}", ""


def _workers_failed(
    failed: LaunchError, restarts: int, last_checkpoint: Path | None
) -> WorkersFailed:
    rank, cause, traceback = failed.rank, failed.cause, failed.traceback
    kept = str(last_checkpoint) if last_checkpoint and last_checkpoint.is_file() else None
    after = f" after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    text = f"rank {rank} ended{after} with {cause}"
    if kept is not None:
        text += f"; the last checkpoint is {kept}"
    if traceback:
        text += f"\n\nOn rank {rank}:\n{traceback.rstrip()}"
    elif not failed.reached:
        text += " before it began: it could not import the program; what it said is above"
    return WorkersFailed(text, rank=rank, cause=cause, traceback=traceback, last_checkpoint=kept)


def _lost_a_peer(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, torch.distributed.DistError | ConnectionError | TimeoutError):
            return True
        if isinstance(error, RuntimeError) and _LOST_PEER.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


@final
class quiet_torch:  # noqa: N801 - used as a function
    """Keeps torch's launcher from logging failures that an exception reports anyway."""

    def __enter__(self) -> None:
        names = [n for n in logging.root.manager.loggerDict if n.startswith("torch.distributed")]
        self._loggers = [
            logging.getLogger(name) for name in (*names, "torch.multiprocessing.spawn")
        ]
        for logger in self._loggers:
            logger.addFilter(self._drop)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        for logger in self._loggers:
            logger.removeFilter(self._drop)
        return False

    @staticmethod
    def _drop(record: logging.LogRecord) -> bool:
        del record
        return log.enabled(log.Verbosity.DEBUG)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Restore the signal handlers that torch replaces, and end as the signal usually does."""
    in_main = threading.current_thread() is threading.main_thread()
    # Windows has the first two.
    numbers = [signal.Signals[name] for name in SIGNALS if hasattr(signal, name)]
    former = {number: signal.getsignal(number) for number in numbers} if in_main else {}
    try:
        yield
    except SignalException as received:
        _end(received.sigval)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end(number: signal.Signals) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt from None
    if number == signal.SIGTERM:
        raise Terminated from None
    sys.exit(128 + number)


@final
class ByValue:
    """A value that another process gets with the code of its functions and classes.

    A notebook or a prompt is in no file that another process could import. Tensors are shared as
    :mod:`torch.multiprocessing` does it.

    Args:
        value: Any value that :func:`check_picklable` accepts.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        """Return how the other process makes the value itself; called once for each process."""
        file = io.BytesIO()
        pickler = cloudpickle.Pickler(file)
        shared = ForkingPickler(io.BytesIO()).dispatch_table
        pickler.dispatch_table = ChainMap(shared, pickler.dispatch_table)
        pickler.dump(self._value)
        return pickle.loads, (file.getvalue(),)


def is_typed_in() -> bool:
    """Whether the program is a notebook or was typed in: other processes cannot import it."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is None and not getattr(main, "__file__", None)


def check_picklable(function: Callable[..., Any], args: Sequence[object]) -> None:
    """Check that a function and its arguments can be sent to new processes.

    Raises:
        ValueError: A value cannot be sent; the message names it, or the part of a data class or a
            mapping.
    """
    for name, value in (("the function", function), *_named(args)):
        if (problem := _problem(value)) is None:
            continue
        found = ((part, inner, _problem(inner)) for part, inner in _parts(value))
        worst = next((one for one in found if one[2] is not None), (name, value, problem))
        raise ValueError(
            f"{worst[0]} cannot be sent to the ranks ({worst[2]}): {_described(worst[1])}. Ranks "
            "that a program starts itself are new processes, which find functions and classes by "
            "the names they have in a module: define it at the top of a file, without lambda and "
            "not inside of a function; or launch the program with fdl or torchrun, where every "
            "rank runs all of it"
        )


def _named(args: Sequence[object]) -> Iterator[tuple[str, object]]:
    for index, value in enumerate(args):
        yield f"argument {index} ({type(value).__name__})", value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield field.name, getattr(value, field.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key), inner


def _problem(value: object) -> str | None:
    pickler = cloudpickle.Pickler if is_typed_in() else pickle.Pickler
    try:
        pickler(_Nowhere()).dump(value)
    except Exception as error:  # __reduce__ of a user's class may raise any error
        return f"{type(error).__name__}: {error}"
    return None


def _described(value: object) -> str:
    if isinstance(value, FunctionType):
        code = value.__code__
        return f"{value.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


@final
class _Nowhere(io.RawIOBase):
    """Accepts bytes and discards them: a data set may be large."""

    def write(self, data: Any) -> int:
        """Discard the bytes."""
        return memoryview(data).nbytes
