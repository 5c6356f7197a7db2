"""How long fdl looks for a warm process, in a call that has none: ``benchmarks.start`` starts it.

    python benchmarks/start_look.py FILE WORDS...

It is ``fdl WORDS``, and writes to FILE the seconds that this call spends on warm starts: the look
before the program starts, and on a terminal the note of the start after it has ended.
"""

# Whatever is imported here is not counted, so this imports no more than fdl itself.
# ruff: noqa: PTH123
from __future__ import annotations

import sys
import time

import fdl.__main__ as program
from fdl import run
from fdl.run import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FILE = sys.argv.pop(1)
spent: dict[str, float] = {}


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; its seconds are kept under the name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] = time.perf_counter() - start

    return call


def main() -> int:
    """Run the command; return its exit code."""
    names: Any = (program, run, posix)
    program_, run_, posix_ = names
    program_._run_or_show = timed("all", program_._run_or_show)
    run_.execute = timed("program", run_.execute)
    posix_._warm = timed("look", posix_._warm)
    try:
        return program.main()
    finally:
        seconds = spent["all"] - spent["program"] + spent["look"]
        with open(FILE, "w", encoding="utf-8") as stream:
            stream.write(f"{seconds:.9f}")


if __name__ == "__main__":
    sys.exit(main())
