"""GPU architectures, and which binaries run on which GPU.

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

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fdl.base.errors import UsageError

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
    found: dict[tuple[int, int, str], Architecture] = {}
    for word in re.split(r"[;,\s]+", text.strip()):
        match = _WRITTEN.match(word)
        if match is None:
            raise UsageError(
                f"`{word}` is not a GPU architecture",
                hint='write them like "6.1;12.0" or "8.6+PTX"; `fdl diagnose` shows those of '
                "your GPUs",
            )
        major, minor, specific, ptx = match.groups()
        key = int(major), int(minor), specific
        known = found.get(key)
        found[key] = Architecture(*key, ptx=bool(ptx) or (known is not None and known.ptx))
    return tuple(found[key] for key in sorted(found))


def recorded(text: str) -> tuple[Architecture, ...]:
    """The architectures of an ``archs`` line in an ``.arch`` file; none for ``cpu`` or nonsense."""
    try:
        return parse(text)
    except UsageError:
        return ()


def covers(architectures: Iterable[Architecture], capability: tuple[int, int]) -> bool:
    """Whether binaries for some architectures run on a GPU, natively or from PTX."""
    return any(one.runs_on(capability) for one in architectures)
