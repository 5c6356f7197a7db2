"""One command on a node of a cluster or on a host: its GPUs and folders are those of the node.

python -m fdl.cli.batch_node '{"words": [...], "row": {...}, "records": true}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.signals import asked_by
from fdl.base.terminal import answer_yes
from fdl.cli.prepass import scan
from fdl.manifest.select.environment import active_environment
from fdl.manifest.select.project import Project, locate
from fdl.plan.planner import here
from fdl.plan.recorded import chosen
from fdl.plan.redaction import know_secrets
from fdl.run.chain import steps_of
from fdl.run.child import end_with
from fdl.run.execute import execute, start
from fdl.run.pool import masked_output
from fdl.run.step import Where


def main() -> int:
    """Run what the first argument names; the exit code is that of the command."""
    asked = json.loads(sys.argv[1])
    if parent := asked.get("parent"):
        end_with(parent)
    answer_yes()
    with masked_output():
        try:
            return _run(asked)
        except FdlError as problem:
            output.error(problem.message, problem.hint)
            return problem.exit_code
        except KeyboardInterrupt as stop:
            return 128 + asked_by(stop)


def _run(asked: dict[str, Any]) -> int:
    """Run a command; one of a sweep without those that it needs, which have run before the jobs."""
    invocation, found = scan(asked["words"]), locate()
    if found is None:
        raise FdlError(f"there is no fdl.yml in {Path.cwd()} on this node, or above it")
    env = active_environment(invocation, found)
    project = Project(found, env, writes_cache=True, copies=True)
    place = here(invocation.exported(), append=invocation.append)
    steps = steps_of(project, invocation.tokens, place)
    output.warnings(project.untold())
    for step in steps:
        know_secrets(step.plan)
    if asked["row"]:
        plan, row = steps[-1].plan, asked["row"]
        plan.record = chosen(plan, row["folder"], row["varied"]) if asked["records"] else None
        return start(plan)[0]
    return execute(steps, Where(forced=invocation.work.force, agreed=True))


if __name__ == "__main__":
    sys.exit(main())
