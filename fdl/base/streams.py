"""Standard output and standard error that are closed, full, broken or exchanged.

Imported only when one of them is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def replace_closed() -> None:
    """Put a stream in place of each one that was closed before fdl started (`>&-`).

    The new standard output refuses what is written. The new standard error drops it, because
    there is no place for a message. Children get neither.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        drop_messages()


def drop_messages() -> None:
    """Drop what is written to standard error from now on; children keep the one they have.

    The interpreter would try again at its exit what the old stream still holds, and fail.
    """
    sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def failed(problem: OSError, *, silent: bool) -> int:
    """Report in one line what could not be written, and return the exit code."""
    # A stream has no name. `fdl.base.files.put` gives the name of a file.
    place = problem.filename or "to standard output"
    _give_up(sys.stdout.fileno())
    if isinstance(problem, BrokenPipeError):
        return 1
    text = f"cannot write {place}: {problem.strerror}"
    if not silent:
        try:
            sys.stderr.write(f"error: {text}\n")
            sys.stderr.flush()
        except OSError:
            _give_up(sys.stderr.fileno())
    return 1


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """Let programs that start meanwhile print on stderr, so that stdout is the caller's alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _give_up(descriptor: int) -> None:
    """Drop what a stream still holds, so that the interpreter does not try again at its exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
