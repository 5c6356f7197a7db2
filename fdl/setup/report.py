"""Text of a setup: the machine, and the planned steps."""

from __future__ import annotations

from collections.abc import Iterator

from fdl.hardware import Gpu
from fdl.output import Palette
from fdl.setup.facts import Facts
from fdl.setup.plan import Plan

_KEY = 10
_GIB = 1 << 30


def machine(facts: Facts, palette: Palette) -> str:
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
        rows.append(("GPU", "none found"))
    elif facts.nvidia.driver:
        rows.append(("Driver", facts.nvidia.driver))
    rows.append(("libtorch", facts.active.id if facts.active else "none in use"))
    if facts.project:
        rows.append(("Project", str(facts.project.root)))
    return "".join(f"{palette.bold(f'{key:<{_KEY}}')}{text}\n" for key, text in rows)


def steps(plan: Plan, title: str, palette: Palette) -> str:
    """The steps, as the equivalent commands."""
    lines = [palette.bold(title)] if plan.steps else [palette.bold("Nothing is left to do.")]
    lines += [f"  {palette.cyan(step.typed)}" for step in plan.steps]
    return "".join(f"{line}\n" for line in lines)


def following(plan: Plan, palette: Palette) -> str:
    """The commands to run next."""
    wide = max(len(typed) for typed, _ in plan.next)
    lines = [
        f"  {palette.cyan(typed)}{' ' * (wide - len(typed))}  {palette.dim(f'# {about}')}"
        for typed, about in plan.next
    ]
    return "\n".join([palette.bold("Next:"), *lines]) + "\n"


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
