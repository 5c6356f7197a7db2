"""Modes that use flodl's own loop: a single device, and every policy × backend."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from flodl.ddp_bench.controls import broken_averaging
from flodl.ddp_bench.stage import Stage
from flodl.ranks.clocks import BatchTimer
from flodl.train import Callback, TrainerBuilder, TrainingRun
from flodl.trainer import Trainer

if TYPE_CHECKING:
    from flodl.monitor import EpochMetrics


def train_solo(stage: Stage) -> None:
    """Train on one device, at the simulated speed of the rank with this number."""
    number = stage.cell.solo or 0
    ms, speed = stage.cell.ddp.simulated(number)
    pace = _Paced(BatchTimer(stage.group.device, batch_ms=ms, speed=speed))
    builder = _described(stage).device(stage.group.device).ddp({"ranks": 1})
    if stage.cell.simulates:
        builder.callbacks(pace)
    builder.run()


def train_ranks(stage: Stage) -> None:
    """Train on the launched ranks with the policy and the backend of the mode."""
    with broken_averaging(stage.cell.mode):
        _described(stage).ddp(stage.cell.rank_settings()).run()


def _described(stage: Stage) -> TrainerBuilder:
    cell = stage.cell
    builder = (
        Trainer.builder(stage.model_on, stage.optimizer, stage.loss)
        .dataset(stage.data.train)
        .batch_size(cell.batch_size)
        .num_epochs(cell.epochs)
        .seed(cell.seed)
        .loader_options(drop_last=True)
        # The baselines of torch have only this engine.
        .engine("eager")
        # An eval_fn makes every epoch end at an average; the callback then evaluates on all ranks.
        .eval_fn(lambda _: {})
        .callbacks(_Observer(stage))
        .timeline(stage.timeline)
        .progress(False)
    )
    if (schedule := stage.schedule()) is not None:
        builder.scheduler(lambda _: schedule)
    if cell.max_grad_norm is not None:
        builder.max_grad_norm(cell.max_grad_norm)
    if cell.monitor is not None and stage.group.leads:
        builder.live(cell.monitor)
    return builder


@final
class _Observer(Callback):
    """Evaluates after every epoch and makes a row of the measurements."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._began = 0.0

    def on_epoch_start(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Start the clock of the training, at the same place as in every other mode."""
        self._began = time.perf_counter()

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:
        """Evaluate the model on all ranks and report the row on rank 0."""
        stage, train_ms = self._stage, (time.perf_counter() - self._began) * 1000
        several = bool(metrics.per_rank)
        busy = tuple(rank.busy_ms for rank in metrics.per_rank)
        stage.end_epoch(
            metrics.epoch,
            run.model,
            loss=metrics.avg_loss,
            train_ms=train_ms,
            k=metrics.anchor or 0,
            counts=metrics.counts,
            batches=tuple(rank.batches for rank in metrics.per_rank) or (stage.batches,),
            busy_ms=busy or None,
            comm_ms=metrics.comm_ms if several else None,
            wait_ms=metrics.wait_ms if several else None,
            scalars=dict(metrics.scalars),
        )


@final
class _Paced(Callback):
    """Makes every step last as long as declared."""

    def __init__(self, timer: BatchTimer) -> None:
        self._timer = timer

    def on_epoch_start(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Start timing the first step."""
        self._timer.begin()

    def on_step_end(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Wait until the step has lasted long enough."""
        self._timer.end_batch()
