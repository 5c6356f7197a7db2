"""Messages of a training program on its terminal, filtered by verbosity.

There are five levels, one setting per process and no handlers. Progress goes to stdout, diagnosis
to stderr. The level is read from ``FLODL_VERBOSITY`` (a number or a name) when it is first needed,
unless :func:`set_verbosity` was called before.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TextIO

from fdl.base.masking import KNOWN


class Verbosity(IntEnum):
    """Levels of verbosity; each level includes those before it."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2
    DEBUG = 3
    TRACE = 4


_level: Verbosity | None = None

# Called before formatting. Modules and classes are callable too, but count as plain values.
_DEFERRED = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
)

# One line at a time, even when sinks write from their own threads.
_write_lock = threading.Lock()


def _parse(level: Verbosity | int | str) -> Verbosity:
    text = str(int(level)) if isinstance(level, int) else level.strip()
    if text.isascii() and text.isdigit():
        number = int(text) if len(text) < 4 else len(Verbosity)
        return Verbosity(number) if number < len(Verbosity) else Verbosity.NORMAL
    return Verbosity.__members__.get(text.upper(), Verbosity.NORMAL)


def set_verbosity(level: Verbosity | int | str) -> None:
    """Set the level of this process; it overrides ``FLODL_VERBOSITY``.

    Args:
        level: A :class:`Verbosity`, its number or its name in any case. Anything else means NORMAL.
    """
    global _level
    _level = _parse(level)


def verbosity() -> Verbosity:
    """Return the current level."""
    global _level
    if _level is None:
        _level = level_of(os.environ)
    return _level


def level_of(environ: Mapping[str, str]) -> Verbosity:
    """Return the level that ``FLODL_VERBOSITY`` asks for, and leave the current level open."""
    return _parse(environ.get("FLODL_VERBOSITY", "normal"))


def enabled(level: Verbosity) -> bool:
    """Tell whether messages of `level` are shown; use it to skip work that only a message needs."""
    return level <= verbosity()


def msg(text: object, *args: object, level: Verbosity = Verbosity.NORMAL) -> None:
    """Print one line if `level` is enabled; otherwise do nothing.

    Args:
        text: The line. With `args` it is a :meth:`str.format` pattern. Without them it is printed
            unchanged, including braces.
        args: Values for the pattern. A function, method or ``partial`` (also as `text`) is called
            for its value, and only when the line is printed.
        level: Levels up to VERBOSE print to stdout, higher levels to stderr.
    """
    if not enabled(level):
        return
    line = str(_value(text))
    if args:
        line = line.format(*map(_value, args))
    _write(line, sys.stdout if level <= Verbosity.VERBOSE else sys.stderr)


def verbose(text: object, *args: object) -> None:
    """Print one line at VERBOSE; see :func:`msg`."""
    msg(text, *args, level=Verbosity.VERBOSE)


def debug(text: object, *args: object) -> None:
    """Print one line at DEBUG; see :func:`msg`."""
    msg(text, *args, level=Verbosity.DEBUG)


def trace(text: object, *args: object) -> None:
    """Print one line at TRACE; see :func:`msg`."""
    msg(text, *args, level=Verbosity.TRACE)


def warning(text: str) -> None:
    """Print a warning on stderr at every level: something failed and the program recovers.

    Never raises, even when stderr is closed.
    """
    with contextlib.suppress(OSError, ValueError):
        _write(f"warning: {text}", sys.stderr)


def _value(item: object) -> object:
    if isinstance(item, _DEFERRED):
        call: Callable[[], object] = item
        return call()
    return item


def _write(line: str, stream: TextIO | None) -> None:
    if stream is None:  # a program without a console
        return
    line = KNOWN.text(line)
    with _write_lock:
        try:
            stream.write(line + "\n")
        except UnicodeEncodeError:
            # An ASCII or legacy console: escape what it cannot show instead of failing.
            encoding = stream.encoding or "ascii"
            stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
