"""What this machine has: GPUs (NVML, else ``nvidia-smi``) and system facts.

Nothing found is an answer, never an error: every function here returns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fdl.hardware.facts import Gpu as Gpu
from fdl.hardware.facts import Nvidia as Nvidia
from fdl.hardware.facts import System as System
from fdl.hardware.facts import Trouble as Trouble

_ROOT = Path("/")


def nvidia(environ: Mapping[str, str] | None = None, *, root: Path = _ROOT) -> Nvidia:
    """What the NVIDIA driver says about the cards.

    Args:
        environ: The environment variables; this process's own when omitted. They decide which
            cards are visible and where ``nvidia-smi`` is looked for.
        root: Where the file system of the machine begins.

    Returns:
        The cards and the driver. Without a driver it is empty, with the trouble where there is
        one: it is not loaded, refuses, or is missing on a machine that has a card.
    """
    # Whoever only needs the classes, completion among them, is spared ctypes and subprocess.
    from fdl.hardware.gpus import survey

    return survey(os.environ if environ is None else environ, root)


def system(
    environ: Mapping[str, str] | None = None, *, root: Path = _ROOT, patience: float = 5.0
) -> System:
    """What is known about this machine.

    Args:
        environ: The environment variables, in whose PATH programs are looked for; this process's
            own when omitted.
        root: Where the file system of the machine begins.
        patience: Seconds that each program has to tell its version; all are asked at once.
    """
    from fdl.hardware.machine import survey

    return survey(os.environ if environ is None else environ, root, patience)
