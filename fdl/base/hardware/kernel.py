"""Facts about NVIDIA GPUs in the kernel's files, for a driver that does not answer."""

from __future__ import annotations

from pathlib import Path

from fdl.base.hardware.container import in_container, read
from fdl.base.hardware.facts import Trouble
from fdl.base.hardware.refusals import GIVE_TO_CONTAINER, LIBRARY_MISSING

_VENDOR = "0x10de"
_DISPLAY = ("0x0300", "0x0302")


def nodes(root: Path) -> list[str]:
    """PCI addresses of the machine's NVIDIA GPUs, without those passed to a virtual machine."""
    return sorted(
        device.name
        for device in (root / "sys/bus/pci/devices").glob("*")
        if read(device / "vendor").strip() == _VENDOR
        and read(device / "class").startswith(_DISPLAY)
        and _driver(device) != "vfio-pci"
    )


def shows_gpu(root: Path) -> bool:
    """Whether there is a GPU on the PCI bus, or a driver that has been loaded for one."""
    is_loaded = (root / "proc/driver/nvidia/version").exists()
    return bool(is_loaded or any(root.glob("dev/nvidia[0-9]*")) or nodes(root))


def troubles(root: Path, *, driver_answers: bool) -> tuple[Trouble, ...]:
    """The reasons why no GPU was found, as known from the kernel's files.

    ``driver_answers`` is whether the driver answered that there is no GPU.
    """
    is_loaded = (root / "proc/driver/nvidia/version").exists()
    present, unreachable = nodes(root), is_loaded and not driver_answers
    if not present and not unreachable:
        return ()
    if in_container(root):
        trouble = Trouble(
            "container-without-gpus",
            "the machine has an NVIDIA GPU, which this container has not been given",
            GIVE_TO_CONTAINER,
        )
    elif driver_answers:
        trouble = Trouble(
            "gpus-withheld",
            f"the NVIDIA driver is loaded but offers none of the GPUs at {', '.join(present)}",
            "sudo dmesg | grep -i nvrm",
        )
    elif unreachable:
        trouble = LIBRARY_MISSING
    else:
        trouble = Trouble(
            "driver-missing",
            f"there is an NVIDIA GPU at {', '.join(present)}, but no NVIDIA driver",
            "install the driver that your distribution packages, then restart",
        )
    return (trouble,)


def _driver(device: Path) -> str:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""
