"""What is known about a machine, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA card, or one MIG slice of it.

    Attributes:
        index: Position in PCI order, from 0: what ``nvidia-smi`` numbers and what
            ``CUDA_VISIBLE_DEVICES`` means under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. The slices of
            a card share its index.
        name: The product's name.
        capability: Compute capability, major and minor.
        memory: Bytes of memory; 0 when it cannot be read.
        uuid: ``GPU-…`` or ``MIG-…``; empty when it cannot be read.
        pci: PCI address as ``domain:bus:device.function``; empty when it cannot be read.
        visible: Whether programs can use it: ``CUDA_VISIBLE_DEVICES`` lets them see it, and it is
            not waiting to be cut into slices.
        mig: Whether it is a MIG slice.
    """

    index: int
    name: str
    capability: tuple[int, int]
    memory: int = 0
    uuid: str = ""
    pci: str = ""
    visible: bool = True
    mig: bool = False

    @property
    def sm(self) -> str:
        """As compilers name it: ``sm_86``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why cards may be missing.

    Attributes:
        kind: A stable word for it: ``driver-not-loaded``.
        message: What is wrong, in one sentence without its full stop.
        remedy: What to type, or to do.
    """

    kind: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Nvidia:
    """What the NVIDIA driver says.

    Attributes:
        gpus: The cards, in PCI order.
        driver: Version of the driver, such as ``570.86.10``; empty without one.
        cuda: Newest CUDA version the driver runs, such as ``12.8``; empty when unknown.
        source: Who was asked: ``nvml``, ``nvidia-smi``, or empty when neither answered.
        troubles: Why cards may be missing; none when all is well, also on a machine that has
            neither card nor driver.
        restriction: The value of ``CUDA_VISIBLE_DEVICES``; None when it is not set.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    source: Literal["nvml", "nvidia-smi", ""] = ""
    troubles: tuple[Trouble, ...] = ()
    restriction: str | None = None

    @property
    def visible(self) -> tuple[Gpu, ...]:
        """The cards that programs may use."""
        return tuple(gpu for gpu in self.gpus if gpu.visible)

    @property
    def problem(self) -> str:
        """All troubles with their remedies as one text; empty when all is well."""
        return "; ".join(f"{one.message} (remedy: {one.remedy})" for one in self.troubles)


@dataclass(frozen=True, slots=True)
class System:
    """The machine around the cards.

    Attributes:
        os: Name and version of the operating system.
        cpu: The processor's model name.
        threads: Hardware threads this process may use.
        memory: Bytes of main memory (of the container's limit, where there is a lower one).
        docker: Version of the Docker client, ``container`` inside one, empty without.
        container: Whether this process runs in a container.
        wsl: Whether this is Linux under Windows (WSL2).
        python: Version of the running interpreter.
        executable: Path of the running interpreter.
        tools: Build tool -> its version, for those found among nvcc, cmake, ninja, git, gcc,
            g++, cc, python3, uv. Not cargo: through rustup, the question writes into the home and
            may install a toolchain.
    """

    os: str
    cpu: str
    threads: int
    memory: int
    docker: str = ""
    container: bool = False
    wsl: bool = False
    python: str = ""
    executable: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
