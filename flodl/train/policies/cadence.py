"""CADENCE and ASYNC: all ranks end a window at the same time, then average their weights.

With CADENCE they wait for the average. With ASYNC, and with CADENCE that overlaps, it arrives while
they train the next window.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from flodl import log
from flodl.errors import DistributedError, DivergedError
from flodl.ranks.planning.scheduler import extend_window
from flodl.ranks.settings import Backend
from flodl.train.policies.windows import LeaseWindow, WindowFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._C._distributed_c10d import Store

    from flodl.ranks.averaging.average import Averaged, Round
    from flodl.ranks.group import Pending
    from flodl.ranks.planning.schedule import WindowPlan
    from flodl.train.policies.feed import Exchanged, FeedParts


_GO, _SKIP = b"go", b"skip"
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.002
"""Seconds between two reads of the store: far below a window, far above the time of a read."""


@final
class SkipDecision:
    """Decides for all ranks whether an average takes place.

    If one rank entered an exchange and another did not, both would hang. So a rank enters only
    after a decision is in the store. The rank that arrives last writes ``go``; a rank that has
    waited for too long writes ``skip``. Only the first write counts. Every rank asks for every
    round, in the same order.

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


MAX_SKIPS = 3
"""Skipped averages in a row after which training fails, so that a launcher can restart it."""


@final
class CadenceFeed(WindowFeed):
    """Waits for the other ranks at the end of a window, then averages."""

    def __init__(self, given: FeedParts) -> None:
        super().__init__(given)
        self._exchange_ms = 0.0
        self._round = self._skips = 0
        self._done_with = -1
        """Index of the first window, once this rank has reported that its part is done."""
        group, settings = self._group, self._settings
        self._skip_decision: SkipDecision | None = None
        if settings.backend is Backend.CPU and group.world_size > 1:
            self._skip_decision = SkipDecision(
                group.store, group.rank, group.world_size, settings.snapshot_timeout
            )

    def _has_time(self, plan: WindowPlan) -> bool:
        """Whether slower ranks are still training their part of the first window.

        The speeds are unknown in this window, so a rank that is done early trains on instead of
        waiting.
        """
        if not plan.warm_up:
            return False
        group, key = self._group, f"warm-up/{plan.index}"
        done = group.store.add(key, int(self._done_with != plan.index))
        self._done_with = plan.index
        return done < group.world_size

    def extend(self, window: LeaseWindow, asked_to_end: Callable[[], bool]) -> bool:
        """Make a window longer because a rank is late; False if all ranks are there.

        Raises:
            DistributedError: A rank was late too often, or this one was asked to end meanwhile.
        """
        if self._skip_decision is None:
            return False
        self._round += 1
        if self._skip_decision.decide(self._round):
            self._skips = 0
            return False
        self._skips += 1
        self.aborts += 1
        self._marks("skip", count=self.aborts)
        if asked_to_end():
            # A launcher that lost a rank ends the others first, then restarts all ranks.
            raise DistributedError(
                f"rank {self._group.rank} was asked to end, and another rank did not come to the "
                "average; started again, the training continues from its last checkpoint"
            )
        if self._skips == MAX_SKIPS:
            raise DistributedError(
                f"a rank did not come to {MAX_SKIPS} averages in a row within "
                f"{self._settings.snapshot_timeout:g} s each; start the ranks again "
                "(a launcher with restarts left does so by itself)"
            )
        log.warning(f"rank {self._group.rank}: an average is skipped, a rank is late")
        self.schedule, window.plan = extend_window(self.schedule, window.plan, self.config)
        window.last_epoch = self._last_epoch(window.plan)
        return True

    def exchange(self, window: LeaseWindow, wishes: Sequence[float]) -> Exchanged:
        """Average, and report the window."""
        averaged, sync_ms = self._average(window.samples)
        # The cost includes exchanging the reports: the previous window's time stands for it.
        row = self._row(window, averaged, sync_ms + self._exchange_ms, wishes)
        began = time.perf_counter()
        rows = self._group.gather(row, prompt=True)
        self._exchange_ms = (time.perf_counter() - began) * 1000
        return self._close(window.plan, rows, averaged=True)


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
    """Trains on while an average is in progress; one average at a time.

    After a window each rank takes a snapshot s of its parameters, starts to average the snapshots,
    and trains on. When the average arrives, p ← p + (average - s): progress made meanwhile is kept.
    """

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
