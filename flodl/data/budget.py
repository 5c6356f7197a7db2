"""Limits on the memory that data may take, computed from sizes that the machine reports."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch

from flodl.errors import DistributedError
from flodl.host_memory import host_memory_bytes
from flodl.ranks.launch.launcher import detect

CPU_DEPTH = 2
"""Batches loaded ahead on the CPU: one is ready and one is being loaded."""

FIRST_EPOCH_DEPTH = 4
"""Largest number of batches loaded ahead while the memory of activations is unknown."""


def vram_budget(*, free: int, total: int, usage: float) -> int:
    """Bytes that may still be allocated so that at most ``usage`` of ``total`` are in use.

    ``usage`` is clamped to 0.50 … 0.99.
    """
    usage = min(0.99, max(0.50, usage))
    return max(0, int(usage * total) - (total - free))


def prefetch_depth(
    *, budget: int, reserve: int, batch_bytes: int, num_batches: int, first_epoch: bool
) -> int:
    """Number of batches that may be loaded ahead on a device with its own memory.

    Args:
        budget: Bytes that data may take.
        reserve: Bytes of the budget that activations need at their peak.
        batch_bytes: Bytes of one batch.
        num_batches: Batches of the epoch.
        first_epoch: Whether ``reserve`` is still unknown.

    Returns:
        At least 1, at most ``num_batches`` and, in the first epoch, :data:`FIRST_EPOCH_DEPTH`.
    """
    most = min(num_batches, FIRST_EPOCH_DEPTH) if first_epoch else num_batches
    return max(1, min(most, max(0, budget - reserve) // max(1, batch_bytes)))


class Memory(ABC):
    """Limits that the memory of a device sets."""

    @abstractmethod
    def budget(self) -> int:
        """Bytes that data may take right now."""

    @abstractmethod
    def holds(self, needed: int) -> bool:
        """Whether a data set of this many bytes may stay on the device."""

    @abstractmethod
    def depth(self, *, batch_bytes: int, num_batches: int, first_epoch: bool) -> int:
        """Number of batches that may be loaded ahead of the consumer; at least 1."""


@final
@dataclass(frozen=True)
class HostMemory(Memory):
    """Host memory: the data of all processes together may take half of the available memory.

    Args:
        available: Returns the available bytes.
        processes: Processes of this host that train together and share the memory.
    """

    available: Callable[[], int] = lambda: host_memory_bytes().available
    processes: int = 1

    def budget(self) -> int:
        """The share of this process in half of the available memory."""
        return self.available() // 2 // self.processes

    def holds(self, needed: int) -> bool:
        """Whether the data set fits into the budget."""
        return needed <= self.budget()

    def depth(
        self,
        *,
        batch_bytes: int,  # noqa: ARG002 - two batches take little host memory
        num_batches: int,  # noqa: ARG002
        first_epoch: bool,  # noqa: ARG002
    ) -> int:
        """Two: one batch is ready and one is being loaded."""
        return CPU_DEPTH


@final
@dataclass(frozen=True)
class DeviceMemory(Memory):
    """The memory of one GPU.

    Args:
        usage: Part of it that may be in use.
        probe: Returns the free bytes and the total bytes.
        activation_peak: Returns the bytes that a step needs at its peak, in addition to the memory
            that stays allocated.
    """

    usage: float
    probe: Callable[[], tuple[int, int]]
    activation_peak: Callable[[], int]

    def budget(self) -> int:
        """Bytes left until ``usage`` of the device is in use, by this program and others."""
        free, total = self.probe()
        return vram_budget(free=free, total=total, usage=self.usage)

    def holds(self, needed: int) -> bool:
        """Whether the data set needs less than the budget."""
        return needed < self.budget()

    def depth(self, *, batch_bytes: int, num_batches: int, first_epoch: bool) -> int:
        """As many batches as the budget holds beside the activations."""
        return prefetch_depth(
            budget=self.budget(),
            reserve=0 if first_epoch else self.activation_peak(),
            batch_bytes=batch_bytes,
            num_batches=num_batches,
            first_epoch=first_epoch,
        )


def memory_of(device: torch.device, *, vram_max_usage: float) -> Memory:
    """The memory that holds data for a device."""
    if device.type == "cuda":
        return DeviceMemory(
            vram_max_usage,
            probe=partial(torch.cuda.mem_get_info, device),
            activation_peak=partial(_activation_peak, device),
        )
    return host_memory()


def host_memory() -> HostMemory:
    """The memory of this host, shared with the other ranks that a launcher started here."""
    try:
        launched = detect(os.environ)
    except DistributedError:  # training in ranks reports it; a loader works without ranks
        launched = None
    return HostMemory(processes=1 if launched is None else launched.local_world_size)


def _activation_peak(device: torch.device) -> int:
    # Called between two epochs. The peak is not reset, because other code may also read it.
    allocated = torch.cuda.memory_allocated(device)
    return max(0, torch.cuda.max_memory_allocated(device) - allocated)
