"""Find the problems in facts, without any other source."""

# A path object would raise an error if a folder may not be entered.
# ruff: noqa: PTH112, PTH118
from __future__ import annotations

import os
import re
from collections.abc import Iterator

from fdl.base.hardware.visibility import ORDER, VARIABLE
from fdl.libtorch.active import Variant
from fdl.machine.diagnose.codes import CODES
from fdl.machine.diagnose.compatibility import (
    architectures,
    code_for,
    driver_floor,
    installation,
    oldest_cuda,
    remedy,
    runs_under,
)
from fdl.machine.diagnose.report import Finding
from fdl.machine.diagnose.survey import Facts

_ORDER_OF_SEVERITY = ("error", "warning", "info")


def findings(facts: Facts) -> list[Finding]:
    """All findings: errors first, then by number."""
    found = [
        *_of_project(facts),
        *(_finding(one.kind, one.message, one.remedy) for one in facts.nvidia.troubles),
        *_of_visibility(facts),
        *_of_driver(facts),
        *_of_libtorch(facts),
        *_of_torch(facts),
        *_of_surroundings(facts),
    ]
    return sorted(found, key=lambda one: (_ORDER_OF_SEVERITY.index(one.severity), one.code))


def _finding(name: str, message: str, remedy: str = "") -> Finding:
    code = CODES[name]
    return Finding(
        code=code.id, name=name, severity=code.severity, message=message, remedy=remedy or None
    )


def _of_project(facts: Facts) -> Iterator[Finding]:
    if facts.manifest is not None:
        yield _finding("manifest-broken", facts.manifest.message, facts.manifest.hint)
    if facts.stock.obstacle:
        yield _finding(
            "store-unreadable",
            f"the libtorch variants cannot be read: {facts.stock.obstacle}: {facts.stock.reason}",
            f"ls -ld {facts.stock.obstacle}",
        )
    chosen = facts.environ.get("LIBTORCH", "")
    if not chosen:
        return
    if not os.path.isdir(os.path.join(chosen, "lib")):
        yield _finding(
            "libtorch-variable-broken",
            f"LIBTORCH={chosen} names a folder without lib/, and programs look there",
            "unset LIBTORCH",
        )
    elif facts.stock.active and os.path.realpath(chosen) != os.path.realpath(
        facts.stock.active.path
    ):
        yield _finding(
            "libtorch-overridden",
            f"programs use LIBTORCH={chosen}, not the active variant {facts.stock.active.id}",
            "unset LIBTORCH",
        )


def _of_visibility(facts: Facts) -> Iterator[Finding]:
    nvidia = facts.nvidia
    if nvidia.restriction is None or not nvidia.gpus:
        return
    hidden = [gpu for gpu in nvidia.gpus if not gpu.visible]
    setting = f"{VARIABLE}={nvidia.restriction}"
    if len(hidden) == len(nvidia.gpus):
        yield _finding("all-gpus-hidden", f"{setting} hides every GPU", f"unset {VARIABLE}")
    elif hidden:
        names = ", ".join(f"[{gpu.index}] {gpu.name}" for gpu in hidden)
        yield _finding("gpus-hidden", f"{setting} hides {names}")
    mixed = len({(gpu.name, gpu.capability) for gpu in nvidia.gpus}) > 1
    along_the_bus = facts.environ.get(ORDER) == "PCI_BUS_ID"
    if mixed and re.match(r"\s*\d", nvidia.restriction) and not along_the_bus:
        yield _finding(
            "gpu-order",
            f"the indices in {setting} count the fastest GPU first, while this report and "
            "nvidia-smi count along the PCI bus",
            f"export {ORDER}=PCI_BUS_ID",
        )


def _of_driver(facts: Facts) -> Iterator[Finding]:
    """A driver that runs no CUDA of the catalog; what is in use has findings of its own."""
    active, torch = facts.stock.active, facts.environment.torch
    if not facts.nvidia.counted or (active and active.cuda) or (torch and torch.cuda):
        return
    cuda = oldest_cuda()
    if not runs_under(facts.nvidia, cuda, wsl=facts.system.wsl):
        newest = f" (CUDA {facts.nvidia.cuda})" if facts.nvidia.cuda else ""
        yield _finding(
            "driver-without-pytorch",
            f"the NVIDIA driver {facts.nvidia.driver}{newest} is too old for every CUDA build of "
            f"PyTorch; the oldest needs CUDA {cuda}",
            _update(facts, cuda),
        )


