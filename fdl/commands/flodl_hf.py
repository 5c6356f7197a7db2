"""``fdl flodl-hf``: models of HuggingFace, converted, exported and checked.

The commands are a program of flodl with a manifest of its own. A project that has a command of
this name too adds to them, and its own are stronger.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl import output
from fdl.commands import bundle
from fdl.commands.module import carry_out, root
from fdl.commands.verb import Call, Program, group

if TYPE_CHECKING:
    from fdl.dispatch.walk import Level, Unknown
    from fdl.help.layout import Row

verbs = group()

NAME = "flodl-hf"


@verbs.command("flodl-hf", cls=Program)
def flodl_hf(
    ctx: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="A command with its arguments; without, list the commands"),
    ] = None,
) -> int:
    """Convert, export, check and try models of Hugging Face.

    Returns:
        The exit code of the command; 0 for a page that was asked for; 1 for an unknown command.

    Raises:
        FdlError: A manifest is broken, the arguments do not fit, or Python cannot be started.
    """
    from fdl.dispatch.planner import Planner
    from fdl.dispatch.walk import Help, Refresh, resolve
    from fdl.manifest import origin
    from fdl.plan import Plan

    call: Call = ctx.obj
    found = bundle.level(NAME, call.here().variables)
    if found is None:
        raise bundle.not_installed()
    words = arguments or []
    here = str(Path.cwd())
    planner = Planner(
        root(here), call.here(), call.invocation.exported(), append=True, distributes=False
    )
    outcome = resolve(
        found,
        words,
        help_wanted=call.invocation.help,
        help_word=call.invocation.help_word,
        load=bundle.load,
        planner=planner,
    )
    if isinstance(outcome, Plan):
        reached, _ = bundle.reached(found, words)
        if reached.entry is not None:
            outcome.origin = origin(reached.entry, found.root)
        plan = bundle.moved(outcome, here)
        return carry_out(plan, dry_run=call.dry_run, json=call.invocation.json)
    if isinstance(outcome, Refresh):
        from fdl.commands.schema import refresh_one

        return refresh_one(outcome.level, call.here(), dry_run=call.dry_run)
    if isinstance(outcome, Help) and outcome.level is not found:
        return bundle.show(outcome, call.here())
    if isinstance(outcome, Help):
        output.write(sys.stdout, _page(found, _of_project()))
        return 0
    return _refuse(outcome)


def _of_project() -> Level | None:
    """What the project around adds."""
    from fdl.project import locate

    return bundle.project_level(NAME, locate())


def _refuse(unknown: Unknown) -> int:
    """Say that a word is not a command, and where the commands are listed."""
    from fdl.suggest import nearest

    own = _of_project()
    names = [*unknown.level.commands, *(own.commands if own else ())]
    close = nearest(unknown.token, names)
    typed = unknown.level.typed()
    what = "option" if unknown.token.startswith("-") else "command"
    output.error(
        f"unknown {what}: {NAME} {unknown.token}",
        f"did you mean `{typed} {close}`?" if close else "",
    )
    output.see(f"{typed} <command> [ARGS]", typed)
    return 1


def _page(bundled: Level, own: Level | None) -> str:
    """The list of commands: those of the project, with their places, and those of flodl."""
    from fdl.help.drawn import Page
    from fdl.help.layout import Row, terminal_width

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
    from fdl.help.layout import Row
    from fdl.manifest import origin

    spec = level.commands[name]
    return Row(
        name, spec.text("description") or "", f"({origin(spec, level.root)})" if placed else ""
    )
