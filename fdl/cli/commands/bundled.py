"""The pages and plans of a built-in command that is a program with a manifest of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.layout import terminal_width
from fdl.cli.help import render
from fdl.manifest.select.project import Project
from fdl.plan.planner import Host, hand_down
from fdl.plan.probe import learn
from fdl.plan.probe.question import LIMIT_VARIABLE

if TYPE_CHECKING:
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level
    from fdl.plan.value import Plan
    from fdl.programs.parameters.contract import Schema

_PATIENCE_SECONDS = "60"


def not_installed() -> FdlError:
    """The error for a program that is not there to be asked."""
    return FdlError(
        "flodl is not installed where fdl looks for it", hint='pip install "flodl[train]"'
    )


def moved(plan: Plan, folder: str) -> Plan:
    """A plan of a bundle, started in a folder and not where the manifest lies."""
    plan.cwd = folder
    hand_down(plan)
    return plan


def show(page: Selection, host: Host) -> int:
    """Print one help page of a bundle.

    Returns:
        0.
    """
    # These programs are known to answer, though not before they have imported torch.
    variables = {LIMIT_VARIABLE: _PATIENCE_SECONDS, **host.variables}
    patient = Host(variables, host.in_container, host.terminal)

    def ask(level: Level) -> Schema | None:
        return learn(level, patient)

    project = Project(page.level.manifest.found)
    width = terminal_width(sys.stdout)
    output.write(sys.stdout, render(page, project, output.palette(sys.stdout), width, ask))
    return 0
