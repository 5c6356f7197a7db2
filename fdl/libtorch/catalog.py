"""The catalog of official libtorch archives, and the choice of the one that fits some GPUs.

All data is in ``catalog.toml``; for a new torch version, change that file.

An architecture is written as in ``TORCH_CUDA_ARCH_LIST``: ``8.6``, ``12.0+PTX``. The rule is
NVIDIA's binary compatibility (CUDA C++ Programming Guide, "Binary Compatibility" and "PTX
Compatibility"):

- Machine code for X.y runs on every X.z with z ≥ y of the same major.
- That does not hold for Tegra (Jetson, DRIVE): its machine code runs on exactly that architecture,
  and code for other GPUs does not run on Tegra. ``torch.cuda`` checks the same.
- PTX of an architecture is compiled at load time for the same or any newer architecture.
- Architecture-specific code (``9.0a``) runs on exactly that architecture, not on newer ones.
"""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fdl.base.errors import LibtorchError, UsageError
from fdl.base.hardware import Gpu

_WRITTEN = re.compile(r"(\d{1,2})\.(\d)([af]?)(\+PTX)?\Z")


TEGRA = {(3, 2), (5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)}
"""Compute capabilities of Tegra: TK1, TX1, TX2, Xavier, Orin, and Thor under its two numbers."""

_THOR = {(10, 1), (11, 0)}
"""CUDA 13 renamed the capability of Thor from 10.1 to 11.0."""


@dataclass(frozen=True, slots=True, order=True)
class Architecture:
    """One architecture that binaries are made for.

    Attributes:
        major: Major compute capability.
        minor: Minor compute capability.
        specific: ``a`` for code of exactly this architecture, ``f`` for its family (same major,
            from this minor on), empty for ordinary code.
        ptx: Whether PTX is included besides machine code.
    """

    major: int
    minor: int
    specific: str = ""
    ptx: bool = False

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor."""
        return self.major, self.minor

    @property
    def sm(self) -> str:
        """The name that compilers use: ``sm_86``."""
        return f"sm_{self.major}{self.minor}{self.specific}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.specific}{'+PTX' if self.ptx else ''}"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether its code runs on a GPU, as machine code or compiled from its PTX."""
        return self.is_native_on(capability) or self.is_jit_on(capability)

    def is_native_on(self, capability: tuple[int, int]) -> bool:
        """Whether its machine code runs on a GPU of this compute capability."""
        if self.capability in _THOR:
            return capability in _THOR
        if self.specific == "a" or capability in TEGRA or self.capability in TEGRA:
            return self.capability == capability
        return self.major == capability[0] and self.minor <= capability[1]

    def is_jit_on(self, capability: tuple[int, int]) -> bool:
        """Whether it has PTX that can be compiled for a GPU at load time."""
        return self.ptx and not self.specific and self.capability <= capability


def parse(text: str) -> tuple[Architecture, ...]:
    """The architectures of a list such as ``6.1;12.0+PTX``: sorted, each once.

    Items are separated by ``;``, ``,`` or blanks. If an item occurs with and without PTX, the item
    with PTX stays.

    Raises:
        UsageError: An item is not an architecture.
    """
    found = []
    for word in re.split(r"[;,\s]+", text.strip()):
        match = _WRITTEN.match(word)
        if match is None:
            raise UsageError(
                f"`{word}` is not a GPU architecture",
                hint='write them like "6.1;12.0" or "8.6+PTX"; `fdl diagnose` shows those of '
                "your GPUs",
            )
        major, minor, specific, ptx = match.groups()
        found.append(Architecture(int(major), int(minor), specific, ptx=bool(ptx)))
    return united(found)


def united(architectures: Iterable[Architecture]) -> tuple[Architecture, ...]:
    """Each architecture once, sorted; of one with and without PTX, the one with PTX."""
    return tuple({(one.capability, one.specific): one for one in sorted(architectures)}.values())


def recorded(text: str) -> tuple[Architecture, ...]:
    """The architectures of an ``archs`` line in an ``.arch`` file; none for ``cpu`` or nonsense."""
    try:
        return parse(text)
    except UsageError:
        return ()


def covers(architectures: Iterable[Architecture], capability: tuple[int, int]) -> bool:
    """Whether binaries for some architectures run on a GPU, natively or from PTX."""
    return any(one.runs_on(capability) for one in architectures)


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

    @property
    def left_out(self) -> str:
        """A note about the GPUs that it has no code for."""
        names = ", ".join(gpu.label for gpu in self.uncovered)
        return f"no archive has code for all GPUs; {self.artifact.variant} leaves out {names}"


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
