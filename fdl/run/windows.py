"""Running a child in the foreground on Windows."""

# The paths of a Plan are strings.
# ruff: noqa: PTH112
from __future__ import annotations

import os
import signal
import subprocess

from fdl.base.errors import FdlError
from fdl.plan.value import Plan
from fdl.run.program import cannot_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.run.record import RunRecord


def run(plan: Plan, record: RunRecord | None = None) -> tuple[int, int]:  # noqa: ARG001
    """Run ``plan.launch``.

    Returns:
        The exit code, 130 after a second Ctrl-C. And the signal that asked fdl to end meanwhile, 0
        for none.

    Raises:
        FdlError: The program cannot be started.
    """
    command: list[str] | str = plan.launch
    if plan.launch is plan.argv and plan.kind == "run":
        # cmd.exe does not parse its script as a C program would, so it gets the text unchanged.
        command = f'cmd /S /C "{plan.argv[-1]}"'
    if not os.path.isdir(plan.cwd):
        raise FdlError(f"{plan.origin}: {plan.cwd}: no such folder")
    try:
        child = subprocess.Popen(command, cwd=plan.cwd, env={**os.environ, **plan.env})
    except OSError as problem:
        raise cannot_start(plan, problem.strerror or str(problem)) from None
    try:
        return child.wait(), 0
    # The console sends Ctrl-C to the child too, and the child decides how it ends.
    except KeyboardInterrupt:
        return _wait_again(child), signal.SIGINT


def _wait_again(child: subprocess.Popen[bytes]) -> int:
    try:
        return child.wait()
    except KeyboardInterrupt:
        # Kill its children too: killing only `cmd` would leave them running.
        kill = ["taskkill", "/T", "/F", "/PID", str(child.pid)]
        subprocess.run(kill, capture_output=True, check=False)
        child.wait()
        return 130
