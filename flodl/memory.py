"""Memory and hardware, asked for in one place: CUDA statistics, the process, the machine.

A query about CUDA memory raises on a machine without a CUDA device, so that a zero is never taken
for a measurement; what only lets memory go does nothing there.
"""

from __future__ import annotations

import ctypes
import gc
import os
from typing import TYPE_CHECKING, TypeAlias

import psutil
import torch
from torch import Tensor

from flodl.errors import StateError
from flodl.monitor.formats import format_bytes
from flodl.train.environment import environment_report

if TYPE_CHECKING:
    Device: TypeAlias = torch.device | str | int | None


def cuda_memory_info(device: Device = None) -> tuple[int, int]:
    """Return bytes ``(used, total)`` of a device; used counts every process and the driver.

    Args:
        device: A CUDA device; default: the current one.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_memory_info")
    free, total = torch.cuda.mem_get_info(device)
    return total - free, total


def cuda_active_bytes(device: Device = None) -> int:
    """Return the bytes that tensors hold now (``torch.cuda.memory_allocated``).

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_active_bytes")
    return torch.cuda.memory_allocated(device)


def cuda_allocated_bytes(device: Device = None) -> int:
    """Return the bytes the allocator has from the driver now (``torch.cuda.memory_reserved``).

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_allocated_bytes")
    return torch.cuda.memory_reserved(device)


def cuda_peak_active_bytes(device: Device = None) -> int:
    """Return the most bytes tensors held at once since the last reset of the peaks.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_peak_active_bytes")
    return torch.cuda.max_memory_allocated(device)


def cuda_peak_reserved_bytes(device: Device = None) -> int:
    """Return the most bytes the allocator had at once since the last reset of the peaks.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_peak_reserved_bytes")
    return torch.cuda.max_memory_reserved(device)


def cuda_utilization(device: Device = None) -> int:
    """Return the percentage of the last sample period in which a kernel ran.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_utilization")
    return torch.cuda.utilization(device)


def cuda_reset_peak_stats(device: Device = None) -> None:
    """Let the peaks start again from what is held now; without CUDA there is nothing to reset."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats(device)


def cuda_empty_cache() -> None:
    """Give unused cached blocks back to the driver; without CUDA there are none."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def set_cudnn_benchmark(enabled: bool) -> None:
    """Let cuDNN try its convolution algorithms once per input shape and keep the fastest.

    Pays where shapes repeat, costs where they change, and may choose algorithms whose sums run in
    another order from run to run.
    """
    torch.backends.cudnn.benchmark = enabled


def manual_seed(seed: int) -> None:
    """Seed torch's generators: the CPU's and every accelerator's."""
    torch.manual_seed(seed)


def rss_kb() -> int:
    """Return the resident memory of this process in KiB."""
    return int(psutil.Process().memory_info().rss) // 1024


def malloc_trim() -> bool:
    """Ask the C library to give free heap back to the system.

    Returns:
        Whether any was given back; False where the C library is not glibc.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return bool(trim(0))


def live_tensor_count() -> int:
    """Count the tensors Python can reach: a number that grows from epoch to epoch is a leak.

    Walks over every object the garbage collector follows: for looking into, not for every step.
    Tensors that only autograd or C++ hold are not among them.
    """
    # type() rather than isinstance: an object may lie about its class, at the price of a side
    # effect such as a lazy import.
    return sum(issubclass(type(candidate), Tensor) for candidate in gc.get_objects())


def hardware_summary() -> str:
    """Describe processor, memory and CUDA devices in one line."""
    machine = environment_report()
    parts = [
        f"{machine['cpu']} ({os.cpu_count() or 1} cores)",
        f"{format_bytes(machine['memory'])} RAM",
    ]
    devices = machine["cuda_devices"]
    parts += [f"{each['name']} ({format_bytes(each['memory'])})" for each in devices]
    return " | ".join(parts if devices else [*parts, "no CUDA device"])


def _need_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        raise StateError(
            f"{name}() needs a CUDA device and this process sees none; ask "
            "torch.cuda.is_available() first, or use rss_kb() for the memory of the process"
        )
