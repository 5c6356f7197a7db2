"""Why GPUs may be missing, each with a remedy: the driver, the kernel, ``CUDA_VISIBLE_DEVICES``.

NVML returns the driver's error numbers (NVML API Reference, ``nvmlReturn_t``), and ``nvidia-smi``
exits with them. For a driver that does not answer, there are the kernel's files.

The rules of visible GPUs are CUDA's (CUDA C++ Programming Guide, "CUDA Environment Variables"):

- The value is a list of indices or of UUIDs. UUIDs may be shortened if they stay unambiguous.
- The first entry that names no GPU ends the list; it and all later entries are ignored.
- If a GPU is named twice, the whole list is void.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fdl.base.files import text_of
from fdl.base.hardware.facts import Gpu, Trouble
from fdl.base.hardware.machine import in_container

NO_PERMISSION = 4
INSUFFICIENT_POWER = 8
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
VERSION_MISMATCH = 18
UNKNOWN = 999

RESTART = "sudo reboot"

GIVE_TO_CONTAINER = (
    "start the container with `docker run --gpus all`, or give its compose service the GPU"
)


LIBRARY_MISSING = Trouble(
    "library-missing",
    "there is an NVIDIA driver, but its library libnvidia-ml.so.1 cannot be loaded",
    "install the driver's package again; if the file is there, `sudo ldconfig` makes it known",
)
SILENT = Trouble("driver-silent", "the NVIDIA driver does not answer", RESTART)
OUTDATED = Trouble(
    "driver-outdated",
    "the NVIDIA driver is too old to tell the compute capability of its GPUs",
    "update the NVIDIA driver",
)


def of_driver(code: int, words: str, container: bool) -> Trouble:
    """The reason why the driver as a whole does not answer.

    The error number and the words are its own.
    """
    if code == DRIVER_NOT_LOADED:
        return Trouble(
            "driver-not-loaded",
            "the NVIDIA driver is installed, but its kernel module is not loaded",
            GIVE_TO_CONTAINER if container else "sudo modprobe nvidia",
        )
    if code in (NO_PERMISSION, OPERATING_SYSTEM):
        return Trouble(
            "driver-permission",
            "this user may not use the NVIDIA driver: /dev/nvidia* cannot be opened",
            GIVE_TO_CONTAINER if container else "sudo chmod a+rw /dev/nvidia*",
        )
    if code == VERSION_MISMATCH:
        return Trouble(
            "driver-mismatch",
            "the NVIDIA driver has been updated, but the kernel still runs the old one",
            RESTART,
        )
    if code == LIBRARY_NOT_FOUND:
        return replace(LIBRARY_MISSING, remedy=GIVE_TO_CONTAINER) if container else LIBRARY_MISSING
    return Trouble("driver-failure", f"the NVIDIA driver fails: {words}", RESTART)


def of_gpu(index: int, code: int, words: str) -> Trouble:
    """The reason why one GPU does not answer.

    The error number and the words are the driver's own.
    """
    if code in (GPU_IS_LOST, RESET_REQUIRED):
        return Trouble(
            "gpu-lost",
            f"GPU {index} does not answer any more: it has fallen off the bus or needs a reset",
            RESTART,
        )
    if code in (NO_PERMISSION, OPERATING_SYSTEM):
        return Trouble(
            "gpu-permission",
            f"this user may not use GPU {index}: /dev/nvidia{index} cannot be opened",
            f"sudo chmod a+rw /dev/nvidia{index}",
        )
    if code == INSUFFICIENT_POWER:
        return Trouble(
            "gpu-power",
            f"GPU {index} has no power: a cable is not connected",
            "switch the machine off and connect the GPU's power cables",
        )
    return Trouble(
        "gpu-failure", f"GPU {index} cannot be read: {words}", f"nvidia-smi -q -i {index}"
    )


def slices_missing(index: int) -> Trouble:
    """The trouble of a GPU whose MIG mode is on, but which has no slices."""
    return Trouble(
        "mig-without-slices",
        f"MIG mode is on for GPU {index}, but it has no slices, so programs cannot use it",
        f"sudo nvidia-smi mig -i {index} -cgi 0 -C",
    )


_VENDOR = "0x10de"
_DISPLAY = ("0x0300", "0x0302")


def nodes(root: Path) -> list[str]:
    """PCI addresses of the machine's NVIDIA GPUs, without those passed to a virtual machine."""
    return sorted(
        device.name
        for device in (root / "sys/bus/pci/devices").glob("*")
        if text_of(device / "vendor").strip() == _VENDOR
        and text_of(device / "class").startswith(_DISPLAY)
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


VARIABLE = "CUDA_VISIBLE_DEVICES"

ORDER = "CUDA_DEVICE_ORDER"
"""Variable with the order of indices; only ``PCI_BUS_ID`` is a reliable order."""

# As strtoul reads it: CUDA reads `1st` as 1.
_INDEX = re.compile(r"\+?(\d+)")


def restrict(gpus: Sequence[Gpu], value: str | None) -> tuple[tuple[Gpu, ...], tuple[Trouble, ...]]:
    """Mark the GPUs that stay visible; without a value, nothing changes.

    Indices are interpreted in PCI order.

    Returns:
        The same GPUs, and a trouble if an entry is probably a mistake.
    """
    if value is None:
        return tuple(gpus), ()
    shown: list[Gpu] = []
    trouble: tuple[Trouble, ...] = ()
    for word in map(str.strip, value.split(",")):
        named = _named(word, gpus)
        if any(gpu in shown for gpu in named):
            shown, trouble = [], (_twice(word, value),)
            break
        if not named:
            trouble = (_ignored(word, value),) if _is_mistake(word, value, gpus) else ()
            break
        shown += named
    return tuple(replace(gpu, visible=gpu.visible and gpu in shown) for gpu in gpus), trouble


def _named(word: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that an entry names; the slices of a GPU share its index."""
    if word.startswith(("GPU-", "MIG-")):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(word)]
        return found if len(found) == 1 else []
    index = _INDEX.match(word)
    return [gpu for gpu in gpus if gpu.index == int(index[1])] if index else []


def _is_mistake(word: str, value: str, gpus: Sequence[Gpu]) -> bool:
    """Whether an entry that names no GPU is a mistake, not one of the usual words for no GPU."""
    hides_all = not value.strip() or word.startswith("-") or value in ("NoDevFiles", "none", "void")
    return bool(gpus) and not hides_all


def _ignored(word: str, value: str) -> Trouble:
    return Trouble(
        "visibility-unknown-gpu",
        f"`{word}` in {VARIABLE}={value} names no GPU of this machine, so CUDA ignores it and "
        "everything behind it",
        "nvidia-smi -L",
    )


def _twice(word: str, value: str) -> Trouble:
    return Trouble(
        "visibility-repeated-gpu",
        f"{VARIABLE}={value} names a GPU twice, at `{word}`, so CUDA shows none at all",
        f"unset {VARIABLE}",
    )
