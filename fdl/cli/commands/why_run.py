"""``fdl why-run``: whether a command and those it needs would run, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import ManifestError, UsageError
from fdl.cli.commands.verb import Call, Group, Json, Open

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.run.step import Step

verbs = Group()

SCHEMA_VERSION = 1

_WORDS = {True: "will run", False: "will skip", None: "may run"}


@verbs.command("why-run", cls=Open)
def why_run(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="The command with its arguments: `train quick`"),
    ] = None,
    json: Json = False,
) -> int:
    """Explain whether a command would run or be skipped, and why. It starts nothing.

    The commands that it needs come first.

    Raises:
        FdlError: The words name nothing that runs, or an input does not exist.
    """
    from fdl.run.chain import steps_of

    call: Call = ctx.obj
    project, words = call.behind_environment(command or [])
    if not words:
        raise UsageError("no command is given", hint="fdl why-run train")
    steps = steps_of(project, words, call.here())
    verdicts = _verdicts(steps, force=call.invocation.work.force)
    output.warnings(project.warnings)
    if json:
        text = _as_json(verdicts)
    else:
        from fdl.base.tables import table

        rows = [(f"fdl {step.name}", _WORDS[runs], why) for step, runs, why in verdicts]
        text = output.drawn(table(rows, styles=("cyan",), wrap=(2,)))
    output.write(sys.stdout, text)
    return 0


def _verdicts(steps: Sequence[Step], *, force: bool) -> list[tuple[Step, bool | None, str]]:
    """Every step with whether it runs, and why; None where that depends on an earlier step."""
    verdicts: list[tuple[Step, bool | None, str]] = []
    for step in steps:
        if step.rule is None:
            continue
        first = [
            one.name for one, runs, _ in (verdicts[n] for n in step.needs) if runs is not False
        ]
        try:
            verdict = step.rule.judge(forced=force and step.asked)
        except ManifestError:
            if not first:
                raise
            why = f"an input does not exist yet, and `fdl {first[0]}` runs before"
            verdicts.append((step, True, why))
            continue
        if first and not verdict.runs:
            why = f"`fdl {first[0]}` runs before, and may change its inputs"
            verdicts.append((step, None, why))
        else:
            verdicts.append((step, verdict.runs, verdict.reason))
    return verdicts


def _as_json(verdicts: list[tuple[Step, bool | None, str]]) -> str:
    document = {
        "schema_version": SCHEMA_VERSION,
        "commands": [
            {"command": step.plan.command, "asked": step.asked, "runs": runs, "reason": why}
            for step, runs, why in verdicts
        ],
    }
    return output.json_text(document)
