"""What flodl itself does at the moments of a training, after the callbacks of the program.

Observers have the hooks of :class:`~flodl.train.callbacks.Callback`. Two hooks differ:

- ``on_step_end`` is called inside a step, and only if the optimizer has changed the parameters.
- ``on_barrier``, which callbacks lack, is called between two epochs while all ranks have the same
  model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flodl.train.callbacks import Callback, TrainingRun
from flodl.train.epoch_end import call_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flodl.monitor import EpochMetrics, Timeline
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan


def observers_of(
    plan: TrainingPlan, parts: Assembly, saving: Callback, marks: Marks, reporter: Callback
) -> Iterator[Callback]:
    """Return the observers of a training, in the order in which they are called.

    Args:
        plan: Says which are wanted; that of a rank above 0 wants fewer.
        parts: Have an average of the weights and a scheduler of torch, or None.
        saving: Saves the best model and the checkpoints.
        marks: Marks the epoch in the timeline.
        reporter: Shows and records the epoch.
    """
    if parts.average is not None:
        yield parts.average
    yield saving
    if parts.torch_schedule is not None:
        yield parts.torch_schedule
    yield marks
    yield reporter
    if plan.metrics_fn is not None:
        yield EpochFunction(plan.metrics_fn)  # it sees an epoch that is shown and recorded


@final
@dataclass(frozen=True, slots=True)
class Marks(Callback):
    """Marks in the timeline of a rank; without one, they are nowhere."""

    timeline: Timeline | None

    def __call__(self, kind: str, **fields: object) -> None:
        """Mark an event."""
        if self.timeline is not None:
            self.timeline.event(kind, **fields)

    def busy(self, busy: bool) -> None:
        """Mark whether this rank computes."""
        if self.timeline is not None:
            (self.timeline.busy.begin if busy else self.timeline.busy.end)()

    def on_epoch_start(self, run: TrainingRun) -> None:
        """Mark the beginning of an epoch."""
        self("epoch_start", epoch=run.epoch)

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:  # noqa: ARG002
        """Mark the end of an epoch."""
        self("epoch_end", epoch=metrics.epoch, loss=metrics.avg_loss)


@final
@dataclass(frozen=True, slots=True)
class EpochFunction(Callback):
    """Calls the ``metrics_fn`` of a program; an error in it does not end the training."""

    function: Callable[[EpochMetrics], object]

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:
        """Call it; False ends the training."""
        if call_back("metrics_fn", metrics.epoch, self.function, metrics) is False:
            run.stop("metrics_fn returned False")
