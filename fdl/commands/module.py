"""Starting a module of flodl with the project's Python: what needs torch is another program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fdl import output
from fdl.plan import Plan, Variable
from fdl.venv import project_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.app import Call


def interpreter(directory: str, variables: Mapping[str, str]) -> str:
    """The Python of the environment that a folder uses; the one that runs fdl where it has none.

    Args:
        directory: The folder.
        variables: The environment variables.
    """
    prefix = Path(project_prefix(directory, variables))
    if prefix == Path(sys.prefix):
        return sys.executable
    python = prefix / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return str(python) if python.is_file() else sys.executable


def start(call: Call, module: str, arguments: Sequence[str]) -> int:
    """Run a module in the working directory and wait for it; with ``--dry-run`` show it instead.

    Returns:
        Its exit code.

    Raises:
        FdlError: It cannot be started.
    """
    here = str(Path.cwd())
    top = root(here)
    plan = Plan(
        kind="entry",
        command=list(call.names),
        argv=[interpreter(top, call.here().variables), "-m", module, *arguments],
        typed=arguments,
        cwd=here,
        root=top,
        service=None,
        flags=[],
        preset=None,
        origin=f"fdl {' '.join(call.names)}",
    )
    plan.set(Variable("FDL_PROJECT_ROOT", top, "fdl"))
    return carry_out(call, plan)


def carry_out(call: Call, plan: Plan) -> int:
    """Execute a plan, or show it where only that was asked for; returns the exit code.

    Raises:
        FdlError: The program cannot be started.
    """
    if not call.dry_run:
        from fdl.run import execute

        return execute(plan)
    from fdl import dry_run

    if call.invocation.json:
        text = dry_run.as_json(plan)
    else:
        text = dry_run.as_text(plan, output.palette(sys.stdout))
    output.write(sys.stdout, text)
    return 0


def root(here: str) -> str:
    """The root of the project around the working directory; ``here`` without a project."""
    from fdl.project import locate

    found = locate()
    return found.directory if found else here
