"""Executing a Plan: the only place of fdl that starts the user's programs."""

from __future__ import annotations

import os
import sys

from fdl import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.plan import Plan


def execute(plan: Plan) -> int:
    """Run a plan in the foreground and wait for it.

    Returns:
        The program's exit code; 128 + n when signal n ended it.

    Raises:
        FdlError: The program cannot be started.
    """
    if plan.preset:
        _announce(plan)
    # The child writes to the same terminal or file: what fdl has said must stand before it.
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":
        from fdl.run.windows import run
    else:
        from fdl.run.posix import run
    return run(plan)


def _announce(plan: Plan) -> None:
    from fdl.dispatch.compose import join

    if plan.service:
        output.note(f"fdl: [{plan.service}] {plan.launch[-1]}")
    else:
        output.note(f"fdl: {join(plan.argv)}")
