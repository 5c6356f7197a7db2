"""``fdl why``: what sets a value, and whether a command would run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import ManifestError, UsageError
from fdl.cli.builtins import schema
from fdl.cli.commands.config import explained
from fdl.cli.commands.runs import project_folders
from fdl.cli.commands.verb import Call, Complete, Context, Group, Json, Open
from fdl.programs.parameters.parser import RefusedError, read_words
from fdl.run.chain import steps_of
from fdl.runs.find import at, choose, search
from fdl.runs.metrics import BEST_OF
from fdl.runs.resolved import CONFIG, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.run.step import Step

verbs = Group()


_WORDS = {True: "will run", False: "will skip", None: "may run"}


@verbs.command("why", cls=Open)
def why(
    ctx: Context,
    field: Annotated[
        str | None,
        typer.Argument(
            help="`training.lr`, `commands.test.run`, `env.HF_HOME`, or `RUN:training.lr` of a run "
            "or checkpoint"
        ),
        Complete("fields"),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Explain it for this command, as you type it: `train quick`"),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Explain whether a command would run or be skipped: `fdl why --run train`",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Explain one value: every place that sets it, and which one wins.

    With --run, it explains whether a command would run or be skipped. The commands that it needs
    come first. Nothing starts.

    Raises:
        FdlError: Nothing sets it, or what it stands in cannot be read. Or the words name nothing
            that runs, or an input does not exist.
    """
    if run:
        words = [field, *(command or [])] if field else []
        output.write(sys.stdout, _about_run(ctx.obj, words, as_json=json))
        return 0
    if field is None:
        raise RefusedError("missing required argument <field>")
    asked = _with_path(ctx.obj, field)
    output.write(sys.stdout, explained(ctx.obj, asked, command or [], as_json=json))
    return 0


def _about_run(call: Call, typed: list[str], *, as_json: bool) -> str:
    """Whether a command and those that it needs would run, and why."""
    if typed and typed[0].startswith("-"):
        read_words(schema(["why"]).parameters, typed[:1], {})
    project, words = call.behind_environment(typed)
    if not words:
        raise UsageError("no command is given", hint="fdl why --run train")
    verdicts = _verdicts(steps_of(project, words, call.here()), force=call.invocation.work.force)
    output.warnings(project.warnings)
    if as_json:
        return _as_json(verdicts)
    from fdl.base.tables import table

    rows = [(f"fdl {step.name}", _WORDS[runs], why) for step, runs, why in verdicts]
    return output.drawn(table(rows, styles=("cyan",), wrap=(2,)))


def _with_path(call: Call, asked: str) -> str:
    """``last:lr`` and ``FOLDER_OF_RUNS:lr`` with the path of the run; anything else is unchanged.

    Raises:
        FdlError: The name means no run, or several; or the folder has none.
    """
    word, colon, field = asked.rpartition(":")
    is_best = word.startswith(BEST_OF)
    if not colon or not word:
        return asked
    if not is_best and (known := split(asked)) is not None:
        path = Path(known[0])
        is_above_runs = path.is_dir() and not (path / CONFIG).is_file()
        return f"{at(path).path}:{known[1]}" if is_above_runs else asked

    places = project_folders(call)
    # The key of a manifest may have a colon, so that only the name of a run is a run.
    if (
        is_best
        or word == "last"
        or any(run.name.startswith(word) or run.title == word for run in search(places))
    ):
        return f"{choose(word, places).path}:{field}"
    return asked


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
            runs, reason = step.rule.judge(forced=force and step.asked)
        except ManifestError:
            if not first:
                raise
            why = f"an input does not exist yet, and `fdl {first[0]}` runs before"
            verdicts.append((step, True, why))
            continue
        if first and not runs:
            why = f"`fdl {first[0]}` runs before, and may change its inputs"
            verdicts.append((step, None, why))
        else:
            verdicts.append((step, runs, reason))
    return verdicts


def _as_json(verdicts: list[tuple[Step, bool | None, str]]) -> str:
    commands = [
        {"command": step.plan.command, "asked": step.asked, "runs": runs, "reason": why}
        for step, runs, why in verdicts
    ]
    return output.versioned({"commands": commands})
