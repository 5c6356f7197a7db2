"""Running a few jobs side by side, of which none outlives the failure of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

from fdl.fetch.arrival import StoppedError

_AGAIN = 0.1
"""Seconds between two calls of ``stop``."""

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
    with ThreadPoolExecutor(len(jobs), thread_name_prefix="fetch") as pool:
        try:
            futures.extend(pool.submit(job) for job in jobs)
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            while not all(future.done() for future in futures):
                stop()
                # Again, for what a job was just about to begin.
                wait(futures, timeout=_AGAIN)
    failures = [error for future in futures if (error := future.exception())]
    for error in failures:
        if not isinstance(error, StoppedError):
            raise error
    return [future.result() for future in futures]
