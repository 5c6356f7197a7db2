"""``fdl rehearse``: two steps, an evaluation and a checkpoint of a training, measured."""

from __future__ import annotations

import json as json_
import sys
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.streams import stdout_as_stderr
from fdl.cli.commands.verb import Call, Group, Json, Open

if TYPE_CHECKING:
    from fdl.manifest.select.project import Project
    from fdl.plan.value import Plan
    from fdl.run.jobs.chain import Chain

verbs = Group()

VARIABLE = "FLODL_REHEARSE"
"""Tells the Trainer of flodl to rehearse, and where to write the result."""

SCHEMA_VERSION = 1
_USAGE = "fdl rehearse train quick"


@verbs.command("rehearse", cls=Open)
def rehearse(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A training with its arguments: `train quick --lr 0.01`"),
    ] = None,
    json: Json = False,
) -> int:
    """Try a training in a minute: memory, time per epoch, and the first errors.

    It trains two steps with the largest batches, evaluates and writes a checkpoint, on one device.
    No run directory stays. Commands that the training needs run first. The program must use
    `Trainer.builder` of flodl.

    Returns:
        0, or the exit code of the program.

    Raises:
        FdlError: The words name no training, or the program has no Trainer.
    """
    from fdl.plan.inspect.command import behind_environment

    call: Call = ctx.obj
    project, words = behind_environment(call, command or [])
    if not words:
        raise UsageError("no command is given", hint=_USAGE)
    chain = _chain(call, project, words)
    plan = chain.steps[-1].plan
    _check(plan)
    with tempfile.TemporaryDirectory(prefix="fdl-rehearsal-") as folder:
        file = Path(folder) / "rehearsal.json"
        # Of a program that prints, too, stdout holds the one document.
        with stdout_as_stderr() if json else nullcontext():
            code = _run(chain, plan, file, call)
        result = _read(file)
    if result is None and not code:
        raise FdlError(
            f"`fdl {' '.join(plan.command)}` ended without a training: its program did not call "
            "`Trainer.builder(…).run()`",
            hint="fdl rehearse --help",
        )
    if result is None:
        return code
    if json:
        text = json_.dumps({"schema_version": SCHEMA_VERSION, **result}, indent=2) + "\n"
        output.write(sys.stdout, text)
    else:
        from fdl.runs.describe import rehearsal_page as page

        output.show(page(result))
    return code


def _chain(call: Call, project: Project, words: list[str]) -> Chain:
    from fdl.run.jobs.start import chain_of

    # As on another machine: fdl itself starts no ranks.
    host = call.here()
    alone = type(host)(host.variables, host.in_container, host.terminal, elsewhere=True)
    chain = chain_of(project, [words], call.invocation, alone)
    output.warnings(project.untold())
    return chain


def _check(plan: Plan) -> None:
    """Refuse what would train in earnest.

    Raises:
        UsageError: The command is not a program with flodl, or runs in a container.
    """
    from fdl.plan.imports import uses_flodl

    typed = f"fdl {' '.join(plan.command)}"
    if plan.kind != "entry" or not uses_flodl(plan):
        raise UsageError(
            f"`{typed}` would really run: its program does not use flodl",
            hint="`fdl rehearse` needs an `entry` whose script trains with `Trainer.builder`",
        )
    if plan.service:
        raise UsageError(
            f"`{typed}` runs in the container `{plan.service}`, and a rehearsal does not",
            hint=f"start a shell in the container and type: {_USAGE}",
        )


def _run(chain: Chain, plan: Plan, file: Path, call: Call) -> int:
    from fdl.run.execute import execute
    from fdl.run.jobs.execute import run_chain

    needed = chain.steps[:-1]
    if needed:
        chain.steps[:] = needed
        code = run_chain(chain, call.invocation.work, follows=True)
        if code:
            return code
    plan.env[VARIABLE] = str(file)
    plan.record = None
    return execute(plan)


def _read(file: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        found = json_.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return None
