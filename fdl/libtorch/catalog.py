"""The catalog of official libtorch archives, and the choice of the one that fits some GPUs.

All data is in ``catalog.toml``; for a new torch version, change that file.
"""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fdl.base.errors import LibtorchError, UsageError
from fdl.base.hardware import Gpu
from fdl.libtorch.architectures import Architecture, covers, parse

MIRROR = "FDL_LIBTORCH_MIRROR"
"""Variable with base addresses to try before the official one, separated by blanks."""

CPU = "cpu"

PLATFORMS = {
    "linux-x86_64": "Linux x86_64",
    "macos-arm64": "macOS arm64",
    "windows-x86_64": "Windows x86_64",
}
"""Platforms that have archives, with their names in messages."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One archive.

    Attributes:
        torch: Its version: ``2.10.0``.
        variant: ``cpu``, or ``cu`` and the CUDA version: ``cu128``.
        platform: A key of :data:`PLATFORMS`.
        cuda: CUDA version, ``12.8``; None for CPU.
        archs: The GPU architectures it has code for; none for CPU.
        path: Its path below a base address.
        size: Bytes, or None if the catalog has no size.
        sha256: Digest of the archive in hexadecimal, or None if the catalog has no digest.
        driver: The oldest driver it works with on its platform; None for CPU.
    """

    torch: str
    variant: str
    platform: str
    cuda: str | None
    archs: tuple[Architecture, ...]
    path: str
    size: int | None
    sha256: str | None
    driver: str | None

    @property
    def id(self) -> str:
        """The variant's id in a store: ``precompiled/cu128``."""
        return f"precompiled/{self.variant}"

    @property
    def recorded_archs(self) -> str:
        """Its entry in ``.arch``: architectures separated by blanks, ``cpu`` for CPU."""
        return " ".join(map(str, self.archs)) or CPU

    def urls(self, environ: Mapping[str, str]) -> list[str]:
        """Its addresses, in the order to try: mirrors, then the official address."""
        bases = [*environ.get(MIRROR, "").split(), _document()["base"]]
        return [f"{base.rstrip('/')}/{self.path}" for base in bases]

    def serves(self, gpu: Gpu) -> bool:
        """Whether it has code for a GPU."""
        return covers(self.archs, gpu.capability)


@dataclass(frozen=True, slots=True)
class Choice:
    """The archive that fits some GPUs.

    Attributes:
        artifact: The archive to install.
        uncovered: The GPUs it has no code for; they need a build from source.
        outdated: Whether a newer CUDA would fit with a newer driver.
    """

    artifact: Artifact
    uncovered: tuple[Gpu, ...] = ()
    outdated: bool = False


def default_version() -> str:
    """The default torch version."""
    return str(_document()["default"])


def versions() -> list[str]:
    """All torch versions of the catalog, oldest first."""
    return [release["version"] for release in _document()["release"]]


def artifacts(torch: str, on: str) -> list[Artifact]:
    """The archives of one torch version for a key of :data:`PLATFORMS`: CPU first, then by CUDA.

    Raises:
        UsageError: The version is not in the catalog.
    """
    for release in _document()["release"]:
        if release["version"] == torch:
            found = [
                _artifact(torch, name, variant, on)
                for name, variant in release["variant"].items()
                if on in variant
            ]
            return sorted(found, key=lambda one: numbers(one.cuda or ""))
    known = ", ".join(versions())
    raise UsageError(
        f"the catalog has no libtorch {torch}; it has {known}",
        hint="take one of these, or unpack another: fdl libtorch install --source ./libtorch.zip",
    )


def find(torch: str, variant: str, on: str) -> Artifact:
    """The archive of one version, variant (``cpu``, ``cu128`` …) and key of :data:`PLATFORMS`.

    Raises:
        UsageError: There is no such archive; the message lists the existing ones.
    """
    available = artifacts(torch, on)
    for one in available:
        if one.variant == variant:
            return one
    names = ", ".join(one.variant for one in available)
    raise UsageError(
        f"libtorch {torch} for {PLATFORMS[on]} has no variant `{variant}`; it has {names}",
        hint="fdl libtorch install auto",
    )


