"""The device that a caller names."""

from __future__ import annotations

import torch


def known_device(requested: torch.device | str) -> torch.device:
    """The device, if this machine has it.

    Args:
        requested: A device or its name; ``"auto"`` for the first CUDA device that works, else the
            CPU.

    Raises:
        ValueError: It is not a device, or this machine has none of that kind.
    """
    try:
        device = torch.device(requested)
        known = device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()
    except RuntimeError:
        known = False
    if known:
        return device
    # Imported here because it loads the Trainer.
    from flodl.device import select_device

    return select_device(requested)
