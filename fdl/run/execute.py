"""Executing a Plan: only this package of fdl starts the user's programs."""

from __future__ import annotations

import os
import sys
import time

from fdl.base import output
from fdl.base.errors import FdlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.plan.value import Plan


def execute(plan: Plan) -> int:
    """Run a plan in the foreground and return the program's exit code.

    It is 128 + n if signal n ended the program, and 130 after a second Ctrl-C.

    Raises:
        FdlError: The program cannot be started.
    """
    return attend(plan)[0]


def attend(plan: Plan) -> tuple[int, int]:
    """The same for one command of several: after a signal, no further one may start.

    Returns:
        The exit code, and the signal that asked fdl to end meanwhile; 0 for none. A program may
        catch the signal and end with 0.

    Raises:
        FdlError: The program cannot be started.
    """
    if plan.kind == "entry" and not plan.service:
        from fdl.run.program import require_script

        require_script(plan)
    _say_first(plan)
    if plan.service:
        from fdl.run.docker import make_mounted_folders

        make_mounted_folders(plan)
    began = time.time()
    if os.name == "nt":
        from fdl.run.windows import run
    else:
        from fdl.run.posix import run
    record = None
    if plan.record is not None:
        from fdl.run.record import begin

        record = begin(plan)
    try:
        code, asked = run(plan, record)
    except FdlError as problem:
        if record is not None:
            record.fail(problem.exit_code, problem.message)
        raise
    if record is not None:
        record.finish(code, asked)
    if code and plan.service:
        from fdl.run.docker import advice

        if remedy := advice(plan, code, began):
            output.hint(remedy)
    return code, asked


def _say_first(plan: Plan) -> None:
    """Announce a preset and flush fdl's output, so that it comes before the child's."""
    try:
        if plan.preset:
            _announce(plan)
        sys.stdout.flush()
        sys.stderr.flush()
    # The stream is closed or full. Run anyway: the child gets the same one and decides itself.
    except OSError:
        return


def _announce(plan: Plan) -> None:
    from fdl.base.shell_words import join
    from fdl.plan.redaction import redacted

    shown = redacted(plan)
    if shown.service:
        output.note(f"fdl: [{shown.service}] {shown.launch[-1]}")
    else:
        output.note(f"fdl: {join(shown.argv)}")
