"""What a feed tells the loop: which batches this process trains next, and what ranks exchange.

A feed knows the order of the batches and nothing else of a training. The loop asks it for a window,
trains the batches of the window, and lets the feed exchange what the ranks have learned. Ranks that
take each step together average its gradient, too.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, final

from flodl.errors import DivergedError
from flodl.ranks.averaging.gradients import StepAverager

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from flodl.data import Batch
    from flodl.ranks.averaging.backends import Wire
    from flodl.ranks.clocks import BatchTimer
    from flodl.ranks.group import Group
    from flodl.ranks.planning.schedule import ScheduleConfig, ScheduleState
    from flodl.ranks.sample_ledger import SampleRecorder
    from flodl.train.epoch_metrics import EpochLog, EpochLogs
    from flodl.train.observers import Marks
    from flodl.train.observers.guards.loss_guard import Losses
    from flodl.train.observers.requests import StopRequests
    from flodl.train.parts import Assembly
    from flodl.train.run.loop_state import Position
    from flodl.train.run.rank_state import RankStart
    from flodl.train.settings import TrainingPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedParts:
    """What every feed is made of.

    Attributes:
        plan: The settings.
        group: The ranks.
        parts: Model, optimizer and loader.
        config: How windows are planned; None for a process that trains every batch in order.
        found: Where the training starts.
        gradient: Averages the gradients of a step, if the ranks take steps together.
        marks: Records exchanges in the timeline.
    """

    plan: TrainingPlan
    group: Group
    parts: Assembly
    config: ScheduleConfig | None
    found: RankStart
    gradient: SharedGradient | None
    marks: Marks


@dataclass(slots=True)
class FeedWindow:
    """What the ranks train between two exchanges.

    Attributes:
        last_epoch: The last epoch that it reaches into; callbacks learn of it before.
        position: Batches of all ranks before it.
    """

    last_epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a process trains in one go.

    Attributes:
        number: Number of the batch, counted through all epochs.
        rows: Sample numbers, int64 on the CPU.
        batch: The samples, on the device.
        position: Position in the schedule of the learning rate, in batches.
        skip: Samples of the batch that belong to lower ranks.
        parts: As for the ``step`` of a step engine.
        closes: As for the ``step`` of a step engine.
    """

    number: int
    rows: Tensor
    batch: Batch
    position: int
    skip: int = 0
    parts: int = 1
    closes: bool = True


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What an exchange has brought, the same on all ranks but for ``wait_ms``.

    Attributes:
        averaged: Whether all ranks have the same model now.
        comm_ms: What it cost.
        wait_ms: How long this rank waited for others.
        wishes: What the ranks ask for, combined; empty if the steps have told it already.
    """

    averaged: bool = True
    comm_ms: float = 0.0
    wait_ms: float = 0.0
    wishes: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """What a rank does for the others, where ranks come and go.

    Rank 0 may be lost, too. Then another rank writes on in the same run directory. The page and the
    curves show its own steps from now on. Of earlier epochs, the load of the machine is not known
    any more.

    Attributes:
        logs: What this rank has measured.
        samples: Which samples it has trained.
        write: Writes the state of this rank for one that joins.
        record: Writes the samples of all ranks to the ledger, or follows the rank that does.
        take_over: Lets this rank write the files of the training and print.
        step_down: Lets this rank write no more.
    """

    logs: EpochLogs
    samples: SampleRecorder
    write: Callable[[Path, Position, ScheduleState, Mapping[str, Any]], object]
    record: Callable[[int, Sequence[bytes]], object]
    take_over: Callable[[], object]
    step_down: Callable[[], object]


W = TypeVar("W", bound=FeedWindow)


class Feed(ABC, Generic[W]):
    """The batches of one process in a training, window after window.

    Attributes:
        in_order: Whether this process trains every batch of its data in order, and no plan shares
            them among ranks.
        mixes: Whether an exchange averages the weights; before it, all losses are judged.
        measured: Whether the time of each batch decides the next windows.
        overlaps: Whether an exchange may last while the next window is trained.
        averages: Number of exchanges.
        aborts: Number of exchanges that were skipped because a rank was late.
        schedule: How the ranks share the batches; None if this process trains all of them.
        batches_per_step: Batches of all ranks in one optimizer step.
        wire: Exchanges gradients or weights with other ranks; None if there is nothing to exchange.
        is_under_way: Whether an exchange has begun and not ended.
    """

    in_order: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    measured: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    averages: int
    aborts: int
    schedule: ScheduleState | None
    batches_per_step: int
    wire: Wire | None = None
    is_under_way: bool = False

    # --- The place -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def complete(self) -> int:
        """Number of epochs of which every batch is trained or left out."""

    @property
    @abstractmethod
    def at_barrier(self) -> bool:
        """Whether every batch before the barrier is trained."""

    @abstractmethod
    def pass_barrier(self) -> None:
        """Continue with the batches after the barrier."""

    @abstractmethod
    def place(self, steps: int) -> Position:
        """Return complete epochs, batches of the next one, and steps as one process has them.

        Args:
            steps: Optimizer steps of this process.
        """

    def steps(self, own: int) -> int:
        """Return the optimizer steps of a rank so far, the same number on all ranks.

        Args:
            own: Optimizer steps of this process.
        """
        return own

    @abstractmethod
    def told_place(self) -> str:
        """Return how much is trained, for people."""

    @abstractmethod
    def counts(self) -> tuple[int, tuple[int, ...]]:
        """Return the batches of the slowest rank between two averages, and those of each rank."""

    def rate_place(self) -> int | None:
        """Return the place of the next step in a schedule; None: the number of the step."""
        return None

    @abstractmethod
    def checkpoint_due(self, steps: int) -> bool:
        """Whether a checkpoint inside an epoch is due after so many steps of this process."""

    def saved(self) -> None:
        """Learn that a checkpoint is saved now."""

    # --- Windows -------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Whether no window is open."""
        return True

    @abstractmethod
    def open(self) -> W | None:
        """Return the next window, which :meth:`enter` begins; None before a barrier."""

    @abstractmethod
    def enter(self, window: W) -> None:
        """Begin a window."""

    def parts(self, window: W) -> Generator[Part]:
        """Load what this rank trains of a window, part by part."""
        raise NotImplementedError

    def ends(self, window: W, part: Part, ms: float) -> bool:  # noqa: ARG002
        """Whether this rank goes to the exchange after a part that took so many milliseconds."""
        return False

    def ended(self, window: W, ms: float) -> None:
        """Learn that this rank has ended a window, and waited so many milliseconds for a device."""

    def extend(self, window: W, asked_to_end: Callable[[], bool]) -> bool:  # noqa: ARG002
        """Make a window longer because a rank is late; False if all ranks are there.

        Args:
            window: The window, whose batches this rank has trained.
            asked_to_end: Whether a signal asks this process to end.
        """
        return False

    @abstractmethod
    def exchange(self, window: W, wishes: Sequence[float]) -> Exchanged:
        """End a window together with the other ranks; collective.

        Args:
            window: The window.
            wishes: What this rank asks for.

        Raises:
            DivergedError: No rank has finite parameters.
        """

    def settle(self) -> float:
        """Make the model the same on all ranks; return the milliseconds of exchanges so far."""
        return 0.0

    # --- Exchanges that last -------------------------------------------------------------------

    @property
    def may_lag(self) -> bool:
        """Whether an exchange that is under way may end after the next batch."""
        return False

    def is_due(self) -> bool:
        """Whether an exchange that is under way must end after this batch."""
        return False

    def start(self, window: W, wishes: Sequence[float]) -> None:
        """Begin the exchange of a window, while the next one is open already."""
        raise NotImplementedError

    def apply(self) -> None:
        """Wait for the exchange under way, and apply what it brings."""
        raise NotImplementedError

    def landed(self) -> Exchanged:
        """End the exchange that is applied."""
        raise NotImplementedError

    # --- Going back ----------------------------------------------------------------------------

    @abstractmethod
    def losses(self, logs: EpochLogs, *, wait: bool | None) -> Losses:
        """Return the losses of all ranks that were not judged yet; collective.

        Args:
            logs: The measurements of this process.
            wait: Wait for the device; None returns only what has been read already.

        Raises:
            DivergedError: A loss is not finite, and this training cannot have such losses.
        """

    @abstractmethod
    def failed_at(
        self, window: W, problem: DivergedError, logs: EpochLogs
    ) -> tuple[tuple[int, int], bool]:
        """Return where a window failed.

        Returns:
            Epoch and batch, and whether it failed before a parameter changed.
        """

    @abstractmethod
    def state(self) -> Any:
        """Return everything that is counted here, between two steps."""

    @abstractmethod
    def return_to(self, state: Any) -> None:
        """Go back to the result of :meth:`state`."""

    @abstractmethod
    def is_left(self, state: Any, epoch: int, batch: int) -> bool:
        """Whether a batch was neither trained nor passed over in a state."""

    def leave_out(self, numbers: Iterable[int]) -> None:
        """Let no rank train some batches, counted through all epochs, if none has begun them."""

    def pass_left_out(self) -> Sequence[tuple[int, int]]:
        """Go past the batches that come next and are left out; return position and number."""
        return ()

    @abstractmethod
    def holds(self, window: W, epoch: int, batch: int) -> bool:
        """Whether a batch is in a window, or before it."""

    def untimed(self, window: W) -> None:
        """Let a window end after its batches, whatever they take."""

    # --- Ranks that come and go ----------------------------------------------------------------

    def attend(self, member: Membership) -> None:
        """Learn how the state of this rank is read and written, if ranks come and go."""

    def write_state(self, file: Path) -> None:
        """Write the state of this rank for one that joins."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop to load batches."""


@final
class NoBatchLeft(Exception):  # noqa: N818 - the loop handles it; no program sees it
    """The ranks have trained all batches of an epoch whose length nobody knew."""


@final
class SharedGradient:
    """Averages gradients and buffers over the ranks in the middle of a step.

    An engine calls it between the backward pass and the update.

    Args:
        plan: Names the backend, and the time of a simulated exchange.
        parts: The model, and how many samples a whole step has.
        group: The ranks.
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
        parts: Assembly,
        group: Group,
        timer: BatchTimer,
        stops: StopRequests,
        marks: Marks,
    ) -> None:
        self.busy_ms = 0.0
        settings = plan.distributed
        self._averager = StepAverager(parts.model, group, settings.backend, settings.exchange)
        self.wire = self._averager.wire
        self._pad = settings.simulate_sync_ms / 1000
        self._whole = (parts.batches.batch_size or 1) * plan.accumulate
        self._timer, self._stops, self._marks = timer, stops, marks
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
