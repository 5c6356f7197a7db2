"""Run the steps of a setup."""

from __future__ import annotations

from collections.abc import Mapping

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.hardware import Nvidia
from fdl.base.shell_words import join
from fdl.libtorch.install import install
from fdl.libtorch.request import Request, decide
from fdl.libtorch.store import Store
from fdl.machine.setup.plan import Plan as Setup
from fdl.machine.setup.steps import Activate, Install, Program
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
        service=None,
        flags=[],
        preset=None,
        origin="fdl setup",
    )
    plan.env = dict(environ)
    if step.images:
        inputs = compose_inputs(folder, environ)
        plan.env |= {name: value for name, (value, _) in inputs.items()}
    return plan
