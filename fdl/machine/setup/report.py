"""Text of a setup: the machine, and the planned steps."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fdl.base.hardware import Gpu
from fdl.base.tables import headed, lines, pairs, table
from fdl.machine.setup.facts import Facts
from fdl.machine.setup.plan import Plan

_GIB = 1 << 30


def machine(facts: Facts) -> Table:
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
        rows.append(("libtorch", facts.active.id if facts.active else "none in use"))
    if facts.project:
        rows.append(("Project", str(facts.project.root)))
    return pairs(rows, "bold")


def steps(plan: Plan, title: str) -> Group:
    """The steps, as the equivalent commands."""
    if not plan.steps:
        return Group(Text("Nothing is left to do.", style="bold"))
    return Group(
        Text(title, style="bold"), *(lines(f"  {step.typed}", "cyan") for step in plan.steps)
    )


def following(plan: Plan) -> Group:
    """The commands to run next."""
    rows = [(typed, f"# {about}") for typed, about in plan.next]
    return headed([("Next:", table(rows, styles=("cyan", "dim"), wrap=(1,)))])


def troubles(facts: Facts) -> Iterator[tuple[str, str]]:
    """The reasons why GPUs may be missing, each with its remedy."""
    for one in facts.nvidia.troubles:
        yield one.message, one.remedy


def _docker(facts: Facts) -> str:
    known = facts.system.docker
    return "this is a container" if known == "container" else known or "not installed"


def _python(facts: Facts) -> str:
    lacks = "" if facts.has_toolchain else "; cannot make virtual environments"
    return f"{facts.system.python} ({facts.system.executable}){lacks}"


def _gpu(gpu: Gpu) -> str:
    memory = f", {round(gpu.memory / _GIB)} GB" if gpu.memory else ""
    hidden = "" if gpu.visible else ", hidden"
    return f"[{gpu.index}] {gpu.name} -- {gpu.sm}{memory}{hidden}"
