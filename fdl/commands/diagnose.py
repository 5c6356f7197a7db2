"""``fdl diagnose``: a report on machine, cards and libtorch, and whether they fit."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import output
from fdl.diagnose.assemble import assemble
from fdl.diagnose.survey import survey
from fdl.diagnose.text import render
from fdl.errors import FdlError
from fdl.project import locate

if TYPE_CHECKING:
    from fdl.app import Call


def diagnose(call: Call) -> int:
    """Print the report; with ``--check``, an error among its findings makes the exit code 1."""
    report = assemble(survey(str(Path.cwd()), os.environ, _manifest_problem(call)))
    if call.args.json:
        output.write(sys.stdout, report.as_json())
    else:
        output.write(sys.stdout, render(report, output.palette(sys.stdout)))
    return 1 if call.args.check and report.needs_attention else 0


def _manifest_problem(call: Call) -> FdlError | None:
    """Why the project's manifest cannot be read; None when it can, or there is none."""
    if locate() is None:
        return None
    try:
        call.project().level()
    except FdlError as problem:
        return problem
    return None
