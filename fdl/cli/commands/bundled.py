"""``fdl ddp-bench`` and ``fdl flodl-hf``: programs of flodl that have manifests of their own.

Their presets, help and completion are those of any other command. What needs torch is another
program, in the project's Python. A project that has a command `flodl-hf` too adds to its commands,
and its own are stronger.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.layout import Row, terminal_width
from fdl.base.suggest import did_you_mean
from fdl.base.venv import interpreter
from fdl.cli.commands.schema import refresh_one
from fdl.cli.commands.verb import Call, Context, Group, Program
from fdl.cli.help import print_page
from fdl.manifest.node import Variable, origin
from fdl.manifest.select import bundle
from fdl.manifest.select.command import behind, select
from fdl.manifest.select.project import Project, locate
from fdl.plan.command import planned
from fdl.plan.dry_run import as_json, as_text
from fdl.plan.planner import Host, Planner, hand_down
from fdl.plan.probe import learn
from fdl.plan.probe.question import LIMIT_VARIABLE
from fdl.plan.value import Plan
from fdl.run.execute import start as start_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level
    from fdl.programs.parameters.contract import Schema

verbs = Group()

BENCH, HF = "ddp-bench", "flodl-hf"

_PATIENCE_SECONDS = "60"


@verbs.command(BENCH, cls=Program)
def ddp_bench(
    ctx: Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="A preset, and options of the benchmark"),
    ] = None,
) -> int:
    """Compare the ways to train on several GPUs.

    Returns:
        Its exit code.

    Raises:
        FdlError: The manifest of the bench is broken, or Python cannot be started.
    """
    call = ctx.obj
    words = arguments or []
    found = bundle.level(BENCH, call.here().variables)
    if found is None and not call.invocation.help:
        return start(call, BENCH, bundle.MODULES[BENCH], words, dry_run=call.dry_run)
    # The bench starts its ranks itself: it compares launches of different kinds in one call.
    return _run(call, _installed(found), words, str(Path.cwd()))


@verbs.command(HF, cls=Program)
def flodl_hf(
    ctx: Context,
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
    found = _installed(bundle.level(HF, ctx.obj.here().variables))
    return _run(ctx.obj, found, arguments or [], root(str(Path.cwd())))


def _installed(found: Level | None) -> Level:
    if found is None:
        raise FdlError(
            "flodl is not installed where fdl looks for it", hint='pip install "flodl[train]"'
        )
    return found


def _run(call: Call, bundled: Level, words: Sequence[str], project_root: str) -> int:
    """Select, plan and run, as for any other command; started here, not where the manifest lies."""
    asked, place = call.invocation, call.here()
    choose = behind if bundled.entry else select
    selected = choose(
        bundled, words, bundle.load, help_wanted=asked.help, help_word=asked.help_word
    )
    if not selected.known:
        return _refuse(selected)
    if selected.refreshes:
        return refresh_one(selected.level, place, dry_run=call.dry_run)
    if selected.page and selected.level is bundled and not bundled.entry:
        output.write(sys.stdout, _page(bundled, _of_project()))
        return 0
    if selected.page:
        return _show(selected, place)
    plan = planned(selected, Planner(project_root, place, distributes=False))
    if selected.level.entry is not None:
        plan.origin = origin(selected.level.entry, bundled.root)
    plan.cwd = str(Path.cwd())
    hand_down(plan)
    return _run_or_show(plan, dry_run=call.dry_run, json=asked.json)


def start(
    call: Call, name: str, module: str, arguments: Sequence[str], *, dry_run: bool = False
) -> int:
    """Run a module in the working directory and wait for it, or show what would run.

    Args:
        call: The call of the built-in command.
        name: The word that names it.
        module: The module to run.
        arguments: What it gets.
        dry_run: Whether to show the plan and start nothing.

    Returns:
        Its exit code.

    Raises:
        FdlError: It cannot be started.
    """
    here = str(Path.cwd())
    top = root(here)
    plan = Plan(
        kind="entry",
        command=[name],
        argv=[interpreter(top, call.here().variables), "-m", module, *arguments],
        typed=arguments,
        cwd=here,
        root=top,
        origin=f"fdl {name}",
    )
    plan.set(Variable("FDL_PROJECT_ROOT", top, "fdl"))
    return _run_or_show(plan, dry_run=dry_run, json=call.invocation.json)


def _run_or_show(plan: Plan, *, dry_run: bool, json: bool) -> int:
    """Execute a plan, or show it as text or JSON; returns the exit code.

    Raises:
        FdlError: The program cannot be started.
    """
    if not dry_run:
        return start_plan(plan)[0]
    text = as_json(plan) if json else as_text(plan, output.palette(sys.stdout))
    output.write(sys.stdout, text)
    return 0


def root(here: str) -> str:
    """The root of the project around the working directory; ``here`` without a project."""
    found = locate()
    return found.directory if found else here


def _show(page: Selection, host: Host) -> int:
    """Print one help page of a bundle."""
    # These programs are known to answer, though not before they have imported torch.
    variables = {LIMIT_VARIABLE: _PATIENCE_SECONDS, **host.variables}

    def ask(level: Level) -> Schema | None:
        return learn(level, host.replaced(variables=variables))

    print_page(page, Project(page.level.manifest.found), ask)
    return 0


def _of_project() -> Level | None:
    """What the project around adds."""
    return bundle.project_level(HF, locate())


def _refuse(unknown: Selection) -> int:
    """Say that a word is not a command, and where the commands are listed."""
    own = _of_project()
    names = [*unknown.level.commands, *(own.commands if own else ())]
    typed = unknown.level.typed()
    what = "option" if unknown.name.startswith("-") else "command"
    hint = did_you_mean(unknown.name, names, typed=f"{typed} {{}}")
    output.error(f"unknown {what}: {HF} {unknown.name}", hint)
    output.see(f"{typed} <command> [ARGS]", typed)
    return 1


def _page(bundled: Level, own: Level | None) -> str:
    """The list of commands: those of the project, with their places, and those of flodl."""
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
    spec = level.commands[name]
    return Row(
        name, spec.text("description") or "", f"({origin(spec, level.root)})" if placed else ""
    )
