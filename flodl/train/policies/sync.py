"""SYNC: one batch per rank, then one shared step; the math of one process with a larger batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flodl.ranks.planning.schedule import Spans, numbers
from flodl.ranks.planning.scheduler import take_step
from flodl.train.policies.feed import Exchanged, FeedParts, FeedWindow, Part
from flodl.train.policies.shared import SharedFeed

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch import Tensor

    from flodl.data import Batch
    from flodl.errors import DivergedError
    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.epoch_metrics import EpochLogs


@dataclass(slots=True)
class StepWindow(FeedWindow):
    """The batches of one optimizer step of all ranks; the exchange is inside of the step.

    Attributes:
        first: Its first batch, counted through all epochs.
        taken: For each batch of this rank those of all ranks.
        after: The schedule after the step.
    """

    first: int
    taken: list[Spans]
    after: ScheduleState


@final
class SyncFeed(SharedFeed[StepWindow]):
    """Takes ``world_size · accumulate`` consecutive batches per step.

    With ``partition_ratios`` it splits the samples of these batches by the ratios instead: the
    ranks get batches of different sizes.
    """

    def __init__(self, given: FeedParts) -> None:
        super().__init__(given)
        assert given.gradient is not None  # noqa: S101 - the ranks take every step together
        self.batches_per_step = given.group.world_size * given.plan.accumulate
        self._gradient, self.wire = given.gradient, given.gradient.wire
        self._own: tuple[int, Generator[tuple[int, Tensor, Batch]]] | None = None
        """This rank's batches of the rest of an epoch, loaded ahead of the steps."""

    def counts(self) -> tuple[int, tuple[int, ...]]:
        """Return 1: every step has an exchange."""
        return 1, (1,) * self._group.world_size

    def open(self) -> StepWindow | None:
        """Return the batches of one optimizer step, all from the same epoch."""
        state, taken = self.schedule, list[Spans]()
        while len(taken) < self._accumulate and state.complete == self.schedule.complete:
            state, found = take_step(state, self.config)
            if not found:
                break
            taken.append(found)
        if not taken:
            return None
        last = (taken[-1][-1][1] - 1) // self.config.batches_per_epoch
        return StepWindow(last, self.schedule.position, taken[0][0][0], taken, state)

    def enter(self, window: StepWindow) -> None:
        """Begin a step."""
        if self._own is None or self._own[0] != self.schedule.complete:
            self.close()
            self._own = self.schedule.complete, self._load_ahead()
        self.schedule = window.after

    def parts(self, window: StepWindow) -> Generator[Part]:
        """Load this rank's part of a step."""
        mine = [part for taken in window.taken if (part := self._part(taken)) is not None]
        for index, (number, rows, batch, skip) in enumerate(mine, 1):
            self._expect(number, window.first)
            yield Part(
                number,
                rows,
                batch,
                window.position,
                skip,
                parts=len(mine),
                closes=index == len(mine),
            )

    def exchange(self, window: StepWindow, wishes: Sequence[float]) -> Exchanged:  # noqa: ARG002
        """Count a step, in which the exchange was."""
        self.averages += 1
        return Exchanged()

    def settle(self) -> float:
        """Average the buffers; return the milliseconds of exchanges so far."""
        return self._gradient.settle()

    def failed_at(
        self,
        window: StepWindow,
        problem: DivergedError,  # noqa: ARG002
        logs: EpochLogs,  # noqa: ARG002
    ) -> tuple[tuple[int, int], bool]:
        """Return the first batch of a step; its exchange failed before the update."""
        return divmod(window.first, self.config.batches_per_epoch), True

    def return_to(self, state: tuple[ScheduleState, int]) -> None:
        """Go back to the result of :meth:`state`."""
        super().return_to(state)
        self.close()
        self._gradient.begin_again()

    def holds(self, window: StepWindow, epoch: int, batch: int) -> bool:
        """Whether a batch is in a step, or before it."""
        return window.taken[-1][-1][1] > epoch * self.config.batches_per_epoch + batch

    def close(self) -> None:
        """Stop to load batches."""
        if self._own is not None:
            self._own[1].close()
        self._own = None

    # --- Batches -------------------------------------------------------------------------------

    def _load_ahead(self) -> Generator[tuple[int, Tensor, Batch]]:
        rank, state, own = self._group.rank, self.schedule, list[int]()
        while state.complete == self.schedule.complete:
            state, taken = take_step(state, self.config)
            if not taken:
                break
            own += numbers(taken)[rank : rank + 1]
        return self._data.some_batches(own)

    def _part(self, taken: Spans) -> tuple[int, Tensor, Batch, int] | None:
        """Return this rank's batch of a step, or its share of the samples; None if none is left."""
        rank, ratios = self._group.rank, self.config.partition_ratios
        if ratios is not None and len(taken) == 1:
            return self._data.share_of_samples(taken[0], ratios)
        own = numbers(taken)[rank : rank + 1]
        if not own or self._own is None:
            return None
        # With ratios nothing was loaded ahead.
        source = self._own[1] if ratios is None else self._data.some_batches(own)
        return *next(source), 0
