"""Facts about NVIDIA GPUs in the kernel's files, for a driver that does not answer."""

from __future__ import annotations

from pathlib import Path

from fdl.hardware.container import in_container, read
from fdl.hardware.facts import Trouble
from fdl.hardware.refusals import GIVE_TO_CONTAINER, library_missing

_VENDOR = "0x10de"
_DISPLAY = ("0x0300", "0x0302")


def is_loaded(root: Path) -> bool:
    """Whether the kernel has loaded the NVIDIA driver."""
    return (root / "proc/driver/nvidia/version").exists()


def cards(root: Path) -> list[str]:
    """PCI addresses of the machine's NVIDIA GPUs, without those passed to a virtual machine."""
    return sorted(
        device.name
        for device in (root / "sys/bus/pci/devices").glob("*")
        if read(device / "vendor").strip() == _VENDOR
        and read(device / "class").startswith(_DISPLAY)
        and _driver(device) != "vfio-pci"
    )


def troubles(root: Path, *, driver_answers: bool) -> tuple[Trouble, ...]:
    """The reasons why no GPU was found, as known from the kernel's files.

    Args:
        root: The root of the machine's file system.
        driver_answers: Whether the driver answered that there is no GPU.
    """
    present, unreachable = cards(root), is_loaded(root) and not driver_answers
    if not present and not unreachable:
        return ()
    if in_container(root):
        return (
            Trouble(
                "container-without-cards",
                "the machine has an NVIDIA card, which this container has not been given",
                GIVE_TO_CONTAINER,
            ),
        )
    if driver_answers:
        return (
            Trouble(
                "cards-withheld",
                f"the NVIDIA driver is loaded but offers none of the cards at {', '.join(present)}",
                "sudo dmesg | grep -i nvrm",
            ),
        )
    if unreachable:
        return (library_missing(),)
    return (
        Trouble(
            "driver-missing",
            f"there is an NVIDIA card at {', '.join(present)}, but no NVIDIA driver",
            "install the driver that your distribution packages, then restart",
        ),
    )


def _driver(device: Path) -> str:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""
