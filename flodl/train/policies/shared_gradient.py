"""The gradient of a step that all ranks take together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from flodl.errors import DivergedError
from flodl.ranks.averaging.gradients import StepAverager

if TYPE_CHECKING:
    from torch import nn

    from flodl.ranks.clocks import BatchTimer
    from flodl.ranks.group import Group
    from flodl.train.epoch_metrics import EpochLog
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
