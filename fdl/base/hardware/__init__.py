"""The hardware of this machine: GPUs (NVML, else ``nvidia-smi``) and system facts.

Every function here returns a result, also if nothing was found; none raises an error for that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fdl.base.hardware.facts import (
    Gpu as Gpu,
    Nvidia as Nvidia,
    System as System,
    Trouble as Trouble,
)

_ROOT = Path("/")


def nvidia(environ: Mapping[str, str] | None = None, *, root: Path = _ROOT) -> Nvidia:
    """The NVIDIA driver and its GPUs.

    The environment variables, by default those of this process, decide which GPUs are visible and
    where ``nvidia-smi`` is searched. The root is that of the machine's file system.

    Returns:
        The GPUs and the driver. Without a driver, the result is empty. It contains the trouble if
        the driver is not loaded, refuses, or is missing on a machine with a GPU.
    """
    # Users of the classes alone, such as completion, must not import ctypes and subprocess.
    from fdl.base.hardware.gpus import survey

    return survey(os.environ if environ is None else environ, root)


def system(
    environ: Mapping[str, str] | None = None, *, root: Path = _ROOT, patience: float = 5.0
) -> System:
    """The known facts about this machine.

    Programs are searched in the PATH of ``environ``, by default that of this process. Each has
    ``patience`` seconds to give its version; all are asked at once.
    """
    from fdl.base.hardware.machine import survey

    return survey(os.environ if environ is None else environ, root, patience)
