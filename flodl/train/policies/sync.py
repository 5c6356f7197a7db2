"""SYNC: one batch per rank, then one shared step; the math of one process with a larger batch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.planning.schedule import Spans, numbers
from flodl.ranks.planning.scheduler import take_step
from flodl.train.policies.feed import Exchanged, FeedParts, FeedWindow, Part
from flodl.train.policies.shared import SharedFeed

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from torch import Tensor, nn

    from flodl.data import Batch
    from flodl.ranks.clocks import BatchTimer
    from flodl.ranks.group import Group
    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.epoch_metrics import EpochLog, EpochLogs
    from flodl.train.observers.epoch_observers import Marks
    from flodl.train.observers.stop_requests import StopRequests
    from flodl.train.plan import TrainingPlan


@final
class NoBatchLeft(Exception):  # noqa: N818 - the loop handles it; no program sees it
    """The ranks have trained all batches of an epoch whose length nobody knew."""


@final
class SharedGradient:
    """Averages gradients and buffers over the ranks in the middle of a step.

    An engine calls it between the backward pass and the update.

    Args:
        plan: Names the backend, and the time of a simulated exchange.
        model: The model.
        group: The ranks.
        whole: Samples of this rank in a whole step.
        timer: Does not count the time of the exchange to the batch.
        stops: What the ranks ask for travels with the gradients.
        marks: Records the exchange in the timeline.

    Attributes:
        busy_ms: Duration of this rank's part of the latest step.
        wire: Exchanges the gradients.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        model: nn.Module,
        group: Group,
        whole: int,
        timer: BatchTimer,
        stops: StopRequests,
        marks: Marks,
    ) -> None:
        self.busy_ms = 0.0
        settings = plan.distributed
        self._averager = StepAverager(model, group, settings.backend, settings.exchange)
        self.wire = self._averager.wire
        self._pad = settings.simulate_sync_ms / 1000
        self._whole, self._timer, self._stops, self._marks = whole, timer, stops, marks
        self._samples = self._samples_since = 0
        self._sync_ms = 0.0
        self._log: EpochLog | None = None

    def expect(self, log: EpochLog, samples: int) -> None:
        """Learn that the next batch has so many samples, and where its loss goes."""
        self._log = log
        self._samples += samples

    def __call__(self) -> None:
        """Average the gradients and the changed buffers over the ranks.

        Raises:
            DivergedError: The loss of a rank was not finite; raised on all ranks.
            NoBatchLeft: No rank has a batch in this step; raised on all ranks.
        """
        # Before waiting for the others: this rank's time does not include the wait.
        self.busy_ms = self._timer.end_batch()
        self._marks.busy(False)
        self._marks("sync_start")
        began = time.perf_counter()
        refused = self._log.losses.refused if self._log is not None and self._samples else 0
        told = (float(refused), float(self._samples > 0), *self._stops.wishes())
        # Whole steps have weight 1, which changes no bit of a gradient: DDP has no weights.
        bad, taking, *wishes = self._averager.average(self._samples / self._whole, told)
        if self._pad:
            time.sleep(self._pad)
        self._samples_since += self._samples
        self._samples = 0
        self._stops.heed(wishes)
        ms = (time.perf_counter() - began) * 1000
        self._sync_ms += ms
        self._marks("sync_end", ms=ms)
        self._timer.begin()
        if bad:
            raise DivergedError("the loss of a rank is not finite", epoch=0, step=0)
        if not taking:
            raise NoBatchLeft

    def begin_again(self) -> None:
        """Forget a step that was not completed."""
        self._samples = 0
        self.wire.load_state({})

    def settle(self) -> float:
        """Average all buffers before the model is evaluated or saved; collective.

        Returns:
            Milliseconds of all exchanges since the last call.
        """
        self._averager.average_all_buffers(self._samples_since)
        self._samples_since = 0
        ms, self._sync_ms = self._sync_ms, 0.0
        return ms


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
