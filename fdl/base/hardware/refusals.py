"""Turn the driver's error numbers into troubles with a remedy.

NVML returns these numbers (NVML API Reference, ``nvmlReturn_t``), and ``nvidia-smi`` exits with
them.
"""

from __future__ import annotations

from dataclasses import replace

from fdl.base.hardware.facts import Trouble

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
