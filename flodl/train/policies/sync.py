"""SYNC: one batch per rank, then one shared step; the math of one process with a larger batch.

:class:`SharedFeed` is for all ranks that share the batches by a schedule, which all of them compute
alike; ``windows`` has those that take steps of their own. A schedule counts the batches through all
epochs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import fsum, nan
from typing import TYPE_CHECKING, TypeVar, final

import torch

from fdl.base.units import counted
from flodl.ranks.planning.schedule import Spans, cut, numbers
from flodl.ranks.planning.scheduler import leave_out, pass_barrier, pass_left_out, take_step
from flodl.train.observers.guards.loss_guard import Losses
from flodl.train.policies.feed import Exchanged, Feed, FeedParts, FeedWindow, Part
from flodl.train.run.loop_state import Position

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from torch import Tensor

    from flodl.data import Batch, DataLoader
    from flodl.errors import DivergedError
    from flodl.ranks.planning.schedule import ScheduleState, Span
    from flodl.train.epoch_metrics import EpochLogs


W = TypeVar("W", bound=FeedWindow)


class SharedFeed(Feed[W]):
    """The batches that a schedule gives to one rank.

    Args:
        given: What every feed is made of, with a schedule.
    """

    schedule: ScheduleState

    def __init__(self, given: FeedParts) -> None:
        plan, group, config, found = given.plan, given.group, given.config, given.found
        assert config is not None  # noqa: S101 - feed_of has looked
        assert found.schedule is not None  # noqa: S101
        self.config, self.schedule = config, found.schedule
        self.averages, self.aborts = found.counts.averages, 0
        self.batches_per_step = 1
        self._group, self._accumulate = group, plan.accumulate
        self._every = (plan.checkpoint_steps or 0) * plan.accumulate
        self._data = RankBatches(given.parts.loader, config.batches_per_epoch, group.rank)
        self._saved_at = self.schedule.position
        self._judged = plan.guards is not None
        self._units: defaultdict[int, list[int]] = defaultdict(list)
        """By epoch, for each batch of this rank that is not judged yet, where its loss counts."""
        self._latest = 0

    @property
    def rank(self) -> int:
        """The number of this rank in the schedule."""
        return self._group.rank

    # --- The place -----------------------------------------------------------------------------

    @property
    def complete(self) -> int:
        """Number of epochs of which every batch is trained or left out."""
        return self.schedule.complete

    @property
    def at_barrier(self) -> bool:
        """Whether every batch before the barrier is trained."""
        return self.schedule.complete > self.schedule.barrier

    def pass_barrier(self) -> None:
        """Continue with the batches after the barrier."""
        self.schedule = pass_barrier(self.schedule, self.config)

    def place(self, steps: int) -> Position:  # noqa: ARG002 - they differ between ranks
        """Return complete epochs, batches of the next one, and steps as one process has them."""
        schedule = self.schedule
        within = schedule.position - schedule.complete * self.config.batches_per_epoch
        return Position(schedule.complete, within, schedule.position // self._accumulate)

    def told_place(self) -> str:
        """Return how much is trained, for people."""
        schedule = self.schedule
        done = counted(schedule.complete, "complete epoch")
        return f"{done}, {counted(schedule.position, 'batch')} of all ranks"

    def rate_place(self) -> int:
        """Return the place of the next step in a schedule of the learning rate."""
        return self._rate_limit(self.schedule.position) // self._accumulate

    def _rate_limit(self, position: int) -> int:
        """Limit a position to the last batch, for schedules that know the training's length."""
        return min(position, self.config.epochs * self.config.batches_per_epoch - 1)

    def checkpoint_due(self, steps: int) -> bool:  # noqa: ARG002
        """Whether the position passed a multiple of ``checkpoint_steps`` since the last save."""
        every = self._every
        return every > 0 and self.schedule.position // every > self._saved_at // every

    def saved(self) -> None:
        """Learn that a checkpoint is saved now."""
        self._saved_at = self.schedule.position

    # --- Going back ----------------------------------------------------------------------------

    def _expect(self, number: int, unit: int) -> None:
        """Note where the loss of the next batch counts.

        Args:
            number: Number of the batch, counted through all epochs.
            unit: The first batch of the step that ranks share, whose mean loss is judged; else the
                batch itself.
        """
        if self._judged:
            self._latest = unit
            self._units[number // self.config.batches_per_epoch].append(unit)

    def losses(self, logs: EpochLogs, *, wait: bool | None) -> Losses:  # noqa: ARG002
        """Return the losses of all ranks that were not judged yet; all wait; collective."""
        mine: list[tuple[int, float]] = []
        for epoch, values in logs.to_judge():
            mine += zip(self._units.pop(epoch, ()), values, strict=False)
        found: defaultdict[int, list[float]] = defaultdict(list)
        ranks = self._group.gather_objects((mine, self._latest))
        for theirs, _ in ranks:
            for unit, loss in theirs:
                found[unit].append(loss)
        units = sorted(found)
        length, latest = self.config.batches_per_epoch, max(last for _, last in ranks)

        def place_of(place: int) -> tuple[int, int]:
            return divmod(units[place] if place >= 0 else latest, length)

        return Losses([_mean(found[unit]) for unit in units], place_of)

    def state(self) -> tuple[ScheduleState, int]:
        """Return the schedule and the number of exchanges."""
        return self.schedule, self.averages

    def return_to(self, state: tuple[ScheduleState, int]) -> None:
        """Go back to the result of :meth:`state`."""
        self.schedule, self.averages = state
        self._units.clear()

    def is_left(self, state: tuple[ScheduleState, int], epoch: int, batch: int) -> bool:
        """Whether a batch was neither trained nor passed over in a state."""
        length = self.config.batches_per_epoch
        return state[0].is_left(epoch * length + batch, length)

    def leave_out(self, numbers: Iterable[int]) -> None:
        """Let no rank train some batches, counted through all epochs, if none has begun them."""
        self.schedule = leave_out(self.schedule, self.config, numbers)

    def pass_left_out(self) -> Sequence[tuple[int, int]]:
        """Go past the batches that come next and are left out; return position and number."""
        first = self.schedule.position
        self.schedule, passed = pass_left_out(self.schedule, self.config)
        return list(enumerate(numbers(passed), first))


def _mean(losses: Sequence[float]) -> float:
    return fsum(losses) / len(losses) if all(one - one == 0.0 for one in losses) else nan


@final
class RankBatches:
    """The batches of one rank.

    Args:
        loader: Loads them; the same on all ranks.
        batches_per_epoch: Batches of all ranks in an epoch.
        rank: Number of this process.
    """

    def __init__(self, loader: DataLoader, batches_per_epoch: int, rank: int) -> None:
        self._loader, self._length, self._rank = loader, batches_per_epoch, rank

    def batches(self, spans: Spans) -> Generator[tuple[int, Tensor, Batch]]:
        """Load batches; yield the number, the sample numbers and the data of each."""
        length = self._length
        for first_of_span, stop in spans:
            start = first_of_span
            while start < stop:
                epoch, first = divmod(start, length)
                last = min(stop - epoch * length, length)
                delivered = self._loader.deliver(epoch, first, last)
                for number, (rows, batch) in enumerate(delivered, start):
                    yield number, rows, batch
                start = epoch * length + last

    def some_batches(self, numbers: Sequence[int]) -> Generator[tuple[int, Tensor, Batch]]:
        """Load single batches of one epoch, as :meth:`batches` does; gaps are allowed."""
        if not numbers:
            return
        length = self._length
        epoch = numbers[0] // length
        within = [number - epoch * length for number in numbers]
        delivered = self._loader.deliver_some(epoch, within)
        for number, (rows, batch) in zip(numbers, delivered, strict=True):
            yield number, rows, batch

    def share_of_samples(
        self, span: Span, ratios: tuple[float, ...]
    ) -> tuple[int, Tensor, Batch, int] | None:
        """Split the samples of some batches by ratios and load this rank's part.

        Returns:
            Number of the first batch, sample numbers, the batch, and how many samples the lower
            ranks have; None if this rank has no samples.
        """
        length, rank = self._length, self._rank
        epoch, first = divmod(span[0], length)
        rows = torch.cat(
            [self._loader.rows(epoch, number - epoch * length) for number in range(*span)]
        )
        start, stop = cut(len(rows), ratios)[rank : rank + 2]
        if start == stop:
            return None
        offset = first * self._loader.batch_size
        batch = self._loader.deliver_samples(epoch, offset + start, offset + stop)
        return span[0], rows[start:stop], batch, start


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
