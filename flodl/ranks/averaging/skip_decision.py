"""Decide for all ranks whether an average takes place.

If one rank entered an exchange and another did not, both would hang. So a rank enters only after a
decision is in the store. The rank that arrives last writes ``go``; a rank that has waited for too
long writes ``skip``. Only the first write counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_GO, _SKIP = b"go", b"skip"
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.002
"""Seconds between two reads of the store: far below a window, far above the time of a read."""


@final
class SkipDecision:
    """The decisions of one training; every rank asks for every round, in the same order.

    Args:
        store: A store that all ranks share.
        rank: Number of this process.
        world_size: Number of ranks.
        timeout: Seconds to wait for a late rank; may change between two rounds.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: float) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self.timeout = timeout
        self._written: list[str] = []

    def decide(self, round: int) -> bool:
        """Return True if all ranks average now, False if no rank does.

        Args:
            round: Number of the average, counting skipped ones; each number is used once.
        """
        if self._world_size == 1:
            return True
        arrived, decision = f"average/{round}/arrived", f"average/{round}/decision"
        self._written += [arrived, decision]
        if self._store.add(arrived, 1) == self._world_size:
            go = self._write(decision, _GO)
        else:
            go = self._wait_for(decision)
        if go:
            self._forget_earlier(arrived)
        return go

    def _wait_for(self, decision: str) -> bool:
        until = time.monotonic() + self.timeout
        pause = _FIRST_PAUSE
        while not self._store.check([decision]):
            now = time.monotonic()
            if now >= until:
                return self._write(decision, _SKIP)
            time.sleep(min(pause, until - now))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return bool(self._store.get(decision) == _GO)

    def _write(self, decision: str, word: bytes) -> bool:
        """Write a decision unless there is one; return whether the valid decision is ``go``."""
        return bool(self._store.compare_set(decision, "", word.decode()) == _GO)

    def _forget_earlier(self, arrived: str) -> None:
        """Delete the keys of earlier rounds; all ranks are past them, so no rank reads them."""
        here = self._written.index(arrived)
        if self._rank == 0:
            for key in self._written[:here]:
                self._store.delete_key(key)
        del self._written[:here]
