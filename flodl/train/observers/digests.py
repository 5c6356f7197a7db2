"""Digests of tensors that depend on their values alone: not on threads, layout or device."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, final

import numpy as np
import torch

from flodl.checkpoint.sharded import local_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn

BYTES = 16


def named_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers by name; of a sharded tensor, the part of this process."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, local_part(tensor).detach()) for name, tensor in named]


def tensor_hash(tensor: Tensor) -> bytes:
    """Return the SHA-256 of a dense tensor on the CPU: dtype, shape, elements in order."""
    found = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
    if tensor.numel():
        # A copy only if the tensor is laid out otherwise, as with channels last.
        plain = tensor.resolve_conj().resolve_neg()
        words = plain.contiguous().reshape(-1).view(torch.uint8)
        # Tensor.numpy() would forbid the model to resize the tensor from now on.
        found.update(np.from_dlpack(words).data)
    return found.digest()


def combined(hashes: Iterable[bytes]) -> bytes:
    """Return the digest of several hashes."""
    return hashlib.sha256(b"".join(hashes)).digest()[:BYTES]


def order_digest(order: Tensor) -> bytes:
    """Return the digest of an order of samples, ``[samples]`` int64 on the CPU."""
    words = order.contiguous().numpy()
    return hashlib.sha256(words.astype("<i8", copy=False).data).digest()[:BYTES]


@final
class HostCopies:
    """Tensors as they are now, in host memory.

    Tensors on the CPU are not copied, so read them before the next step. Copies from a GPU are only
    started: they take their place in its queue, so that later steps do not change them.

    Args:
        tensors: Detached tensors.

    Attributes:
        copied: Bytes that are copied from a GPU.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._landed: torch.cuda.Event | None = None
        self._tensors = [self._on_host(tensor) for tensor in tensors]
        cuda = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        self.copied = sum(tensor.nbytes for tensor in tensors if tensor.is_cuda)
        if cuda is not None:
            self._landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._landed.record(torch.cuda.current_stream(cuda))

    def tensors(self) -> list[Tensor]:
        """Return the tensors in host memory; waits for the copies."""
        if self._landed is not None:
            self._landed.synchronize()
        return self._tensors

    def hashes(self) -> list[bytes]:
        """Return the hash of each tensor; waits for the copies."""
        return [tensor_hash(tensor) for tensor in self.tensors()]

    @staticmethod
    def _on_host(tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        if not tensor.is_cuda:
            return tensor.cpu()
        held = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return held.copy_(tensor, non_blocking=True)
