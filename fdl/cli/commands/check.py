"""``fdl check``: every manifest, overlay and option of a project, without running anything."""

from __future__ import annotations

import re
import sys
from itertools import islice
from typing import TYPE_CHECKING

from fdl.base import output
from fdl.base.errors import FdlError, SelectionError, UsageError
from fdl.base.tables import table
from fdl.base.units import counted
from fdl.cli.commands.verb import Context, Group, Verb
from fdl.manifest.builtins import RESERVED
from fdl.manifest.layers import environments
from fdl.manifest.node import relative
from fdl.manifest.select.project import Project
from fdl.manifest.select.walk import BROKEN, survey
from fdl.plan.command import plan_of
from fdl.programs.schema import known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.cli.commands.verb import Call

verbs = Group()

_PLACE = re.compile(r"\S+:\d+:\d+: ")

# Folders that name each other in many ways multiply.
_LIMIT = 10_000


@verbs.command("check", cls=Verb)
def check(ctx: Context) -> int:
    """Check manifests, overlays and the options of every command. Nothing runs.

    It checks every environment, or the one of --env. What is known of a program's options comes
    from its source, or from an earlier answer of the program.

    Returns:
        0, or 1 if there is a mistake.

    Raises:
        FdlError: There is no project, or it has no overlay for the environment.
    """
    project = ctx.obj.project()
    report = _Report(ctx.obj, project.directory)
    names = [project.env]
    if project.env is None:
        names += sorted({*environments(project.directory), *project.nested()})
    for env in names:
        report.check(Project(project.found, env))
    report.draw()
    return 1 if report.mistakes else 0


class _Report:
    """What was checked, and what is wrong.

    Attributes:
        mistakes: The places of the errors, or their texts.
    """

    def __init__(self, call: Call, root: str) -> None:
        self._call = call
        self._root = root
        self._files: dict[str, set[Sequence[str]]] = {}
        self._options: dict[str, set[str]] = {}
        self._commands: set[Sequence[str]] = set()
        self.mistakes: set[str] = set()

    def check(self, project: Project) -> None:
        """Plan every command of a project under its environment."""
        try:
            entries = list(islice(survey(project.level(), project.child, RESERVED), _LIMIT))
        except FdlError as problem:
            self._add(problem)
            return
        for file in project.root.layers:
            self._files.setdefault(file, set())
        for entry in entries:
            if entry.kind == BROKEN:
                self._add(FdlError(entry.reason))
                continue
            try:
                self._plan(project, entry.names)
            except (SelectionError, UsageError):
                # The environment is not for this command, or the command needs arguments.
                continue
            except FdlError as problem:
                self._add(problem)

    def _plan(self, project: Project, names: Sequence[str]) -> None:
        selected = project.select(names)
        layers = selected.level.manifest.layers
        for file in layers:
            self._files.setdefault(file, set())
        if not selected.runs:
            return
        # The command is checked before an argument that it needs is missed.
        self._commands.add(tuple(names))
        for file in layers:
            self._files[file].add(tuple(names))
        schema = known(selected.level)
        if schema is not None:
            for file in layers:
                self._options.setdefault(file, set()).update(
                    one.display for one in schema.parameters
                )
        plan_of(selected, project, self._call.here())

    def _add(self, problem: FdlError) -> None:
        # Several commands and environments find the same mistake.
        place = _PLACE.match(problem.message)
        key = place[0] if place else problem.message
        if key not in self.mistakes:
            self.mistakes.add(key)
            output.error(problem.message, problem.hint)

    def draw(self) -> None:
        """Print a line for each file, and the number of mistakes."""
        rows = [
            (relative(file, self._root), self._said(file, names))
            for file, names in self._files.items()
        ]
        text = output.drawn(table(rows, styles=("cyan", ""))) if rows else ""
        found = counted(len(self.mistakes), "mistake") if self.mistakes else "no mistakes"
        files = counted(len(rows), "file")
        commands = counted(len(self._commands), "command")
        output.write(sys.stdout, f"{text}{files}, {commands}: {found}\n")

    def _said(self, file: str, names: set[Sequence[str]]) -> str:
        options = self._options.get(file)
        more = f", {counted(len(options), 'option')} known" if options else ""
        return counted(len(names), "command") + more
