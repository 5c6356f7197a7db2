"""ASYNC: the average of a window arrives while the ranks train the next window.

After a window each rank takes a snapshot s of its parameters, starts to average the snapshots, and
trains on. When the average arrives, p ← p + (average - s): progress made meanwhile is kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from flodl.errors import DivergedError
from flodl.train.policies.windows import LeaseWindow, WindowFeed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.ranks.averaging.average import Averaged, Round
    from flodl.ranks.group import Pending
    from flodl.ranks.planning.schedule import WindowPlan
    from flodl.train.policies.feed import Exchanged, FeedParts


@dataclass(slots=True)
class _UnderWay:
    """An average in progress."""

    plan: WindowPlan
    round: Round
    rows: Pending
    batches: int = 0
    """Batches trained since the snapshot."""
    here_at: float | None = None
    """Time in seconds at which the parts of all ranks had arrived."""


@final
class OverlappedFeed(WindowFeed):
    """Trains on while an average is in progress; one average at a time."""

    overlaps = True

    def __init__(self, given: FeedParts) -> None:
        super().__init__(given)
        self._under_way: _UnderWay | None = None
        self._landing: tuple[Averaged, Sequence[Sequence[float]], float] | None = None
        self._exposed_ms = 0.0
        self._latest_average: Averaged | None = None

    @property
    def may_lag(self) -> bool:
        """Whether an average may arrive after the next batch."""
        return self.schedule.overshoot > 0

    def start(self, window: LeaseWindow, wishes: Sequence[float]) -> None:
        """Start to average a window, while the next one is open already."""
        row = self._row(window, self._latest_average, self._exposed_ms, wishes)
        self._marks(self._words[0])
        began = time.perf_counter()
        round = self._averager.start(window.samples)
        self._under_way = _UnderWay(window.plan, round, self._group.gather_later(row, prompt=True))
        self.is_under_way = True
        self._exposed_ms = (time.perf_counter() - began) * 1000

    def is_due(self) -> bool:
        """Whether an average that is under way must be applied after this batch."""
        under_way = self._under_way
        if under_way is None:
            return False
        under_way.batches += 1
        # In a deterministic training an average arrives after a fixed number of batches.
        if self._declared_ms is None and self._arrived(under_way):
            return True
        if under_way.batches < self.schedule.overshoot:
            return False
        self._marks("throttle", rank=self._group.rank)
        return True

    def _arrived(self, under_way: _UnderWay) -> bool:
        if not (under_way.round.done() and under_way.rows.done()):
            return False
        now = time.perf_counter()
        if under_way.here_at is None:
            under_way.here_at = now
        return now >= under_way.here_at + self._pad_ms / 1000

    def apply(self) -> None:
        """Wait for the average under way, and apply it; :meth:`landed` ends the exchange."""
        if (under_way := self._under_way) is None:
            return
        began = time.perf_counter()
        try:
            averaged = under_way.round.apply()
        except DivergedError as error:
            raise self._located(error) from None
        self._landing = averaged, under_way.rows.wait(), began

    def landed(self) -> Exchanged:
        """End an exchange whose average is applied."""
        under_way, landing = self._under_way, self._landing
        assert under_way is not None  # noqa: S101 - after apply
        assert landing is not None  # noqa: S101
        averaged, rows, began = landing
        while not self._arrived(under_way):
            time.sleep(0.0005)
        self._exposed_ms += (time.perf_counter() - began) * 1000
        self._under_way, self._landing, self._latest_average = None, None, averaged
        self.is_under_way = False
        self._marks(self._words[1], ms=self._exposed_ms)
        self._count(averaged)
        return self._close(under_way.plan, rows, averaged=False)

    def exchange(self, window: LeaseWindow, wishes: Sequence[float]) -> Exchanged:
        """Average and wait for it, because something is due that needs one model."""
        averaged, sync_ms = self._average(window.samples)
        row = self._row(window, averaged, sync_ms, wishes)
        rows = self._group.gather(row, prompt=True)
        self._exposed_ms, self._latest_average = 0.0, None
        return self._close(window.plan, rows, averaged=True)

    def return_to(self, state: Any) -> None:
        """Go back to the result of :meth:`state`."""
        super().return_to(state)
        self._under_way = self._landing = None
        self.is_under_way = False
        self._exposed_ms, self._latest_average = 0.0, None
