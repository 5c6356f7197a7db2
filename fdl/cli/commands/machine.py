"""``fdl setup`` and ``fdl diagnose``: prepare this machine or project, and report on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.terminal import Questions
from fdl.cli.commands.verb import Call, Context, DryRun, Group, Json, Verb
from fdl.machine import setup as carry_out
from fdl.machine.facts import survey
from fdl.machine.findings import assemble, findings, not_chosen
from fdl.machine.report import render
from fdl.machine.self_install import install, link_path
from fdl.machine.setup import execute
from fdl.machine.setup_plan import gather, plan
from fdl.manifest.select.project import locate

verbs = Group()


@verbs.command("setup", cls=Verb)
def setup(
    ctx: Context,
    non_interactive: Annotated[
        bool,
        typer.Option("--non-interactive", "-y", help="Ask nothing; use the default answers"),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Install libtorch again, even if a variant is active")
    ] = False,
    dry_run: DryRun = False,
) -> int:
    """Prepare this machine or project: Python, containers, libtorch if needed.

    Raises:
        FdlError: There is nothing to run a project in, or a step has failed.
    """
    questions = Questions(on=not (non_interactive or ctx.obj.yes or dry_run))
    facts = gather(str(Path.cwd()), os.environ)
    output.show(carry_out.machine(facts), "")
    for one in not_chosen(findings(facts)):
        output.warning(one.message, one.remedy or "")
    found = plan(facts, questions, os.environ, force=force)
    for note in found.notes:
        output.note(note)
    if found.hint:
        output.hint(found.hint)
    title = "Would do:" if dry_run else "Steps:"
    output.show(carry_out.steps(found, title), "")
    if dry_run:
        return 0
    sys.stdout.flush()
    failed = execute(found, facts.stock.store, facts.nvidia, os.environ)
    if failed:
        output.warning(f"{failed} of {len(found.steps)} steps failed; the warnings above say why")
    output.show(carry_out.following(found))
    _offer_install(questions)
    return 0


def _offer_install(questions: Questions) -> None:
    """Where a person answers and no fdl is in the way, offer to put this one on the PATH."""
    if not questions.on or os.path.lexists(path := link_path()):
        return
    if questions.confirm(f"Put fdl on your PATH, as ~/.local/bin/{path.name}?", default=False):
        output.write(sys.stdout, install(os.environ))


@verbs.command("diagnose", cls=Verb)
def diagnose(ctx: Context, json: Json = False) -> int:
    """Report on system, GPUs and libtorch, and whether they fit.

    The exit code is 1 if a finding is an error, else 0.
    """
    report = assemble(survey(str(Path.cwd()), os.environ, _manifest_problem(ctx.obj)))
    if json:
        output.print_json(report.model_dump())
    else:
        output.show(render(report))
    return int(any(one.severity == "error" for one in report.findings))


def _manifest_problem(call: Call) -> FdlError | None:
    """Why the project's manifest cannot be read; None when it can, or there is none."""
    if locate() is None:
        return None
    try:
        call.project().level()
    except FdlError as problem:
        return problem
    return None
