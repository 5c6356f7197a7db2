"""``fdl diagnose``: a report on machine, GPUs and libtorch, and whether they fit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.cli.commands.verb import Call, Group, Json, Verb
from fdl.machine.facts import survey
from fdl.machine.findings import assemble
from fdl.machine.report import render
from fdl.manifest.select.project import locate

verbs = Group()


@verbs.command("diagnose", cls=Verb)
def diagnose(ctx: typer.Context, json: Json = False) -> int:
    """Report on system, GPUs and libtorch, and whether they fit.

    The exit code is 1 if a finding is an error, else 0.
    """
    report = assemble(survey(str(Path.cwd()), os.environ, _manifest_problem(ctx.obj)))
    if json:
        output.write(sys.stdout, report.as_json())
    else:
        output.show(render(report))
    return 1 if report.needs_attention else 0


def _manifest_problem(call: Call) -> FdlError | None:
    """Why the project's manifest cannot be read; None when it can, or there is none."""
    if locate() is None:
        return None
    try:
        call.project().level()
    except FdlError as problem:
        return problem
    return None
