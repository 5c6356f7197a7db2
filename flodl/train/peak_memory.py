"""The highest memory use of this process, and what a training would need on a CUDA device.

For a device that is not here, two steps run on this machine. Every tensor that they make is placed
by the rules of PyTorch's caching allocator, so the result is what the allocator would reserve.

Source of the rules: ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from bisect import bisect_left, insort
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flodl.host_memory import host_memory_bytes, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn


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


VARIABLE = "FLODL_REHEARSE_GPU"
"""``BYTES NAME`` of the GPU that a rehearsal is about."""

MARGIN = 0.9
"""The part of the memory that a step may use."""

CONTEXT_BYTES = 640 << 20
"""CUDA's context with the kernels that are loaded, and the workspaces of cuBLAS."""

_ROUND = 512
_SMALL, _SMALL_SEGMENT = 1 << 20, 2 << 20
_MIDDLE, _MIDDLE_SEGMENT = 10 << 20, 20 << 20
_LARGE_ROUND = 2 << 20
_SLACK = 2 * _MIDDLE_SEGMENT
"""What segments that are not full may take more with another batch."""


@final
@dataclass(frozen=True)
class GpuMemory:
    """The prediction for one GPU; sizes in bytes.

    Attributes:
        name: The GPU.
        total_bytes: Its memory.
        parameter_bytes: Parameters and buffers of the model.
        gradient_bytes: Gradients of the parameters.
        optimizer_bytes: What else stays from one step to the next: the states of the optimizer.
        activation_bytes: The rest of the peak, which grows with the batch.
        reserved_bytes: What the allocator would reserve at the peak.
        needed_bytes: The same with CUDA's own memory.
        fits: Whether it fits into 90 % of the GPU.
        largest_batch_size: A batch that fits, perhaps not the largest; None if it is unknown.
    """

    name: str
    total_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    reserved_bytes: int
    needed_bytes: int
    fits: bool
    largest_batch_size: int | None