def choose(gpus: Sequence[Gpu], available: Sequence[Artifact], driver: str = "") -> Choice:
    """The newest CUDA variant with code for every GPU, else the best one available.

    Without GPUs, or without CUDA variants, it is the CPU variant. If no variant serves all GPUs, it
    is the one with the oldest CUDA, because that supports the oldest GPUs. If the driver is unknown
    (empty), any variant is accepted.

    Raises:
        LibtorchError: The driver is too old for all CUDA variants.
    """
    cpu = next(one for one in available if one.cuda is None)
    cuda = sorted((one for one in available if one.cuda), key=lambda one: numbers(one.cuda or ""))
    if not gpus or not cuda:
        return Choice(cpu)
    fitting = [one for one in cuda if all(one.serves(gpu) for gpu in gpus)]
    usable = [one for one in cuda if runs_under(driver, one.cuda or "", one.platform)]
    if not usable:
        raise LibtorchError(
            f"the NVIDIA driver {driver} is too old for CUDA {cuda[0].cuda}: "
            f"it takes {cuda[0].driver} or newer",
            hint="update the driver, or use the processor alone: fdl libtorch install cpu",
        )
    both = [one for one in fitting if one in usable]
    best = both[-1] if both else usable[0]
    return Choice(
        best,
        uncovered=tuple(gpu for gpu in gpus if not best.serves(gpu)),
        outdated=bool(fitting) and best is not fitting[-1],
    )


def advise(torch: str, gpus: Sequence[Gpu], driver: str = "") -> Choice:
    """The choice on this machine, of a torch version such as ``2.10.0+cu128`` if it is known.

    Raises:
        LibtorchError: There are no archives for this platform, or for this driver.
    """
    release = torch.partition("+")[0]
    version = release if release in versions() else default_version()
    return choose(gpus, artifacts(version, this_platform()), driver)


def install_command(artifact: Artifact) -> str:
    """The command that installs an archive."""
    option = "" if artifact.torch == default_version() else f" --torch {artifact.torch}"
    return f"fdl libtorch install {artifact.variant}{option}"


def archs_argument(gpus: Sequence[Gpu]) -> str:
    """The value of ``--archs`` for a build that serves some GPUs: ``6.1;12.0``."""
    found = sorted({gpu.capability for gpu in gpus})
    return ";".join(f"{major}.{minor}" for major, minor in found)


def build_command(gpus: Sequence[Gpu]) -> str:
    """The command that builds libtorch for some GPUs."""
    return f'fdl libtorch build --archs "{archs_argument(gpus)}"'


def this_platform(system: str = sys.platform, machine: str | None = None) -> str:
    """The platform of this machine, as named in the catalog.

    Raises:
        LibtorchError: There are no archives for this platform.
    """
    key = f"{operating_system(system)}-{processor(machine)}"
    if key in PLATFORMS:
        return key
    linux_arm = key == "linux-arm64"
    raise LibtorchError(
        f"there is no libtorch archive for {system} on {(machine or platform.machine()).lower()}; "
        f"there are some for {', '.join(PLATFORMS.values())}",
        hint="fdl libtorch install --source wheel"
        if linux_arm
        else "fdl libtorch build, on a machine with a compiler",
    )


def processor(machine: str | None = None) -> str:
    """A processor, by default this machine's, as the catalog and the libraries name it."""
    name = (machine or platform.machine()).lower()
    return {"amd64": "x86_64", "aarch64": "arm64"}.get(name, name)


def operating_system(system: str = sys.platform) -> str:
    """An operating system, by default this machine's: ``linux``, ``macos`` or ``windows``."""
    return {"darwin": "macos", "win32": "windows"}.get(system, system)


def _artifact(torch: str, name: str, variant: Mapping[str, Any], on: str) -> Artifact:
    own = variant[on]
    cuda = variant.get("cuda")
    archs = str(own.get("archs") or variant.get("archs") or "")
    return Artifact(
        torch=torch,
        variant=name,
        platform=on,
        cuda=str(cuda) if cuda else None,
        archs=parse(archs) if archs else (),
        path=own["url"],
        size=own.get("size"),
        sha256=own.get("sha256"),
        driver=driver_floor(str(cuda), on) if cuda else None,
    )


def driver_floor(cuda: str, on: str) -> str | None:
    """The oldest driver for the major of a CUDA version such as ``12.8``; None if unknown.

    ``on`` is a key of :data:`PLATFORMS`, or the name of Linux on another processor.
    """
    majors: Mapping[str, Mapping[str, str]] = _document()["driver"]
    return majors.get(cuda.partition(".")[0], {}).get(on.partition("-")[0])


def runs_under(driver: str, cuda: str, on: str) -> bool:
    """Whether a driver is new enough for a CUDA version; True if the driver is unknown (empty)."""
    floor = driver_floor(cuda, on)
    return not driver or not floor or numbers(driver) >= numbers(floor)


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it with another."""
    return tuple(map(int, re.findall(r"\d+", version)))


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8"))
