"""The mark of a job's processes, and the errors of a program that does not start."""

# pathlib would add to the start of a command.
# ruff: noqa: PTH110, PTH112, PTH118, PTH120, PTH208
from __future__ import annotations

import os
import time

from fdl.base.errors import FdlError
from fdl.manifest.node import relative

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.plan.value import Plan


JOB_VARIABLE = "FDL_JOB"
"""Marks the processes of a job: one part for each `fdl` around it, joined by ``/``."""


def marked(variables: dict[str, str]) -> str:
    """Add a new mark to the variables of a job, and return it: it finds lost processes again."""
    own = f"{os.getpid()}.{time.time_ns()}"
    outer = variables.get(JOB_VARIABLE)
    variables[JOB_VARIABLE] = f"{outer}/{own}" if outer else own
    return variables[JOB_VARIABLE]


def cannot_start(plan: Plan, reason: str) -> FdlError:
    """The error for a program that does not start, with the remedy for the usual causes."""
    from fdl.plan.redaction import redacted

    name = redacted(plan).launch[0]
    if plan.service:
        hint = "install Docker, or drop `docker:` from the manifest to run on this machine"
    elif os.path.dirname(name):
        hint = f"the path is taken from {plan.cwd}; is the file there and executable?"
    else:
        hint = "install it, or activate the environment that has it"
    return FdlError(f"{plan.origin}: cannot start `{name}`: {reason}", hint=hint)


def require_script(plan: Plan) -> None:
    """Refuse a Python program whose file does not exist.

    Raises:
        FdlError: The message names the folder, and the hint the nearest file in it.
    """
    name = script(plan)
    file = os.path.join(plan.cwd, name)
    if not name or os.path.exists(file) or not os.path.isdir(plan.cwd):
        return
    from fdl.base.suggest import did_you_mean

    folder, inside = os.path.dirname(file), os.path.dirname(name)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    programs = [os.path.join(inside, name) for name in names if name.endswith(".py")]
    start = relative(plan.cwd, plan.root)
    where = "the folder of the project" if start in ("", ".") else f"{start}/"
    raise FdlError(
        f"{plan.origin}: there is no {name} in {where}",
        hint=did_you_mean(name, programs, "create it, or correct `entry`"),
    )


def script(plan: Plan) -> str:
    """The file of a Python program as its entry names it; empty for any other program."""
    if plan.ranks is not None:
        return next((word for word in plan.argv[2:] if word.endswith(".py")), "")
    from fdl.plan.torchrun import read

    program = read(plan.argv)
    return program.target if program and not program.module else ""


def too_long(plan: Plan, variables: dict[str, str]) -> FdlError:
    """The error for arguments that are longer than the system takes."""
    words = [len(os.fsencode(word)) + 1 for word in plan.launch]
    around = sum(len(os.fsencode(name + value)) + 2 for name, value in variables.items())
    # Linux limits one argument to 32 pages; `getconf ARG_MAX` is the limit of everything.
    one = 32 * os.sysconf("SC_PAGE_SIZE")
    if max(words) > one:
        measured = f"one argument has {max(words)} bytes, and the limit is {one}"
    else:
        limit = os.sysconf("SC_ARG_MAX")
        measured = (
            f"the arguments have {sum(words)} bytes and the environment {around}, "
            f"and the limit is {limit} together"
        )
    problem = cannot_start(plan, f"Argument list too long: {measured}")
    problem.hint = "write the values to a file, and pass the name of the file"
    return problem


def name_of(number: int) -> str:
    """The name of a signal: ``SIGTERM``."""
    from signal import Signals

    return Signals(number).name


def deliver(pid: int, number: int) -> None:
    """Send a signal to one process, if it still exists and belongs to this user."""
    try:
        os.kill(pid, number)
    except OSError:
        return
