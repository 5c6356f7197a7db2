"""Show and run the steps of a setup."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.hardware import Gpu, Nvidia
from fdl.base.shell_words import join
from fdl.base.tables import headed, lines, pairs, table
from fdl.libtorch.install import install
from fdl.libtorch.request import Request, decide
from fdl.libtorch.store import Store
from fdl.machine.setup_plan import Activate, Install, Plan as Setup, Program, SetupFacts
from fdl.plan.container import compose_inputs
from fdl.plan.value import Plan
from fdl.run.execute import start
from fdl.run.program import name_of


def execute(setup: Setup, store: Store, nvidia: Nvidia, environ: Mapping[str, str]) -> int:
    """Run every step and return how many optional ones failed; another failure ends the setup.

    Raises:
        FdlError: A step failed; the steps before it stay done.
    """
    failed = 0
    for step in setup.steps:
        output.note(f"$ {step.typed}")
        if isinstance(step, Install):
            _install(step, store, nvidia, environ)
        elif isinstance(step, Activate):
            store.activate(step.id)
        elif not _run(step, environ):
            failed += 1
    return failed


def _install(step: Install, store: Store, nvidia: Nvidia, environ: Mapping[str, str]) -> None:
    request = Request(step.variant, source=step.source)
    decision = decide(request, lambda: nvidia, store.root, environ)
    done = install(store, decision.source, activate=step.activate, environ=environ)
    if not done.fresh:
        output.note(f"{done.variant.id} is installed already")


def _run(step: Program, environ: Mapping[str, str]) -> bool:
    """Run a program with the terminal of this process; False if an optional one fails."""
    try:
        code, asked = start(_plan(step, environ))
    except FdlError as error:
        problem = error.message
    else:
        if asked:
            raise FdlError(
                f"`{step.typed}` received {name_of(asked)}, so no further step was run",
                hint="type the same command again: it continues with what is missing",
                exit_code=128 + asked,
            )
        if code == 0:
            return True
        problem = f"`{step.typed}` failed with exit code {code}"
    again = f"cd {join([str(step.cwd)])} && {step.typed}"
    if not step.optional:
        raise FdlError(problem, hint=f"its output is above; try again with: {again}")
    output.warning(f"{problem}; {step.consequence}", again)
    return False


def _plan(step: Program, environ: Mapping[str, str]) -> Plan:
    folder = str(step.cwd)
    plan = Plan(
        kind="run",
        command=["setup"],
        argv=list(step.argv),
        cwd=folder,
        root=folder,
        origin="fdl setup",
    )
    plan.env = dict(environ)
    if step.images:
        inputs = compose_inputs(folder, environ)
        plan.env |= {name: value for name, (value, _) in inputs.items()}
    return plan


_GIB = 1 << 30


def machine(facts: SetupFacts) -> Table:
    """The machine, as lines."""
    system = facts.system
    memory = f", {round(system.memory / _GIB)} GB of memory" if system.memory else ""
    rows = [
        ("System", f"{system.os}{' under Windows (WSL2)' if system.wsl else ''}"),
        ("CPU", f"{system.cpu}, {system.threads} threads{memory}"),
        ("Docker", _docker(facts)),
        ("Python", _python(facts)),
        *(("GPU", _gpu(gpu)) for gpu in facts.nvidia.gpus),
    ]
    if not facts.nvidia.gpus:
        rows.append(("GPU", "its driver fails" if facts.nvidia.failure else "none found"))
    elif facts.nvidia.driver:
        rows.append(("Driver", facts.nvidia.driver))
    if facts.needs_libtorch:
        rows.append(("libtorch", facts.stock.active.id if facts.stock.active else "none in use"))
    if facts.project:
        rows.append(("Project", str(facts.project.root)))
    return pairs(rows, "bold")


def steps(plan: Setup, title: str) -> Group:
    """The steps, as the equivalent commands."""
    if not plan.steps:
        return Group(Text("Nothing is left to do.", style="bold"))
    return Group(
        Text(title, style="bold"), *(lines(f"  {step.typed}", "cyan") for step in plan.steps)
    )


def following(plan: Setup) -> Group:
    """The commands to run next."""
    rows = [(typed, f"# {about}") for typed, about in plan.next]
    return headed([("Next:", table(rows, styles=("cyan", "dim"), wrap=(1,)))])


def _docker(facts: SetupFacts) -> str:
    known = facts.system.docker
    return "this is a container" if known == "container" else known or "not installed"


def _python(facts: SetupFacts) -> str:
    lacks = "" if facts.has_toolchain else "; cannot make virtual environments"
    return f"{facts.system.python} ({facts.system.executable}){lacks}"


def _gpu(gpu: Gpu) -> str:
    memory = f", {round(gpu.memory / _GIB)} GB" if gpu.memory else ""
    hidden = "" if gpu.visible else ", hidden"
    return f"[{gpu.index}] {gpu.name} -- {gpu.sm}{memory}{hidden}"
