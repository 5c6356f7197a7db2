"""One plan of several: reads its plan from stdin and executes it, as a call of its own would.

A process of its own per job keeps the rules for signals, containers and exit codes of a single
command. It has no terminal, so a key press reaches only the pool, which passes it on once.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.run.execute import start

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Execute the plan on stdin and return its exit code."""
    # The pool is the only writer of this pipe.
    plan, extra, quiet, pool = pickle.load(sys.stdin.buffer)  # noqa: S301
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    end_with(pool)
    output.configure(None, quiet=quiet)
    plan.env.update(extra)
    try:
        return start(plan)[0]
    except FdlError as problem:
        output.error(problem.message, problem.hint)
        return problem.exit_code


def end_with(parent: int) -> None:
    """Let Linux end this process when its parent is killed; its own job ends as after any kill."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
