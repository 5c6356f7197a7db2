"""Whether a process can be forked: one thread, no device in use.

Runs in the project's interpreter. Standard library only.
"""

# The paths of requests and answers are strings.
# ruff: noqa: PTH115, PTH208
from __future__ import annotations

import os

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render", "/dev/accel")


def reason_not_to_fork() -> str:
    """What a fork of this process would lack, as a clause; empty if it would lack nothing."""
    if (device := _open_device()) is not None:
        return f"{device} is open"
    if _threads() > 1:
        # OpenBLAS ends its threads before a fork. It starts them again at its next product.
        _fork_once()
    count = _threads()
    return f"{count - 1} threads have started" if count > 1 else ""


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _open_device() -> str | None:
    """A device of a GPU that this process has open: its driver does not survive a fork."""
    for one in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{one}")
        except OSError:
            continue
        if target.startswith(_DEVICES):
            return target
    return None


def _fork_once() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
