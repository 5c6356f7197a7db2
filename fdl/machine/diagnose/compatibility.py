"""Decide whether a libtorch variant serves the GPUs, and which one would."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from fdl.base.errors import FdlError
from fdl.base.hardware import Gpu, Nvidia
from fdl.libtorch import catalog
from fdl.libtorch.active import Variant
from fdl.libtorch.architectures import Architecture, recorded

_INSTALL = "fdl libtorch install"

CodeKind = Literal["native", "jit", "missing"]


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
    return all(code_for(gpu, archs) != "missing" for gpu in nvidia.counted)


def remedy(nvidia: Nvidia, variant: Variant) -> str:
    """The command that installs a libtorch for every GPU that counts."""
    gpus = nvidia.counted
    try:
        choice = catalog.advise(variant.facts.get("torch", ""), gpus, nvidia.driver)
    except FdlError as refused:
        return refused.hint
    if choice.uncovered and choice.outdated:
        return "update the NVIDIA driver"
    if choice.uncovered or choice.artifact.cuda is None:
        return catalog.build_command(gpus)
    return catalog.install_command(choice.artifact)


def installation(nvidia: Nvidia) -> str:
    """The command that installs a libtorch on this machine, or what must be done before it."""
    if nvidia.failure:
        return f"repair the driver, then: {_INSTALL}; or at once: {_INSTALL} cpu"
    try:
        catalog.advise(catalog.default_version(), nvidia.counted, nvidia.driver)
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
