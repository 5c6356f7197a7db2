"""Turn the driver's error numbers into troubles with a remedy.

NVML returns these numbers (NVML API Reference, ``nvmlReturn_t``), and ``nvidia-smi`` exits with
them.
"""

from __future__ import annotations

from fdl.hardware.facts import Trouble

NO_PERMISSION = 4
INSUFFICIENT_POWER = 8
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
VERSION_MISMATCH = 18
UNKNOWN = 999

GIVE_TO_CONTAINER = (
    "start the container with `docker run --gpus all`, or give its compose service the GPU"
)


def of_driver(code: int, words: str, container: bool) -> Trouble:
    """The reason why the driver as a whole does not answer.

    Args:
        code: Its error number.
        words: Its own error message.
        container: Whether this process runs in a container.
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
            "restart the host of this container" if container else "sudo reboot",
        )
    if code == LIBRARY_NOT_FOUND:
        return library_missing()
    return Trouble("driver-failure", f"the NVIDIA driver fails: {words}", "sudo reboot")


def of_card(index: int, code: int, words: str) -> Trouble:
    """The reason why one GPU does not answer.

    Args:
        index: The GPU.
        code: The driver's error number.
        words: The driver's own error message.
    """
    if code in (GPU_IS_LOST, RESET_REQUIRED):
        return Trouble(
            "card-lost",
            f"card {index} does not answer any more: it has fallen off the bus or needs a reset",
            "sudo reboot",
        )
    if code in (NO_PERMISSION, OPERATING_SYSTEM):
        return Trouble(
            "card-permission",
            f"this user may not use card {index}: /dev/nvidia{index} cannot be opened",
            f"sudo chmod a+rw /dev/nvidia{index}",
        )
    if code == INSUFFICIENT_POWER:
        return Trouble(
            "card-power",
            f"card {index} has no power: a cable is not connected",
            "switch the machine off and connect the card's power cables",
        )
    return Trouble(
        "card-failure", f"card {index} cannot be read: {words}", f"nvidia-smi -q -i {index}"
    )


def slices_missing(index: int) -> Trouble:
    """The trouble of a GPU whose MIG mode is on, but which has no slices."""
    return Trouble(
        "mig-without-slices",
        f"MIG mode is on for card {index}, but it has no slices, so programs cannot use it",
        f"sudo nvidia-smi mig -i {index} -cgi 0 -C",
    )


def library_missing() -> Trouble:
    """The trouble of a driver whose library is not where programs search for it."""
    return Trouble(
        "library-missing",
        "there is an NVIDIA driver, but its library libnvidia-ml.so.1 cannot be loaded",
        "sudo ldconfig, or install the driver's package again",
    )


def silent() -> Trouble:
    """The trouble of a driver that does not answer in time."""
    return Trouble("driver-silent", "the NVIDIA driver does not answer", "sudo reboot")


def outdated() -> Trouble:
    """The trouble of a driver that does not give compute capabilities."""
    return Trouble(
        "driver-outdated",
        "the NVIDIA driver is too old to tell the compute capability of its cards",
        "update the NVIDIA driver",
    )
