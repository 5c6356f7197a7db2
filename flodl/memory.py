"""The peaks of CUDA memory, and the seed of all generators.

Queries about CUDA memory raise on a machine without a CUDA device, so that a zero always means a
measured zero. Functions that only release memory do nothing there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from flodl.errors import StateError

if TYPE_CHECKING:
    Device: TypeAlias = torch.device | str | int | None


def cuda_peak_active_bytes(device: Device = None) -> int:
    """Return the highest number of bytes that tensors occupied since the last reset of the peaks.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_peak_active_bytes")
    return torch.cuda.max_memory_allocated(device)


def cuda_peak_reserved_bytes(device: Device = None) -> int:
    """Return the highest number of bytes the allocator held since the last reset of the peaks.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_peak_reserved_bytes")
    return torch.cuda.max_memory_reserved(device)


def cuda_reset_peak_stats(device: Device = None) -> None:
    """Restart the peaks from the current values; does nothing before CUDA is used."""
    # Before, all peaks are zero, and torch refuses the number of a device.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)


def cuda_empty_cache() -> None:
    """Return unused cached blocks to the driver; does nothing before CUDA is used."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def manual_seed(seed: int) -> None:
    """Seed torch's generators: those of the CPU and of all accelerators."""
    torch.manual_seed(seed)


def _need_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        raise StateError(
            f"{name}() needs a CUDA device and this process sees none; ask "
            "torch.cuda.is_available() first"
        )
