"""``fdl flodl-hf``: models of HuggingFace, converted, exported and checked.

The commands are a program of flodl with a manifest of its own. A project that has a command of
this name too adds to them, and its own are stronger.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.suggest import did_you_mean
from fdl.cli.commands.module import root, run_or_show
from fdl.cli.commands.verb import Call, Group, Program
from fdl.manifest.node import origin
from fdl.manifest.select import bundle
from fdl.manifest.select.project import locate
from fdl.plan.planner import Planner

if TYPE_CHECKING:
    from fdl.base.layout import Row
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level

verbs = Group()

NAME = "flodl-hf"


@verbs.command("flodl-hf", cls=Program)
def flodl_hf(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="A command with its arguments (default: list the commands)"),
    ] = None,
) -> int:
    """Convert, export, check and try models of Hugging Face.

    Returns:
        The exit code of the command; 0 for a page that was asked for; 1 for an unknown command.

    Raises:
        FdlError: A manifest is broken, the arguments do not fit, or Python cannot be started.
    """
    from fdl.cli.commands import bundled
    from fdl.manifest.select.command import select
    from fdl.plan.command import planned

    call: Call = ctx.obj
    found = bundle.level(NAME, call.here().variables)
    if found is None:
        raise bundled.not_installed()
    words = arguments or []
    here = str(Path.cwd())
    asked = call.invocation
    selected = select(found, words, bundle.load, help_wanted=asked.help, help_word=asked.help_word)
    if not selected.known:
        return _refuse(selected)
    if selected.refreshes:
        from fdl.cli.commands.schema import refresh_one

        return refresh_one(selected.level, call.here(), dry_run=call.dry_run)
    if selected.page and selected.level is not found:
        return bundled.show(selected, call.here())
    if selected.page:
        output.write(sys.stdout, _page(found, _of_project()))
        return 0
    planner = Planner(root(here), call.here(), asked.exported(), append=True, distributes=False)
    plan = planned(selected, planner)
    reached, _ = bundle.reached(found, words)
    if reached.entry is not None:
        plan.origin = origin(reached.entry, found.root)
    plan = bundled.moved(plan, here)
    return run_or_show(plan, dry_run=call.dry_run, json=asked.json)


def _of_project() -> Level | None:
    """What the project around adds."""
    return bundle.project_level(NAME, locate())


def _refuse(unknown: Selection) -> int:
    """Say that a word is not a command, and where the commands are listed."""
    own = _of_project()
    names = [*unknown.level.commands, *(own.commands if own else ())]
    typed = unknown.level.typed()
    what = "option" if unknown.name.startswith("-") else "command"
    hint = did_you_mean(unknown.name, names, typed=f"{typed} {{}}")
    output.error(f"unknown {what}: {NAME} {unknown.name}", hint)
    output.see(f"{typed} <command> [ARGS]", typed)
    return 1


def _page(bundled: Level, own: Level | None) -> str:
    """The list of commands: those of the project, with their places, and those of flodl."""
    from fdl.base.layout import Row, terminal_width
    from fdl.base.tables import Page

    page = Page(output.palette(sys.stdout), terminal_width(sys.stdout))
    page.title(bundled.typed(), bundled.description)
    page.usage(bundled.typed("<command>", "[ARGS]"))
    if own is not None:
        page.table("Commands of this project", [_row(own, name) for name in own.commands])
    taken = own.commands if own else {}
    page.table(
        "Commands" if own is None else "Commands of flodl",
        [_row(bundled, name, placed=False) for name in bundled.commands if name not in taken],
    )
    page.table("Options", [Row("-h, --help", "Show the page of the command named so far")])
    return page.render()


def _row(level: Level, name: str, *, placed: bool = True) -> Row:
    from fdl.base.layout import Row

    spec = level.commands[name]
    return Row(
        name, spec.text("description") or "", f"({origin(spec, level.root)})" if placed else ""
    )
