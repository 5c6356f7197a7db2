"""Which device trains."""

from __future__ import annotations

import warnings

import torch


def select_device(requested: torch.device | str | None = None) -> torch.device:
    """Choose the device of a training.

    Args:
        requested: A device, or None (or ``"auto"``) for the first CUDA device that runs a kernel,
            else the CPU.

    Raises:
        ValueError: The device does not exist here.
    """
    if requested is None or requested == "auto":
        return _first_usable()
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise ValueError(
            f"device={requested!r} is not a device: use 'cpu', 'cuda', 'cuda:1' or 'auto'"
        ) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r}: this torch ({torch.__version__}) sees "
            f"{torch.cuda.device_count()} CUDA devices; use 'cpu' or install a CUDA build of torch"
        )
    return device


def _first_usable() -> torch.device:
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        try:
            # A device may be visible and still have no kernels for its architecture in this build.
            (torch.ones(1, device=device) + 1).item()
        except RuntimeError as error:
            warnings.warn(f"{device} is skipped: {error}", UserWarning, stacklevel=4)
        else:
            return device
    return torch.device("cpu")
