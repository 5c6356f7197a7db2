"""Running a few jobs side by side, of which none outlives the failure of another."""

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
"""Blocks that wait between two threads."""

_LOWER = 5
"""How far a thread steps back, on the scale of nice(1)."""

Job = Callable[[], Any]


def together(jobs: Sequence[Job], stop: Callable[[], None]) -> list[Any]:
    """Run every job in a thread of its own and return what they return.

    Args:
        jobs: What to run.
        stop: Makes all jobs end soon, if need be by raising :class:`StoppedError`. It is called as
            soon as one job fails or the caller is interrupted, and again until all have ended.

    Raises:
        BaseException: What the first job that failed has raised, once all threads have ended.
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
                # Not asked of the futures: an interrupt within submit() starts a job whose future
                # nobody has. Again, for what a job was just about to begin.
                while running:
                    stop()
                    changed.wait_for(lambda: not running, _AGAIN)
    failures = [error for future in futures if (error := future.exception())]
    for error in failures:
        if not isinstance(error, StoppedError):
            raise error
    return [future.result() for future in futures]


def step_back() -> None:
    """Let other threads run first, where threads have priorities of their own.

    One large library is most of an archive. What inflates it decides when everything is done, and
    has to have a core for itself also where there are only two.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWER)


@contextmanager
def ahead(blocks: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """Blocks that another thread makes while the caller is busy with earlier ones.

    At the end of the context the thread has ended, whatever was taken until then.

    Args:
        blocks: What to go through; it must end soon when its input does. What it raises comes
            out behind the blocks before.
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
        # What waits for room finds some, and what comes after it does, too.
        with suppress(Empty):
            while True:
                ready.get_nowait()
        thread.join()
