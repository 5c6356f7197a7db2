"""Run a few jobs side by side; if one fails, all end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from queue import Empty, Queue
from typing import Any

from fdl.fetch.arrival import StoppedError

_AGAIN = 0.1
"""Seconds between two calls of ``stop``."""

_AHEAD = 8
"""Maximum number of blocks that wait between two threads."""

_LOWER = 5
"""The lower priority of a thread, on the scale of nice(1)."""

Job = Callable[[], Any]


def together(jobs: Sequence[Job], stop: Callable[[], None]) -> list[Any]:
    """Run every job in a separate thread and return the results.

    Args:
        jobs: The jobs to run.
        stop: Makes all jobs end soon, if needed by raising :class:`StoppedError`. It is called as
            soon as one job fails or the caller is interrupted, and again until all have ended.

    Raises:
        BaseException: The error of the first job that failed, after all threads have ended.
    """
    futures: list[Future[Any]] = []
    running: set[int] = set()
    changed, closed = threading.Condition(), threading.Event()

    def run(number: int) -> Any:
        with changed:
            if closed.is_set():
                raise StoppedError
            running.add(number)
        try:
            return jobs[number]()
        finally:
            with changed:
                running.discard(number)
                changed.notify_all()

    with ThreadPoolExecutor(len(jobs), thread_name_prefix="fetch") as pool:
        try:
            futures.extend(pool.submit(run, number) for number in range(len(jobs)))
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            with changed:
                closed.set()
                # Futures cannot tell whether jobs run: an interrupt within submit() can start a job
                # whose future is lost. Call again, for work that a job was just about to begin.
                while running:
                    stop()
                    changed.wait_for(lambda: not running, _AGAIN)
    failures = [error for future in futures if (error := future.exception())]
    for error in failures:
        if not isinstance(error, StoppedError):
            raise error
    return [future.result() for future in futures]


def step_back() -> None:
    """Give other threads precedence, on systems where each thread has its own priority.

    One large library is most of an archive. The thread that inflates it decides when everything is
    done. So it needs a core for itself, even if there are only two.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            # A process that is nice already may be above it.
            own = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(own, _LOWER))


@contextmanager
def ahead(blocks: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """Blocks that another thread produces while the caller works on earlier ones.

    At the end of the context the thread has ended, even if blocks were not used. So the blocks
    must end soon when their input ends. Their errors are raised after the blocks before.
    """
    ready: Queue[bytes | BaseException | None] = Queue(_AHEAD)
    given_up = threading.Event()

    def produce() -> None:
        try:
            for block in blocks:
                ready.put(block)
                if given_up.is_set():
                    return
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    def taken() -> Iterator[bytes]:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=produce, name="fetch ahead")
    thread.start()
    try:
        yield taken()
    finally:
        given_up.set()
        # Empty the queue, so that a waiting put() finds space, and so does the next one.
        with suppress(Empty):
            while True:
                ready.get_nowait()
        thread.join()
