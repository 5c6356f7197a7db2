"""What the kernel's files tell about NVIDIA cards when their driver tells nothing."""

from __future__ import annotations

from pathlib import Path

from fdl.hardware.container import in_container, read
from fdl.hardware.facts import Trouble
from fdl.hardware.refusals import GIVE_TO_CONTAINER, library_missing

_VENDOR = "0x10de"
_DISPLAY = ("0x0300", "0x0302")


def is_loaded(root: Path) -> bool:
    """Whether the kernel runs the NVIDIA driver."""
    return (root / "proc/driver/nvidia/version").exists()


def cards(root: Path) -> list[str]:
    """PCI addresses of the NVIDIA cards of the machine that no virtual machine has been given."""
    return sorted(
        device.name
        for device in (root / "sys/bus/pci/devices").glob("*")
        if read(device / "vendor").strip() == _VENDOR
        and read(device / "class").startswith(_DISPLAY)
        and _driver(device) != "vfio-pci"
    )


def troubles(root: Path, *, driver_answers: bool) -> tuple[Trouble, ...]:
    """Why no card was found, as far as the kernel's files tell.

    Args:
        root: Where the file system of the machine begins.
        driver_answers: Whether the driver has answered that there is no card.
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
