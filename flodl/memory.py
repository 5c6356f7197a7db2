"""Memory and hardware of this machine: CUDA statistics, the process, the processor.

Queries about CUDA memory raise on a machine without a CUDA device, so that a zero always means a
measured zero. Functions that only release memory do nothing there.
"""

from __future__ import annotations

import ctypes
import gc
import os
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from flodl.environment import environment_report
from flodl.errors import StateError
from flodl.host_memory import resident_bytes
from flodl.monitor.formats import format_bytes

if TYPE_CHECKING:
    Device: TypeAlias = torch.device | str | int | None


def cuda_memory_info(device: Device = None) -> tuple[int, int]:
    """Return ``(used, total)`` bytes of a device; used includes all processes and the driver.

    Args:
        device: A CUDA device; default: the current one.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_memory_info")
    free, total = torch.cuda.mem_get_info(device)
    return total - free, total


def cuda_active_bytes(device: Device = None) -> int:
    """Return the bytes that tensors occupy now (``torch.cuda.memory_allocated``).

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_active_bytes")
    return torch.cuda.memory_allocated(device)


def cuda_allocated_bytes(device: Device = None) -> int:
    """Return the bytes that the allocator holds now (``torch.cuda.memory_reserved``).

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_allocated_bytes")
    return torch.cuda.memory_reserved(device)


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


def cuda_utilization(device: Device = None) -> int:
    """Return the percentage of the last sample period in which a kernel ran.

    Raises:
        StateError: There is no CUDA device.
    """
    _need_cuda("cuda_utilization")
    return torch.cuda.utilization(device)


def cuda_reset_peak_stats(device: Device = None) -> None:
    """Restart the peaks from the current values; does nothing without CUDA."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats(device)


def cuda_empty_cache() -> None:
    """Return unused cached blocks to the driver; does nothing without CUDA."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def set_cudnn_benchmark(enabled: bool) -> None:
    """Let cuDNN time its convolution algorithms once per input shape and keep the fastest.

    It helps when shapes repeat and costs time when they change. Sums may run in another order from
    run to run.
    """
    torch.backends.cudnn.benchmark = enabled


def manual_seed(seed: int) -> None:
    """Seed torch's generators: those of the CPU and of all accelerators."""
    torch.manual_seed(seed)


def rss_kb() -> int:
    """Return the resident memory of this process in KiB."""
    return resident_bytes() // 1024


def malloc_trim() -> bool:
    """Ask the C library to return free heap memory to the system.

    Returns:
        Whether memory was returned; False if the C library is not glibc.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return bool(trim(0))


def live_tensor_count() -> int:
    """Count the tensors that Python can reach; growth from epoch to epoch means a leak.

    It visits every object of the garbage collector: use it for diagnosis, not in every step.
    Tensors that only autograd or C++ hold are not counted.
    """
    # type() instead of isinstance: an object may report another class, and asking it may have a
    # side effect such as a lazy import.
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