@final
class Allocator:
    """Places blocks as PyTorch's caching allocator does, and gives no segment back.

    Attributes:
        allocated: Bytes of blocks in use.
        reserved: Bytes of all segments.
    """

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved = 0
        # Of each pool: free blocks as (size, start), and their ends for merging.
        self._free: tuple[list[tuple[int, int]], ...] = ([], [])
        self._sizes: tuple[dict[int, int], ...] = ({}, {})
        self._ends: tuple[dict[int, int], ...] = ({}, {})
        self._next = 0

    def take(self, size: int) -> tuple[int, int]:
        """Place a block; return its start and its size in the allocator."""
        size = max(_ROUND, -(-size // _ROUND) * _ROUND)
        pool = int(size > _SMALL)
        free = self._free[pool]
        place = bisect_left(free, (size, 0))
        if place < len(free):
            length, start = free[place]
            self._remove(pool, start, length)
        else:
            length = _segment(size)
            start, self._next = self._next, self._next + length + 1  # segments never merge
            self.reserved += length
        rest = length - size
        if rest >= _ROUND and (pool == 0 or rest > _SMALL):
            self._add(pool, start + size, rest)
        else:
            size = length
        self.allocated += size
        return start, size

    def give(self, start: int, size: int) -> None:
        """Free a block, with the size that :meth:`take` returned."""
        self.allocated -= size
        # A block of the pool of small ones is never larger than a segment of it, and the other way.
        pool = int(size > _SMALL)
        if before := self._ends[pool].get(start):
            self._remove(pool, start - before, before)
            start, size = start - before, size + before
        if after := self._sizes[pool].get(start + size):
            self._remove(pool, start + size, after)
            size += after
        self._add(pool, start, size)

    def _add(self, pool: int, start: int, size: int) -> None:
        insort(self._free[pool], (size, start))
        self._sizes[pool][start] = self._ends[pool][start + size] = size

    def _remove(self, pool: int, start: int, size: int) -> None:
        free = self._free[pool]
        del free[bisect_left(free, (size, start))]
        del self._sizes[pool][start], self._ends[pool][start + size]


def _segment(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _MIDDLE:
        return _MIDDLE_SEGMENT
    return -(-size // _LARGE_ROUND) * _LARGE_ROUND


@final
class GpuMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operations make on a device, until it is left.

    Args:
        device: The device of the training here.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = device.type
        self._allocator = Allocator()
        self._seen: dict[int, tuple[int, int]] = {}
        self._trained: list[nn.Parameter] = []
        self._parameters = self._gradients = 0
        self._states: set[int] = set()
        self._kept: int | None = None
        self._peak = 0
        self.counts_inputs = False
        """Whether an operation's inputs are on the GPU, too: batches, made by another thread."""
        self.optimizes = False
        """Whether the optimizer is at work, whose tensors stay if they outlive its step."""

    def add_model(self, model: nn.Module) -> None:
        """The model is on the GPU."""
        for one in (*model.parameters(), *model.buffers()):
            self._see(one)
        self._parameters = self._allocator.allocated
        self._trained = [one for one in model.parameters() if one.requires_grad]
        self._gradients = sum(one.nbytes for one in self._trained)

    def step_ended(self) -> None:
        """An optimizer step is over: what it made and is still there stays."""
        self._kept = self._parameters + sum(self._seen[key][1] for key in self._states)
        # An optimizer on a GPU computes all parameters at once, beside their gradients.
        self._peak = max(self._peak, self._kept + 2 * self._gradients)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and count what it makes."""
        if self.counts_inputs:
            for one in tree_leaves(args):
                self._see(one)
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            self._see(one)
        return made

    def _see(self, value: object) -> None:
        if not isinstance(value, Tensor) or value.device.type != self._kind:
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen[key] = self._allocator.take(storage.nbytes())
        if self.optimizes:
            self._states.add(key)
        weakref.finalize(storage, self._forget, key).atexit = False
        self._peak = max(self._peak, self._allocator.reserved)

    def _forget(self, key: int) -> None:
        self._allocator.give(*self._seen.pop(key))
        self._states.discard(key)

    def result(self, batch_size: int | None, samples: int | None) -> GpuMemory | None:
        """The prediction for the GPU of :data:`VARIABLE`; None if no step has ended.

        Args:
            batch_size: The samples of the batches that ran.
            samples: The most that a batch may have.
        """
        total, _, name = os.environ[VARIABLE].partition(" ")
        if self._kept is None:
            return None
        needed = CONTEXT_BYTES + self._peak
        states = max(0, self._kept - self._parameters)
        rest = self._peak - self._parameters - self._gradients - states
        return GpuMemory(
            name=name,
            total_bytes=int(total),
            parameter_bytes=self._parameters,
            gradient_bytes=self._gradients,
            optimizer_bytes=states,
            activation_bytes=max(0, rest),
            reserved_bytes=self._peak,
            needed_bytes=needed,
            fits=needed <= MARGIN * int(total),
            largest_batch_size=self._largest(batch_size, samples, int(total)),
        )

    def _largest(self, batch_size: int | None, samples: int | None, total: int) -> int | None:
        """The largest batch that surely fits.

        The peak is the highest of several sums that each grow linearly with the batch. So it lies
        below its chord for smaller batches, and below the steepest such line for larger ones.
        """
        free = MARGIN * total - CONTEXT_BYTES - _SLACK
        kept = self._kept or 0
        low = kept if self._peak <= free else min(self._peak, kept + 2 * self._gradients)
        if batch_size is None or self._peak == low:
            return None
        fitting = max(0, int(batch_size * (free - low) / (self._peak - low)))
        return fitting if samples is None else min(fitting, samples)


def wanted() -> bool:
    """Whether the rehearsal of this process is about a GPU."""
    return VARIABLE in os.environ
