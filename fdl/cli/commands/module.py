"""Starting a module of flodl with the project's Python: what needs torch is another program."""

from __future__ import annotations

import sys
from pathlib import Path

from fdl.base import output
from fdl.base.venv import interpreter
from fdl.manifest.node import Variable
from fdl.manifest.select.project import locate
from fdl.plan.value import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.cli.commands.verb import Call


def start(
    call: Call, name: str, module: str, arguments: Sequence[str], *, dry_run: bool = False
) -> int:
    """Run a module in the working directory and wait for it, or show what would run.

    Args:
        call: The call of the built-in command.
        name: The words that name it.
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
        command=name.split(),
        argv=[interpreter(top, call.here().variables), "-m", module, *arguments],
        typed=arguments,
        cwd=here,
        root=top,
        service=None,
        flags=[],
        preset=None,
        origin=f"fdl {name}",
    )
    plan.set(Variable("FDL_PROJECT_ROOT", top, "fdl"))
    return run_or_show(plan, dry_run=dry_run, json=call.invocation.json)


def run_or_show(plan: Plan, *, dry_run: bool, json: bool) -> int:
    """Execute a plan, or show it as text or JSON; returns the exit code.

    Raises:
        FdlError: The program cannot be started.
    """
    if not dry_run:
        from fdl.run.execute import execute

        return execute(plan)
    from fdl.plan.dry_run import as_json, as_text

    text = as_json(plan) if json else as_text(plan, output.palette(sys.stdout))
    output.write(sys.stdout, text)
    return 0


def root(here: str) -> str:
    """The root of the project around the working directory; ``here`` without a project."""
    found = locate()
    return found.directory if found else here
