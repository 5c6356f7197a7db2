"""One command on a node of a cluster, planned there: its GPUs and folders are those of the node."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the command line of ``sys.argv[1]``; its exit code."""
    from fdl.cli.entry import main as fdl
    from fdl.run.pool import masked_output

    asked = json.loads(sys.argv[1])
    with masked_output():
        return _of_sweep(asked) if asked["row"] else fdl(["-y", *asked["words"]])


def _of_sweep(asked: dict[str, Any]) -> int:
    from fdl.base import output
    from fdl.base.errors import FdlError

    try:
        return _run_alone(asked)
    except FdlError as problem:
        output.error(problem.message, problem.hint)
        return problem.exit_code


def _run_alone(asked: dict[str, Any]) -> int:
    """Run a command without those that it needs: they have run before the jobs of a sweep."""
    from fdl.base import output
    from fdl.cli.prepass import scan
    from fdl.manifest.select.environment import active_environment
    from fdl.manifest.select.project import Project, locate
    from fdl.plan.planner import here
    from fdl.plan.recorded import chosen
    from fdl.run.chain import steps_of
    from fdl.run.execute import start

    invocation, found = scan(asked["words"]), locate()
    if found is None:
        from fdl.base.errors import FdlError

        raise FdlError(f"there is no fdl.yml in {Path.cwd()} on this node, or above it")
    env = active_environment(invocation, found)
    project = Project(found, env, write_cache=True, copies=True)
    place = here().replaced(exported=invocation.exported(), append=invocation.append)
    plan = steps_of(project, invocation.tokens, place)[-1].plan
    output.warnings(project.untold())
    folder, varied = asked["row"]["folder"], asked["row"]["varied"]
    plan.record = chosen(plan, folder, varied) if asked["records"] else None
    return start(plan)[0]


if __name__ == "__main__":
    sys.exit(main())
