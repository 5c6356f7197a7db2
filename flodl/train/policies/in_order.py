"""Each process trains its own batches of an epoch in order; no schedule shares them.

It is alone, or all exchanges are inside of a step. In a model that several processes share (FSDP),
they are in the forward and the backward pass. Ranks with data that can only be iterated average
their gradients before the update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fdl.base.units import counted
from flodl.train.observers.guards.loss_guard import Losses
from flodl.train.policies.feed import Exchanged, Feed, FeedParts, FeedWindow
from flodl.train.run.loop_state import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flodl.data import EpochIterator
    from flodl.data.iterable import IterableEpoch
    from flodl.errors import DivergedError
    from flodl.train.epoch_metrics import EpochLogs


@final
class InOrderFeed(Feed[FeedWindow]):
    """Trains epoch by epoch; every epoch ends at a barrier.

    A window is what is trained until something is due, or until the end of the epoch.

    Args:
        given: What every feed is made of.

    Attributes:
        epoch: Counted from 0.
        done: Batches of the epoch that are trained or left out.
        begins: Whether the rest of the epoch has just been opened.
        begun_at: Batches of the epoch that were done when the process began with it, or went back.
        batches: The rest of the epoch; None before its first batch.
        exhausted: Whether no batch is left for this process.
        over: Whether no batch is left for any process, or people stopped the training.
        skips: Batches of the epoch that are left out.
        judged: Batches of the epoch whose losses were judged.
    """

    in_order = True
    schedule = None
    at_barrier = False

    def __init__(self, given: FeedParts) -> None:
        place = given.found.start.position
        self.averages = self.aborts = 0
        self.batches_per_step = given.plan.accumulate
        self.epoch, self.done = place.epoch, place.step
        self.begun_at = place.step
        self.batches: EpochIterator | IterableEpoch | None = None
        self.begins = self.exhausted = self.over = False
        self.skips: set[int] = set()
        self._left_out: set[int] = set()
        self._loader, self._gradient = given.parts.batches, given.gradient
        self.wire = given.gradient.wire if given.gradient is not None else None
        self._world_size, self._every = given.group.world_size, given.plan.checkpoint_steps
        self.judged = 0

    # --- The place -----------------------------------------------------------------------------

    @property
    def complete(self) -> int:
        """Number of complete epochs; one counts once its last batch is trained."""
        return self.epoch + self.over

    def pass_barrier(self) -> None:
        """Continue with the next epoch."""
        self.at_barrier = False

    def place(self, steps: int) -> Position:
        """Return complete epochs, batches of the next one, and optimizer steps."""
        return Position(self.epoch, self.done, steps)

    def told_place(self) -> str:
        """Return how much is trained, for people."""
        return f"{counted(self.epoch, 'complete epoch')} and {counted(self.done, 'step')}"

    def counts(self) -> tuple[int, tuple[int, ...]]:
        """Return 1: every step has an exchange."""
        return 1, (1,) * self._world_size

    def checkpoint_due(self, steps: int) -> bool:
        """Whether a checkpoint is due after so many steps."""
        if self._every is None or self.at_barrier:
            return False
        return steps % self._every == 0

    # --- Windows -------------------------------------------------------------------------------

    def open(self) -> FeedWindow | None:
        """Return the rest of the epoch."""
        return None if self.at_barrier else FeedWindow(self.epoch, self.done)

    def enter(self, window: FeedWindow) -> None:  # noqa: ARG002
        """Begin the epoch, or continue it."""
        if self.batches is None:
            self.batches = self._loader.epoch(self.epoch, self.done)
            self.begins, self.begun_at, self.exhausted = True, self.done, False
            length = self._loader.num_batches or 0
            first = self.epoch * length
            self.skips = {one - first for one in self._left_out if 0 <= one - first < length}

    @property
    def rest(self) -> EpochIterator | IterableEpoch:
        """The batches of the epoch that are not done; the window was entered."""
        assert self.batches is not None  # noqa: S101
        return self.batches

    def exchange(self, window: FeedWindow, wishes: Sequence[float]) -> Exchanged:  # noqa: ARG002
        """End the epoch if it is over; the exchanges were inside of the steps."""
        if self.over:
            self.close()
            self.epoch, self.done, self.over, self.at_barrier = self.epoch + 1, 0, False, True
            self.judged = 0
        return Exchanged()

    def settle(self) -> float:
        """Average the buffers; return the milliseconds of exchanges so far."""
        return self._gradient.settle() if self._gradient is not None else 0.0

    def close(self) -> None:
        """Stop to load batches."""
        if self.batches is not None:
            self.batches.close()
        self.batches = None

    # --- Going back ----------------------------------------------------------------------------

    def losses(self, logs: EpochLogs, *, wait: bool | None) -> Losses:
        """Return the losses that were not judged yet."""
        log, first, epoch = logs.of(self.epoch).losses, self.judged, self.epoch
        values = log.unjudged() if wait is None else log.to_judge(wait=wait)
        self.judged += len(values)

        def place_of(place: int) -> tuple[int, int]:
            return epoch, self._nth_trained(first + (place if place >= 0 else len(values) - 1))

        return Losses(values, place_of)

    def _nth_trained(self, count: int) -> int:
        """Return the number of the batch that is trained after ``count`` others of the epoch."""
        for skipped in sorted(self.skips):
            if skipped > count:
                break
            count += 1
        return count

    def failed_at(
        self,
        window: FeedWindow,  # noqa: ARG002
        problem: DivergedError,
        logs: EpochLogs,
    ) -> tuple[tuple[int, int], bool]:
        """Return the batch whose loss is not finite; a loss on the host is seen at once."""
        at_once = logs.of(self.epoch).losses.refuses_at_once
        return (self.epoch, self._nth_trained(problem.step)), at_once

    def state(self) -> tuple[int, int]:
        """Return epoch and batch."""
        return self.epoch, self.done

    def return_to(self, state: tuple[int, int]) -> None:
        """Go back to the result of :meth:`state`."""
        self.close()
        self.epoch, self.done = state
        self.over = False

    def is_left(self, state: tuple[int, int], epoch: int, batch: int) -> bool:
        """Whether a batch comes after a state."""
        return (epoch, batch) >= state

    def leave_out(self, numbers: Iterable[int]) -> None:
        """Train none of these batches, counted through all epochs."""
        self._left_out = set(numbers)

    def told_next(self, steps: int) -> str:
        """Return which batch comes next, after so many steps, for people."""
        batch = self.done
        while batch in self.skips:
            batch += 1
        return f"in step {steps + 1} of the training, with batch {batch}"

    def holds(self, window: FeedWindow, epoch: int, batch: int) -> bool:  # noqa: ARG002
        """Whether a batch is trained."""
        return (self.epoch, self.done) > (epoch, batch)
