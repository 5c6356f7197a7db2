"""The copy of one batch from the host to the device, split between two threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor


class Sent(NamedTuple):
    """A batch on its way: the tensors, and the event to wait for before they may be read."""

    tensors: tuple[Tensor, ...]
    arrival: torch.cuda.Event | None


class Transfer(ABC):
    """Brings batches to a device."""

    @abstractmethod
    def send(self, tensors: tuple[Tensor, ...]) -> Sent:
        """Start the copy; runs on the thread that loads."""

    @abstractmethod
    def receive(self, sent: Sent) -> tuple[Tensor, ...]:
        """Make the batch usable on the consumer's thread."""


@final
class DirectTransfer(Transfer):
    """Copies at once, or not at all if the tensors are already in place."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, tensors: tuple[Tensor, ...]) -> Sent:
        """Copy to the device."""
        return Sent(tuple(tensor.to(self._device) for tensor in tensors), None)

    def receive(self, sent: Sent) -> tuple[Tensor, ...]:
        """Return the tensors, which have arrived."""
        return sent.tensors


@final
class CudaTransfer(Transfer):
    """Copies from pinned memory on its own stream, while the device computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, tensors: tuple[Tensor, ...]) -> Sent:
        """Queue the copies, then an event."""
        with torch.cuda.stream(self._stream):
            moved = tuple(self._copy(tensor) for tensor in tensors)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record(self._stream)
        return Sent(moved, arrival)

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

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            # The allocator of pinned memory keeps the source until the copy is done.
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def transfer_to(device: torch.device) -> Transfer:
    """Return the transfer to a device."""
    return CudaTransfer(device) if device.type == "cuda" else DirectTransfer(device)
