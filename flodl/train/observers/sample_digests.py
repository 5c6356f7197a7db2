"""Digests of single samples, so that a changed one can be named."""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import TYPE_CHECKING, final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

BYTES = 8
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
    return blake2b(row_digests(few), digest_size=BYTES).hexdigest()


def _bytes_of(tensor: Tensor) -> list[memoryview]:
    """The bytes of each row."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    width = plain.nbytes // max(1, len(plain))
    whole = memoryview(b"")
    if width:  # Tensor.numpy() would forbid the program to resize its tensor from now on
        whole = np.from_dlpack(plain.reshape(-1).view(torch.uint8)).data
    return [whole[at * width : (at + 1) * width] for at in range(len(plain))]


def _digest(parts: Sequence[memoryview]) -> bytes:
    found = blake2b(digest_size=BYTES)
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
