"""Running an entry program and turning its result into an exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeVar

from fdl.base.masking import KNOWN
from flodl import terminal
from flodl.errors import FlodlError
from flodl.ranks.launch.interrupt import Terminated, ignore_repeated

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    A = TypeVar("A")

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""

BROKEN_PIPE = 141
"""Exit code if the reader of our output has closed the pipe: 128 + SIGPIPE."""


def entry(main: Callable[[A], object], args: A) -> int:
    """Run ``main(args)`` and return the exit code of the program.

    - An ``int`` returned by ``main`` is the exit code; anything else means 0.
    - User errors become ``error: …`` on stderr, with all lines of the message, and exit code 1.
      These are :class:`~flodl.errors.FlodlError` and a ``ValueError`` raised by a check of flodl
      itself.
    - Ctrl-C gives 130. SIGTERM during a training gives 143. In a SLURM job, SIGUSR1 during a
      training gives 138. A closed output pipe gives 141.
    - Every other exception is a bug of the program and passes through with its traceback.

    Use it as ``sys.exit(entry(main, args))``.
    """
    try:
        result = main(args)
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        ignore_repeated()
        _tell("interrupted", stop)
        return INTERRUPTED
    except Terminated as stop:
        ignore_repeated()
        _tell("preempted" if stop.preempted else "terminated", stop)
        return int(stop.code or 0)
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except FlodlError as error:
        _say(f"error: {error}")
        return 1
    except ValueError as error:
        if not _raised_by_flodl(error.__traceback__):
            raise
        _say(f"error: {error}")
        return 1
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _tell(how: str, stop: BaseException) -> None:
    """Say how the program was stopped, and how to continue; of several ranks, the first does."""
    if terminal.is_first_rank():
        stop = _with_message(stop)
        said = f"{how}: {stop}" if str(stop) else how
        _say("\n".join([said, *getattr(stop, "__notes__", ())]))


def _with_message(stop: BaseException) -> BaseException:
    """Return the exception of the first signal if a later one has ended the clean-up after it."""
    first = stop.__context__
    if (
        str(stop)
        or hasattr(stop, "__notes__")
        or not isinstance(first, KeyboardInterrupt | Terminated)
    ):
        return stop
    return _with_message(first)


def _say(text: str) -> None:
    lines = (line.rstrip() for line in KNOWN.text(text).strip().splitlines())
    print("\n".join(lines), file=sys.stderr)  # noqa: T201 - errors belong on stderr


def _discard_stdout() -> None:
    # At exit the interpreter flushes stdout and would report the closed pipe again.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _raised_by_flodl(traceback: TracebackType | None) -> bool:
    """Whether the innermost frame, which raised the exception, belongs to this package."""
    module = ""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    # A frame of this file can only mean that `main` itself is a built-in function.
    return module != __name__ and module.partition(".")[0] == __name__.partition(".")[0]
