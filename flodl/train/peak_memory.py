"""The highest memory use since the last reading."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import final

import torch

from flodl.host_memory import host_memory_bytes, resident_bytes

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def available_bytes(device: torch.device, sharing: int = 1) -> int:
    """Return the bytes that this process could use in all on a device, its own included.

    On a CUDA device this is the memory of the device without that of other programs. Else it is the
    available memory of the host and what this process holds.

    Args:
        device: The device.
        sharing: Processes that share the available memory of the host.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)
    return host_memory_bytes().available // sharing + resident_bytes()


@final
class PeakMemory:
    """Reads the peak of the memory since the last reading.

    On a CUDA device it counts the bytes of tensors. On a CPU it counts the resident memory of the
    process: its peak on Linux, where the kernel can reset it; elsewhere the current value.

    Args:
        device: The device of the training.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._resets = not self._is_cuda and self._reset()
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats(device)

    def in_use(self) -> int:
        """Return the bytes in use now, without what the C library keeps of freed memory.

        What follows would fill the kept memory first, and so seem to need less than it does.
        """
        if self._is_cuda:
            return torch.cuda.memory_allocated(self._device)
        if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
            library.malloc_trim(0)
        return resident_bytes()

    def take(self) -> int:
        """Return the highest number of bytes since the last call, and begin again."""
        if self._is_cuda:
            peak = torch.cuda.max_memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            return peak
        peak = self._process_peak() if self._resets else resident_bytes()
        if self._resets:
            self._reset()
        return peak

    def wait(self) -> None:
        """Wait until the device has done its work, so that times belong to their phases."""
        if self._is_cuda:
            torch.cuda.synchronize(self._device)

    @staticmethod
    def _reset() -> bool:
        try:
            _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
        except OSError:
            return False
        return True

    @staticmethod
    def _process_peak() -> int:
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0
