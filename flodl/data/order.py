"""The orders of a loader's epochs: drawn once for an epoch, and compared when one is continued."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal, final

from torch import Tensor

from flodl.data.sampler import RandomSampler, Sampler, SequentialSampler, epoch_order

_EPOCHS = 2
"""Number of orders kept: a window may begin in one epoch and end in the next."""

_PIECES, _PIECE = 64, 1 << 14
"""Pieces of a long order that its digest reads, and samples in a piece."""


@final
class EpochOrders:
    """Draws the order of an epoch, and keeps those of the latest two.

    Args:
        given: The sampler of the program; None for one of flodl's.
        n: Samples.
        seed: Decides a random order, together with the epoch.
        shuffle: Whether flodl's order is random.

    Raises:
        TypeError: ``given`` is not a sampler.
    """

    def __init__(self, given: Sampler | None, n: int, *, seed: int, shuffle: bool) -> None:
        if given is not None and not callable(getattr(given, "indices", None)):
            raise TypeError(
                f"sampler={given!r} has no indices(epoch) method; derive from flodl.Sampler"
            )
        self.sampler: Sampler
        self.kind: Literal["random", "sequential", "custom"]
        if given is not None:
            self.sampler, self.kind = given, "custom"
        elif shuffle:
            self.sampler, self.kind = RandomSampler(n, seed), "random"
        else:
            self.sampler, self.kind = SequentialSampler(n), "sequential"
        self._n = n
        self._drawn: OrderedDict[int, Tensor] = OrderedDict()
        self._digests: dict[int, str] = {}

    @property
    def name(self) -> str:
        """The kind of order, or the class of a sampler that was given."""
        return type(self.sampler).__name__ if self.kind == "custom" else self.kind

    def of(self, epoch: int, *, again: bool = False) -> Tensor:
        """Return the order of an epoch, ``[n]`` int64 on the CPU.

        Args:
            epoch: Number of the epoch.
            again: Ask the sampler, even if it was asked for this epoch before.

        Raises:
            DataError: A user's sampler returned invalid indices.
        """
        if again:
            self._digests.clear()
            self._drawn.clear()  # first free their memory
        if epoch not in self._drawn:
            if len(self._drawn) == _EPOCHS:
                self._drawn.popitem(last=False)
            self._drawn[epoch] = epoch_order(self.sampler, epoch, self._n)
        self._drawn.move_to_end(epoch)
        return self._drawn[epoch]

    def digest(self, epoch: int) -> str:
        """Return a digest of the order of an epoch; computed once per epoch."""
        if epoch not in self._digests:
            self._digests[epoch] = order_digest(self.of(epoch))
        return self._digests[epoch]

    def other_than(self, state: Mapping[str, Any]) -> str | None:
        """Return how the order of an epoch differs from that of a loader's state; None if equal.

        Args:
            state: A state inside an epoch; in others, and in those of earlier versions, there is no
                digest to compare.
        """
        saved, epoch = state.get("order"), int(state["epoch"])
        if saved is None or saved == self.digest(epoch):
            return None
        before, now = (_told(str(name)) for name in (state.get("sampler"), self.name))
        told = f"{before}, and now it has {now}" if before != now else f"another order of {now}"
        return (
            f"{state['batch']} batches of epoch {epoch} (counted from 0) were trained with {told}: "
            "the batches that are left would hold samples that were trained already, and others "
            "would never be trained"
        )


def order_digest(order: Tensor) -> str:
    """Return a digest of the order of an epoch.

    Of an order with more than a million samples, it reads 64 pieces that are evenly spaced.

    Args:
        order: ``[n]`` int64 on the CPU.
    """
    n = len(order)
    found = hashlib.blake2b(str(n).encode(), digest_size=8)
    pieces, length = (1, n) if n <= _PIECES * _PIECE else (_PIECES, _PIECE)
    for piece in range(pieces):
        start = piece * (n - length) // max(1, pieces - 1)
        found.update(order[start : start + length].numpy().astype("<i8").data)
    return found.hexdigest()


def _told(name: str) -> str:
    usual = {"random": "shuffle=True", "sequential": "shuffle=False"}
    return usual.get(name, f"the sampler {name}")
