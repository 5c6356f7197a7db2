"""From a command line with ``--each`` to a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdl.base import output
from fdl.manifest.select.project import Project
from fdl.plan.planner import Host, here
from fdl.programs.schema import known
from fdl.run.sweeps.execute import begin
from fdl.run.sweeps.request import of_flags, take_flags

if TYPE_CHECKING:
    from fdl.cli.prepass import Invocation
    from fdl.manifest.discover import Found


def run(found: Found, env: str | None, invocation: Invocation, host: Host | None) -> int | None:
    """Begin the sweep that is typed; the exit code, or None if ``--each`` is the program's own.

    Raises:
        FdlError: The sweep cannot begin.
    """
    acts = not invocation.dry_run
    project = Project(found, env, executes=acts, write_cache=acts)
    words = [word for word in invocation.tokens if not word.startswith("-")]
    schema = known(project.descend(words)[0])
    declared = [
        one for option in (schema.options.values() if schema else ()) for one in option.spellings
    ]
    invocation.tokens = take_flags(invocation.tokens, invocation.work, declared)
    if not invocation.work.wants_sweep():
        return None
    output.warnings(project.untold())
    request = of_flags(invocation.tokens, invocation.work)
    return begin(project, request, invocation, host or here())
