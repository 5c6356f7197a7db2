"""Decide whether a libtorch variant serves the GPUs, and which one would."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from fdl.errors import FdlError
from fdl.hardware import Gpu, Nvidia
from fdl.libtorch import catalog
from fdl.libtorch.active import Variant
from fdl.libtorch.architectures import Architecture, recorded

_INSTALL = "fdl libtorch install"

CodeKind = Literal["native", "jit", "missing"]


def counted(nvidia: Nvidia) -> tuple[Gpu, ...]:
    """The GPUs that a variant must serve: the visible ones, or all if none is visible."""
    return nvidia.visible or nvidia.gpus


def architectures(variant: Variant | None) -> tuple[Architecture, ...] | None:
    """The architectures a variant has code for, none for CPU; None if the variant gives none."""
    said = variant.facts.get("archs", "") if variant else ""
    if said == catalog.CPU:
        return ()
    return recorded(said) or None


def code_for(gpu: Gpu, archs: Sequence[Architecture]) -> CodeKind:
    """How code of these architectures runs on a GPU."""
    if any(one.is_native_on(gpu.capability) for one in archs):
        return "native"
    return "jit" if any(one.is_jit_on(gpu.capability) for one in archs) else "missing"


def is_served(nvidia: Nvidia, archs: Sequence[Architecture]) -> bool:
    """Whether every GPU that counts runs code of these architectures."""
    return all(code_for(gpu, archs) != "missing" for gpu in counted(nvidia))


def remedy(nvidia: Nvidia, variant: Variant) -> str:
    """The command that installs a libtorch for every GPU that counts."""
    gpus = counted(nvidia)
    torch = variant.facts.get("torch", "").partition("+")[0]
    known = torch in catalog.versions()
    version = torch if known else catalog.default_version()
    try:
        available = catalog.artifacts(version, catalog.this_platform())
        choice = catalog.choose(gpus, available, nvidia.driver)
    except FdlError as refused:
        return refused.hint
    if choice.uncovered and choice.outdated:
        return "update the NVIDIA driver"
    if choice.uncovered or choice.artifact.cuda is None:
        wanted = sorted({gpu.capability for gpu in gpus})
        archs = ";".join(f"{major}.{minor}" for major, minor in wanted)
        return f'fdl libtorch build --archs "{archs}"'
    usual = version == catalog.default_version()
    name = choice.artifact.variant
    return f"fdl libtorch install {name}" + ("" if usual else f" --torch {version}")


def installation(nvidia: Nvidia) -> str:
    """The command that installs a libtorch on this machine, or what must be done before it."""
    if nvidia.failure:
        return f"repair the driver, then: {_INSTALL}; or at once: {_INSTALL} cpu"
    try:
        available = catalog.artifacts(catalog.default_version(), catalog.this_platform())
        catalog.choose(counted(nvidia), available, nvidia.driver)
    except FdlError as refused:
        return refused.hint
    return _INSTALL


def oldest_cuda() -> str:
    """The oldest CUDA version of the catalog."""
    known = (
        one.cuda
        for version in catalog.versions()
        for one in catalog.artifacts(version, "linux-x86_64")
        if one.cuda
    )
    return min(known, key=catalog.numbers)


def runs_under(nvidia: Nvidia, cuda: str, *, wsl: bool) -> bool:
    """Whether the driver is new enough for a CUDA version; in WSL2 it is that of Windows."""
    on = "windows" if wsl or sys.platform == "win32" else "linux"
    return catalog.runs_under(nvidia.driver, cuda, on)


def driver_floor(cuda: str, *, wsl: bool) -> str:
    """The oldest driver that runs a CUDA version; empty if unknown."""
    on = "windows" if wsl or sys.platform == "win32" else "linux"
    return catalog.driver_floor(cuda, on) or ""
