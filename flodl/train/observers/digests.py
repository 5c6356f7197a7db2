"""Digests of tensors and of single samples, and after which steps they are taken.

They depend on the values alone: not on threads, layout or device.
"""

from __future__ import annotations

import hashlib
import math
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, final

import numpy as np
import torch

from flodl.checkpoint.sharded import local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


SHARE = 0.0025
"""Part of the time of the steps that digests may take."""

FIRST_STEPS = 16
"""Steps that measure the time of a step; a power of two."""


@final
class DigestTimes:
    """Digests are due before the first step, and after multiples of a power of two.

    The power is chosen from the cost of the latest digests and the time of the steps since then. So
    two runs share the steps of the larger power.

    Args:
        after: Steps that are complete.
        clock: Monotonic seconds.
        share: Part of the time of the steps that digests may take; infinity: after every step.

    Attributes:
        next_step: Number of complete steps from which on :meth:`is_due` must be asked.
    """

    next_step: float

    def __init__(
        self,
        after: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        share: float = SHARE,
    ) -> None:
        self.next_step = after
        self._clock, self._share = clock, share
        self._cost: float | None = None
        self._since: tuple[float, int] | None = None
        self._seconds, self._steps = 0.0, 0

    def run(self, step: int) -> None:
        """Start the clock: the next steps follow each other without a pause."""
        self._since = (self._clock(), step)

    def pause(self, step: int) -> None:
        """Stop the clock after ``step`` steps."""
        self._measure(step)
        self._since = None

    def is_due(self, step: int) -> bool:
        """Whether digests are due after ``step`` steps; else choose a later step."""
        self._measure(step)
        if self._cost is None:
            return True
        every = self._every(self._cost)
        self.next_step = -(-step // every) * every
        return self.next_step <= step

    def taken(self, step: int, seconds: float) -> None:
        """Plan the next digests, after some that took this long."""
        self._cost = seconds
        every = self._every(seconds) if self._steps or math.isinf(self._share) else FIRST_STEPS
        self.next_step = (step // every + 1) * every
        self._seconds, self._steps = 0.0, 0
        self.run(step)

    def _every(self, cost: float) -> int:
        least = 1.0
        if self._seconds > 0:
            least = max(1.0, cost * self._steps / (self._share * self._seconds))
        return 1 << math.ceil(math.log2(least))

    def _measure(self, step: int) -> None:
        if self._since is not None:
            now = self._clock()
            self._seconds += now - self._since[0]
            self._steps += step - self._since[1]
            self._since = (now, step)


SAMPLE_BYTES = 8
"""Bytes of the digest of a sample: they name a difference, and prove no equality."""

_ROWS = 64
"""Samples between two looks at the clock."""

_FEW = 64
"""Samples that ranks compare before the first step."""

_FIRST_SECONDS = 0.005
"""Time for the first part: it holds all samples of small data."""


def row_digests(tensors: Sequence[Tensor]) -> bytes:
    """Return 8 bytes for each row of some tensors on the CPU; empty if they have no common rows.

    A row is hashed with BLAKE2b over its elements, tensor by tensor.

    Args:
        tensors: Each ``[rows, …]``.
    """
    if not tensors or any(one.dim() == 0 or len(one) != len(tensors[0]) for one in tensors):
        return b""
    views = [_bytes_of(one) for one in tensors]
    return b"".join(_digest(parts) for parts in zip(*views, strict=True))


def few_samples_digest(tensors: Sequence[Tensor]) -> str:
    """Return a digest of some samples, evenly spread over data in memory; empty for other data."""
    if not tensors or any(one.dim() == 0 or len(one) != len(tensors[0]) for one in tensors):
        return ""
    count = len(tensors[0])
    rows = torch.linspace(0, count - 1, min(count, _FEW)).long()
    few = [one[rows.to(one.device)].cpu() for one in tensors]
    return blake2b(row_digests(few), digest_size=SAMPLE_BYTES).hexdigest()


def _bytes_of(tensor: Tensor) -> list[memoryview]:
    """The bytes of each row."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    width = plain.nbytes // max(1, len(plain))
    whole = memoryview(b"")
    if width:  # Tensor.numpy() would forbid the program to resize its tensor from now on
        whole = np.from_dlpack(plain.reshape(-1).view(torch.uint8)).data
    return [whole[at * width : (at + 1) * width] for at in range(len(plain))]


def _digest(parts: Sequence[memoryview]) -> bytes:
    found = blake2b(digest_size=SAMPLE_BYTES)
    for part in parts:
        found.update(part)
    return found.digest()


@final
class SampleDigests:
    """Takes the digests of all samples of data that is in memory, a part at a time.

    Args:
        tensors: The data, each ``[samples, …]`` on the CPU; empty for other data.
        clock: Monotonic seconds.
    """

    def __init__(
        self, tensors: Sequence[Tensor], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._tensors = tensors if all(one.device.type == "cpu" for one in tensors) else ()
        self._clock = clock
        self._next = 0

    def take(self, seconds: float) -> tuple[int, bytes]:
        """Take the next digests.

        Args:
            seconds: Time to use. The first call takes a few milliseconds at least.

        Returns:
            The number of the first sample, and 8 bytes for each.
        """
        first, found = self._next, bytearray()
        end = len(self._tensors[0]) if self._tensors else 0
        limit = self._clock() + (seconds if first else max(seconds, _FIRST_SECONDS))
        while self._next < end and self._clock() < limit:
            stop = min(end, self._next + _ROWS)
            found += row_digests([one[self._next : stop] for one in self._tensors])
            self._next = stop
        return first, bytes(found)