def _update(facts: Facts, cuda: str) -> str:
    floor = driver_floor(cuda, wsl=facts.system.wsl)
    place = " in Windows" if facts.system.wsl else ""
    place = place or (" of the host" if facts.system.container else "")
    return f"update the NVIDIA driver{place} to {floor} or newer"


def _of_libtorch(facts: Facts) -> Iterator[Finding]:
    variant = facts.stock.active
    if facts.stock.obstacle:
        return
    if variant is None:
        others = [one.id for one in facts.stock.installed]
        cure = f"fdl libtorch activate {others[0]}" if others else installation(facts.nvidia)
        if facts.stock.named:
            place = facts.stock.store.folder / ".active"
            yield _finding(
                "active-variant-missing",
                f"{place} names `{facts.stock.named}`, which is not installed",
                cure,
            )
        elif facts.stock.needed_by:
            folder = facts.stock.store.folder
            reason = f"; {facts.stock.needed_by} needs one" if not os.path.lexists(folder) else ""
            yield _finding(
                "no-active-variant", f"no libtorch variant is active in {folder}{reason}", cure
            )
        return
    yield from _of_gpus(facts, variant)
    if variant.cuda and facts.nvidia.counted:
        yield from _of_driver_age(
            facts, variant.cuda, "driver-too-old", variant.id, remedy(facts.nvidia, variant)
        )


def _of_gpus(facts: Facts, variant: Variant) -> Iterator[Finding]:
    archs = architectures(variant)
    if archs is None:
        yield _finding(
            "architectures-unknown",
            f"{variant.path}/.arch does not say which GPUs {variant.id} has code for",
            "fdl libtorch check",
        )
        return
    made_for = " ".join(map(str, archs)) or "the processor alone"
    for gpu in facts.nvidia.counted:
        name = f"GPU {gpu.index} ({gpu.name}, {gpu.sm})"
        code = code_for(gpu, archs)
        if code == "missing":
            yield _finding(
                "gpu-uncovered",
                f"{variant.id} has no code for {name}; it is made for {made_for}",
                remedy(facts.nvidia, variant),
            )
        elif code == "jit":
            yield _finding(
                "gpu-jit",
                f"{variant.id} has no machine code for {name}: its PTX is compiled when it is "
                "loaded, so first starts are slow",
            )


def _of_torch(facts: Facts) -> Iterator[Finding]:
    torch = facts.environment.torch
    if torch is None or not facts.nvidia.counted:
        return
    if not torch.cuda and not runs_under(facts.nvidia, oldest_cuda(), wsl=facts.system.wsl):
        # No other torch could use the GPUs before the driver is updated, which is found above.
        return
    if not torch.cuda:
        yield _finding(
            "torch-without-cuda",
            f"torch {torch.version} of {facts.environment.executable} is built without CUDA, "
            "so it leaves the GPUs idle",
            "fdl setup",
        )
    else:
        name = f"torch {torch.version} of {facts.environment.executable}"
        yield from _of_driver_age(
            facts, torch.cuda, "torch-driver-too-old", name, _update(facts, torch.cuda)
        )


def _of_driver_age(facts: Facts, cuda: str, kind: str, who: str, cure: str) -> Iterator[Finding]:
    wsl = facts.system.wsl
    if not runs_under(facts.nvidia, cuda, wsl=wsl):
        yield _finding(
            kind,
            f"{who} needs CUDA {cuda} and with it driver {driver_floor(cuda, wsl=wsl)} or newer; "
            f"this one is {facts.nvidia.driver}",
            cure,
        )


def _of_surroundings(facts: Facts) -> Iterator[Finding]:
    if facts.system.wsl:
        yield _finding(
            "wsl", "this is Linux under Windows (WSL2): the NVIDIA driver is that of Windows, and "
            "none belongs into Linux"
        )  # fmt: skip
    if facts.system.container and not facts.nvidia.gpus:
        yield _finding(
            "container", "this is a container: it has the GPUs it was given when it was started"
        )
