"""What is known about the hardware of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU, or one MIG slice of it.

    Attributes:
        index: Position in PCI order, from 0: the number in ``nvidia-smi``, and in
            ``CUDA_VISIBLE_DEVICES`` under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. The slices of a GPU
            share its index.
        name: The product's name.
        capability: Compute capability, major and minor.
        memory: Bytes of memory; 0 if it cannot be read.
        uuid: ``GPU-…`` or ``MIG-…``; empty if it cannot be read.
        pci: PCI address as ``domain:bus:device.function``; empty if it cannot be read.
        visible: Whether programs can use it: ``CUDA_VISIBLE_DEVICES`` allows it, and it is not a
            GPU in MIG mode without slices.
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
        """The name that compilers use: ``sm_86``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def label(self) -> str:
        """Its index, name and architecture for messages."""
        return f"[{self.index}] {self.name} ({self.sm})"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reason why GPUs may be missing.

    Attributes:
        kind: A stable word for it: ``driver-not-loaded``.
        message: The problem, in one sentence without a final full stop.
        remedy: The command to run, or what to do.
    """

    kind: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The NVIDIA driver and its GPUs.

    Attributes:
        gpus: The GPUs, in PCI order.
        driver: Version of the driver, such as ``570.86.10``; empty without one.
        cuda: Newest CUDA version that the driver supports, such as ``12.8``; empty if unknown.
        source: The origin of the facts: ``nvml``, ``nvidia-smi``, or empty if neither answered.
        troubles: Reasons why GPUs may be missing. Empty if there is no problem, also on a machine
            with neither GPU nor driver.
        restriction: The value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        present: Whether the kernel shows an NVIDIA GPU, also if the driver does not answer.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    source: Literal["nvml", "nvidia-smi", ""] = ""
    troubles: tuple[Trouble, ...] = ()
    restriction: str | None = None
    present: bool = False

    @property
    def failure(self) -> Trouble | None:
        """Why the driver offers no GPU although there is one; None if it works as it should."""
        if self.gpus or not self.present:
            return None
        # A container that was given no GPU works as its user has asked for.
        broken = (one for one in self.troubles if one.kind != "container-without-gpus")
        return next(broken, None)

    @property
    def visible(self) -> tuple[Gpu, ...]:
        """The GPUs that programs may use."""
        return tuple(gpu for gpu in self.gpus if gpu.visible)

    @property
    def counted(self) -> tuple[Gpu, ...]:
        """The GPUs that a libtorch must serve: the visible ones, or all if none is visible."""
        return self.visible or self.gpus

    @property
    def problem(self) -> str:
        """All troubles with their remedies as one text; empty if there are none."""
        return "; ".join(f"{one.message} (remedy: {one.remedy})" for one in self.troubles)


@dataclass(frozen=True, slots=True)
class System:
    """The machine without its GPUs.

    Attributes:
        os: Name and version of the operating system.
        cpu: The processor's model name.
        threads: Hardware threads this process may use.
        memory: Bytes of main memory (or of the container's limit, if that is lower).
        docker: Version of the Docker client, ``container`` inside one, empty without.
        container: Whether this process runs in a container.
        wsl: Whether this is Linux under Windows (WSL2).
        python: Version of the running interpreter.
        executable: Path of the running interpreter.
        tools: Build tool -> its version, for the installed ones of nvcc, cmake, ninja, git, gcc,
            g++, cc, python3, uv. Not cargo: through rustup, asking for its version writes into the
            home directory and may install a toolchain.
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
