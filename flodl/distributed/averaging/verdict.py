"""Whether an average takes place: decided by the first of the ranks that can tell, for all.

An exchange that one rank enters and another does not would hang both. So nobody enters before a
verdict is written in the store: ``go`` by the rank that arrives last, or ``skip`` by one that has
waited for too long. Only the first write counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_GO, _SKIP = b"go", b"skip"
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.002
"""Seconds between two looks into the store: far below a window, far above a look."""


@final
class SkipVerdict:
    """The verdicts of one training; every rank asks for every round, in the same order.

    Args:
        store: Shared by the ranks.
        rank: Of this process.
        world_size: Number of ranks.
        timeout: Seconds to wait for a late rank.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: float) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._timeout = timeout
        self._written: list[str] = []

    def decide(self, round: int) -> bool:
        """Return whether all ranks average now; False: none does.

        Args:
            round: Number of the average, skipped ones included; never used twice.
        """
        if self._world_size == 1:
            return True
        arrived, verdict = f"average/{round}/arrived", f"average/{round}/verdict"
        self._written += [arrived, verdict]
        if self._store.add(arrived, 1) == self._world_size:
            go = self._write(verdict, _GO)
        else:
            go = self._wait_for(verdict)
        if go:
            self._forget_earlier(arrived)
        return go

    def _wait_for(self, verdict: str) -> bool:
        until = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while not self._store.check([verdict]):
            now = time.monotonic()
            if now >= until:
                return self._write(verdict, _SKIP)
            time.sleep(min(pause, until - now))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return bool(self._store.get(verdict) == _GO)

    def _write(self, verdict: str, word: bytes) -> bool:
        """Write a verdict unless there is one; whichever holds."""
        return bool(self._store.compare_set(verdict, "", word.decode()) == _GO)

    def _forget_earlier(self, arrived: str) -> None:
        """Delete the keys of earlier rounds: everybody has come here, so nobody reads them."""
        here = self._written.index(arrived)
        if self._rank == 0:
            for key in self._written[:here]:
                self._store.delete_key(key)
        del self._written[:here]
