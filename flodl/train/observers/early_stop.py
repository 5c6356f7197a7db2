"""A metric that decides which epoch is the best, or when a training ends."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final, get_args

from fdl.base.suggest import nearest
from flodl.graph.trend import Trend
from flodl.monitor.records import BestEpoch
from flodl.train.callbacks import Callback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.monitor import EpochMetrics
    from flodl.train.callbacks import TrainingRun


def watched_value(metrics: EpochMetrics, name: str, watcher: str) -> float:
    """Return a metric of an epoch.

    Args:
        metrics: The metrics of the epoch.
        name: The name of a scalar, or ``"loss"`` for the mean loss if no scalar has this name.
        watcher: The setting that watches it, for the message.

    Raises:
        ValueError: The epoch did not report it.
    """
    if name == "loss":
        return metrics.scalars.get(name, metrics.avg_loss)
    if name not in metrics.scalars:
        known = ("loss", *metrics.scalars)
        near = nearest(name, known)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(
            f"{watcher} watches {name!r}, which epoch {metrics.epoch} did not report: it has "
            f"{', '.join(map(repr, known))}{hint}; return others from eval_fn, or report them "
            "with record_scalar in every epoch"
        )
    return metrics.scalars[name]


def _reporting(epochs: Sequence[EpochMetrics], name: str) -> list[EpochMetrics]:
    """Return the epochs that reported a metric; those before a resume may lack it."""
    return [epoch for epoch in epochs if name == "loss" or name in epoch.scalars]


@final
@dataclass(frozen=True, slots=True)
class Best:
    """Decides which epoch is the best so far."""

    metric: str = "loss"
    """``"loss"`` for the mean loss of the epoch, else the name of a scalar, such as one that
    ``eval_fn`` returns."""
    _: KW_ONLY
    higher_is_better: bool = False
    """True if larger values are better, as with accuracy."""

    def epoch(self, history: Sequence[EpochMetrics]) -> BestEpoch | None:
        """Return the best epoch so far; None if no epoch reported a finite value."""
        found = [
            BestEpoch(self.metric, value, metrics.epoch)
            for metrics in _reporting(history, self.metric)
            if math.isfinite(value := watched_value(metrics, self.metric, "keep_best"))
        ]
        sign = -1.0 if self.higher_is_better else 1.0
        return min(found, key=lambda one: sign * one.value, default=None)

    def reached(self, history: Sequence[EpochMetrics]) -> bool:
        """Whether the last epoch is better than all earlier ones; with equal values the first wins.

        Raises:
            ValueError: The last epoch did not report the metric.
        """
        watched_value(history[-1], self.metric, "keep_best")
        best = self.epoch(history)
        return best is not None and best.epoch == history[-1].epoch


StopMode: TypeAlias = Literal["stalled", "converged", "not improving"]


@final
class EarlyStop(Callback):
    """Stops when the trend of a metric has settled for several epochs in a row.

    An epoch whose value is nan or infinite has not improved; later trends leave it out. The
    decision depends only on the history. A resumed training therefore stops at the same epoch as an
    uninterrupted one.

    Args:
        metric: ``"loss"`` for the mean loss of the epoch, else the name of a scalar.
        window: Epochs over which the trend is computed, at least 2. There is no decision before
            this many epochs are complete.
        tolerance: For ``stalled``, the metric changes by less than this per epoch. For
            ``converged``, its variance is below this. ``not improving`` ignores it.
        mode: ``stalled`` (level), ``converged`` (low variance) or ``not improving`` (level or
            worse).
        patience: Stop after this many epochs in a row with that trend.
        higher_is_better: True if larger values are better, as with accuracy.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        window: int = 5,
        tolerance: float = 1e-3,
        mode: StopMode = "stalled",
        patience: int = 1,
        higher_is_better: bool = False,
    ) -> None:
        if mode not in get_args(StopMode):
            raise ValueError(
                f"early_stop mode={mode!r}: use one of {', '.join(map(repr, get_args(StopMode)))}"
            )
        if window < 2:
            raise ValueError(f"early_stop window={window!r}: a trend needs at least 2 epochs")
        if not tolerance > 0:
            raise ValueError(f"early_stop tolerance={tolerance!r}: it must be greater than 0")
        if patience < 1:
            raise ValueError(f"early_stop patience={patience!r}: it must be at least 1")
        self._metric = metric
        self._window = window
        self._tolerance = tolerance
        self._mode = mode
        self._patience = patience
        self._sign = -1.0 if higher_is_better else 1.0

    def on_train_start(self, run: TrainingRun) -> None:
        """Check the epochs before a resume: the run may have been about to stop."""
        self._look(run, run.history)

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:
        """Check the trend, including the epoch that has just ended.

        Raises:
            ValueError: It did not report the metric.
        """
        watched_value(metrics, self._metric, "early_stop")
        self._look(run, (*run.history, metrics))

    def _look(self, run: TrainingRun, epochs: Sequence[EpochMetrics]) -> None:
        known = _reporting(epochs, self._metric)
        values = [watched_value(epoch, self._metric, "early_stop") for epoch in known]
        if self._settled(values) and not math.isfinite(values[-1]):
            run.stop(f"{self._metric} is {values[-1]}, which is no improvement")
        elif self._settled(values):
            run.stop(
                f"{self._metric} {self._mode} over {self._window} epochs"
                + (f", {self._patience} epochs in a row" if self._patience > 1 else "")
            )

    def _settled(self, values: Sequence[float]) -> bool:
        ends = range(len(values), len(values) - self._patience, -1)
        return all(end >= self._window and self._verdict(values[:end]) for end in ends)

    def _verdict(self, values: Sequence[float]) -> bool:
        if not math.isfinite(values[-1]):
            return True
        trend = Trend(self._sign * value for value in values if math.isfinite(value))
        if self._mode == "stalled":
            return trend.stalled(self._window, self._tolerance)
        if self._mode == "converged":
            return trend.converged(self._window, self._tolerance)
        return not trend.improving(self._window)
