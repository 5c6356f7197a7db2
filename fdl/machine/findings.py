"""Find the problems in facts, without any other source: their codes, their rules, their remedies.

Codes and names of findings never change their meaning.
"""

# ruff: noqa: PTH112, PTH118
from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fdl.base.errors import FdlError
from fdl.base.hardware import Gpu, Nvidia, System
from fdl.base.hardware.troubles import ORDER, VARIABLE
from fdl.libtorch import catalog
from fdl.libtorch.active import Variant
from fdl.libtorch.catalog import Architecture, recorded
from fdl.machine.facts import Facts
from fdl.machine.report import (
    Context,
    Cuda,
    Device,
    Finding,
    Installed,
    Libtorch,
    Machine,
    Python,
    Report,
    Torch,
)

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes:
        id: ``FDL301``; the first digit is the area, and a number is never used again.
        name: A word for the same.
        severity: ``error`` if something cannot work; then the exit code is 1. ``warning`` if
            something may work differently than the user expects. ``info`` for useful facts.
        meaning: One line for the reference.
    """

    id: str
    name: str
    severity: Severity
    meaning: str


_ALL: tuple[tuple[int, str, Severity, str], ...] = (
    (101, "manifest-broken", "error", "the project's manifest cannot be read"),
    (102, "store-unreadable", "error", "the folder of libtorch variants cannot be read"),
    (103, "libtorch-overridden", "warning", "`LIBTORCH` points elsewhere than to the "
     "active variant, and wins over it"),
    (104, "libtorch-variable-broken", "error", "`LIBTORCH` names a folder without libtorch"),
    (201, "driver-missing", "warning", "there is an NVIDIA GPU, but no NVIDIA driver"),
    (202, "driver-not-loaded", "error", "the driver's kernel module is not loaded"),
    (203, "driver-permission", "error", "this user may not use the driver"),
    (204, "driver-mismatch", "error", "the driver was updated, and the old one still runs"),
    (205, "driver-failure", "error", "the driver fails in another way"),
    (206, "driver-silent", "error", "the driver does not answer in time"),
    (207, "driver-outdated", "error", "the driver does not report what its GPUs can do"),
    (208, "library-missing", "error", "the driver's library cannot be loaded"),
    (209, "gpus-withheld", "error", "the driver runs but offers none of the GPUs"),
    (210, "gpu-lost", "error", "a GPU has fallen off the bus or needs a reset"),
    (211, "gpu-permission", "error", "this user may not use one of the GPUs"),
    (212, "gpu-power", "error", "a GPU's power cable is not connected"),
    (213, "gpu-failure", "error", "a GPU cannot be read for another reason"),
    (214, "mig-without-slices", "warning", "MIG mode is on, but the GPU has no slices"),
    (215, "container-without-gpus", "info", "the machine has a GPU, this container cannot use it"),
    (216, "driver-without-pytorch", "error", "the driver is too old for every CUDA build of "
     "PyTorch"),
    (220, "visibility-unknown-gpu", "warning", "an entry of `CUDA_VISIBLE_DEVICES` names no "
     "GPU"),
    (221, "visibility-repeated-gpu", "warning", "`CUDA_VISIBLE_DEVICES` names a GPU twice"),
    (222, "gpus-hidden", "info", "`CUDA_VISIBLE_DEVICES` hides some of the GPUs"),
    (223, "all-gpus-hidden", "warning", "`CUDA_VISIBLE_DEVICES` hides every GPU"),
    (224, "gpu-order", "warning", "indices in `CUDA_VISIBLE_DEVICES` may count other GPUs "
     "than `nvidia-smi` does"),
    (230, "wsl", "info", "this is Linux under Windows"),
    (231, "container", "info", "this is a container"),
    (301, "no-active-variant", "error", "no libtorch variant is active"),
    (302, "active-variant-missing", "error", "the active variant is not installed"),
    (303, "architectures-unknown", "warning", "the variant does not list its GPU architectures"),
    (304, "gpu-uncovered", "error", "the variant has no code that runs on a GPU"),
    (305, "gpu-jit", "info", "a GPU runs code that is compiled when it is loaded"),
    (306, "driver-too-old", "error", "the driver is too old for the variant's CUDA"),
    (401, "torch-without-cuda", "warning", "the project's torch cannot use the GPUs"),
    (402, "torch-driver-too-old", "error", "the driver is too old for the CUDA of torch"),
)  # fmt: skip

CODES = {
    name: Code(f"FDL{number}", name, severity, meaning) for number, name, severity, meaning in _ALL
}
"""Name -> the kind of finding."""


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


def _runs_under(facts: Facts, cuda: str) -> bool:
    """Whether the driver is new enough for a CUDA version."""
    return catalog.runs_under(facts.nvidia.driver, cuda, _system_of_driver(facts))


def _driver_floor(facts: Facts, cuda: str) -> str:
    """The oldest driver that runs a CUDA version; empty if unknown."""
    return catalog.driver_floor(cuda, _system_of_driver(facts)) or ""


def _system_of_driver(facts: Facts) -> str:
    """In WSL2 the driver is that of Windows."""
    return "windows" if facts.system.wsl or sys.platform == "win32" else "linux"


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


def not_chosen(found: list[Finding]) -> list[Finding]:
    """The findings about project and machine: ``fdl setup`` chooses libtorch and torch itself."""
    return [one for one in found if one.code < "FDL3" and one.severity != "info"]


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
    if not _runs_under(facts, cuda):
        newest = f" (CUDA {facts.nvidia.cuda})" if facts.nvidia.cuda else ""
        yield _finding(
            "driver-without-pytorch",
            f"the NVIDIA driver {facts.nvidia.driver}{newest} is too old for every CUDA build of "
            f"PyTorch; the oldest needs CUDA {cuda}",
            _update(facts, cuda),
        )


def _update(facts: Facts, cuda: str) -> str:
    floor = _driver_floor(facts, cuda)
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
    if not torch.cuda and not _runs_under(facts, oldest_cuda()):
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
    if not _runs_under(facts, cuda):
        yield _finding(
            kind,
            f"{who} needs CUDA {cuda} and with it driver {_driver_floor(facts, cuda)} or newer; "
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


def assemble(facts: Facts) -> Report:
    """The report on the gathered facts."""
    archs = architectures(facts.stock.active)
    devices = _devices(facts)
    torch = facts.environment.torch
    return Report(
        schema_version=1,
        context=Context(mode=facts.stock.store.scope, root=str(facts.stock.store.root)),
        system=_machine(facts.system),
        python=Python(
            version=facts.environment.version or None, executable=facts.environment.executable
        ),
        torch=Torch(version=torch.version, cuda=torch.cuda or None) if torch else None,
        gpus=devices,
        cuda=Cuda(
            driver=facts.nvidia.driver or None,
            version=facts.nvidia.cuda or None,
            source=facts.nvidia.source or None,
            visible_devices=facts.nvidia.restriction,
            devices=devices,
        ),
        libtorch=_libtorch(facts.stock.active) if facts.stock.active else None,
        libtorch_needed_by=facts.stock.needed_by or None,
        libtorch_variants=[_installed(one, facts.stock.active) for one in facts.stock.installed],
        compatible=None if archs is None else is_served(facts.nvidia, archs),
        findings=findings(facts),
    )


def _machine(system: System) -> Machine:
    return Machine(
        cpu=system.cpu,
        threads=system.threads,
        ram_gb=round(system.memory / (1 << 30)),
        os=system.os,
        docker=system.docker or None,
        container=system.container,
        wsl=system.wsl,
        tools=dict(system.tools),
    )


def _devices(facts: Facts) -> list[Device]:
    archs = architectures(facts.stock.active)
    found = []
    for gpu in facts.nvidia.gpus:
        code = None if archs is None else code_for(gpu, archs)
        found.append(
            Device(
                index=gpu.index,
                name=gpu.name,
                sm=gpu.sm,
                vram_bytes=gpu.memory,
                arch_compatible=None if code is None else code != "missing",
                code=code,
                uuid=gpu.uuid or None,
                pci=gpu.pci or None,
                visible=gpu.visible,
                mig=gpu.mig,
            )
        )
    return found


def _libtorch(variant: Variant) -> Libtorch:
    source = variant.facts.get("source")
    return Libtorch(path=variant.path, variant=variant.id, source=source, **_recorded(variant))


def _installed(variant: Variant, active: Variant | None) -> Installed:
    in_use = active is not None and active.id == variant.id
    return Installed(variant=variant.id, active=in_use, **_recorded(variant))


def _recorded(variant: Variant) -> dict[str, str | None]:
    facts = variant.facts
    return {"version": facts.get("torch"), "cuda": facts.get("cuda"), "archs": facts.get("archs")}
