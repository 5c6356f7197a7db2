"""The copy of one batch from the host to the device, split between two threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor

Group: TypeAlias = Sequence[tuple[Tensor, ...]]
"""Batches in host memory that were read together."""

_GROUP_BYTES = 4 * 2**20
"""Small batches are read together up to about this size: a batch alone costs more than its copy."""

_SMALL_BYTES = 2**18
"""Copying this takes about 10 µs; another stream and its events take more."""


class Sent(NamedTuple):
    """A batch on its way: the tensors, and the event to wait for before they may be read."""

    tensors: tuple[Tensor, ...]
    arrival: torch.cuda.Event | None


class Transfer(ABC):
    """Brings batches to a device."""

    @abstractmethod
    def send(self, batches: Group) -> list[Sent]:
        """Start the copies; runs on the thread that loads."""

    @abstractmethod
    def receive(self, sent: Sent) -> tuple[Tensor, ...]:
        """Make the batch usable on the consumer's thread."""

    def deliver(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Bring a batch to the device where it was asked for."""
        return self.receive(self.send([batch])[0])

    @abstractmethod
    def gather(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Gather rows of a tensor in host memory, where :meth:`send` best takes them from."""

    @abstractmethod
    def group(self, batch_bytes: int, depth: int) -> int:
        """Return how many batches to gather together if ``depth`` may be ready."""


@final
class DirectTransfer(Transfer):
    """Copies at once, or not at all if the tensors are already in place."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, batches: Group) -> list[Sent]:
        """Copy to the device."""
        return [Sent(tuple([one.to(self._device) for one in batch]), None) for batch in batches]

    def receive(self, sent: Sent) -> tuple[Tensor, ...]:
        """Return the tensors, which have arrived."""
        return sent.tensors

    def gather(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Gather into memory of its own."""
        return tensor.index_select(0, rows)

    def group(self, batch_bytes: int, depth: int) -> int:  # noqa: ARG002
        """Return 1: every batch has its own memory."""
        return 1


@final
class CudaTransfer(Transfer):
    """Copies from pinned memory on its own stream, while the device computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, batches: Group) -> list[Sent]:
        """Queue the copies, then an event."""
        with torch.cuda.stream(self._stream):
            moved = [tuple([self._copy(tensor) for tensor in batch]) for batch in batches]
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record(self._stream)
        return [Sent(tensors, arrival) for tensors in moved]

    def receive(self, sent: Sent) -> tuple[Tensor, ...]:
        """Let the consumer's stream, not its thread, wait for the copies."""
        stream = torch.cuda.current_stream(self._device)
        if sent.arrival is not None:
            stream.wait_event(sent.arrival)
        for tensor in sent.tensors:
            # Otherwise the allocator would give the memory to the next copy as soon as the consumer
            # drops the tensor, though its kernels may still be reading.
            tensor.record_stream(stream)
        return sent.tensors

    def deliver(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As for other devices; a small batch needs no other stream."""
        if sum(tensor.nbytes for tensor in batch) > _SMALL_BYTES:
            return super().deliver(batch)
        return tuple([self._copy(tensor) for tensor in batch])

    def gather(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Gather into pinned memory, which is not given away before it is copied."""
        shape = (len(rows), *tensor.shape[1:])
        pinned = torch.empty(shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return torch.index_select(tensor, 0, rows, out=pinned)

    def group(self, batch_bytes: int, depth: int) -> int:
        """Return as many as a few MiB hold, and at most half of those that may be ready."""
        return max(1, min(depth // 2, _GROUP_BYTES // max(1, batch_bytes)))

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            # The allocator of pinned memory keeps the source until the copy is done.
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def transfer_to(device: torch.device) -> Transfer:
    """Return the transfer to a device."""
    return CudaTransfer(device) if device.type == "cuda" else DirectTransfer(device)
