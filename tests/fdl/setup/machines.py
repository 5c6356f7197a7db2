"""Machines and answers to plan for."""

from __future__ import annotations

from pathlib import Path

from fdl.base.hardware import Gpu, Nvidia, System
from fdl.base.terminal import Questions
from fdl.libtorch.active import Variant
from fdl.libtorch.catalog import artifacts
from fdl.libtorch.store import Store
from fdl.machine.facts import Environment, Stock
from fdl.machine.setup_plan import ProjectFacts, SetupFacts

TORCH = "2.10.0"
ROOT = Path("/home/me/project")


class Typed(Questions):
    """A person who types these lines, one after the other."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.on = True
        self.left = list(lines)

    def _ask(self, _prompt: str) -> str:
        return self.left.pop(0)


NOBODY = Questions(on=False)


def cards(*capabilities: str) -> tuple[Gpu, ...]:
    found = [tuple(map(int, one.split("."))) for one in capabilities]
    return tuple(Gpu(i, f"GPU {one[0]}.{one[1]}", one) for i, one in enumerate(found))


def variant(id: str, **facts: str) -> Variant:
    return Variant(id, f"{ROOT}/libtorch/{id}", facts)


CPU = variant("precompiled/cpu", cuda="none", torch=TORCH, archs="cpu")
CU128 = variant("precompiled/cu128", cuda="12.8", torch=TORCH, archs="7.0 7.5 8.0 8.6")
BUILD = variant("builds/sm61-sm120", cuda="12.8", torch=TORCH, archs="6.1 12.0")


def machine(
    *capabilities: str,
    installed: tuple[Variant, ...] = (),
    active: Variant | None = None,
    driver: str = "",
    docker: str = "",
    project: ProjectFacts | None = None,
    platform: str = "linux-x86_64",
    needs_libtorch: bool = True,
    **more: object,
) -> SetupFacts:
    """A machine with these GPUs."""
    return SetupFacts(
        stock=Stock(
            Store(ROOT, "project" if project else "global"),
            installed,
            active=active,
            needed_by="libtorch" if needs_libtorch else "",
        ),
        system=System(
            "Linux", "A processor", 8, 16 << 30, docker=docker, tools=more.pop("tools", {})
        ),
        nvidia=Nvidia(cards(*capabilities), driver=driver),
        environment=Environment("python", "", None),
        archives=tuple(artifacts(TORCH, platform)),
        project=project,
        **more,
    )
