"""A metric that decides which epoch is the best, or when a training ends."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, final

from fdl.base.suggest import nearest
from flodl.monitor.records import BestEpoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.monitor import EpochMetrics


def watched_value(metrics: EpochMetrics, name: str, watcher: str) -> float:
    """Return a metric of an epoch.

    Args:
        metrics: The metrics of the epoch.
        name: ``"loss"`` for the mean loss, else the name of a scalar.
        watcher: The setting that watches it, for the message.

    Raises:
        ValueError: The epoch did not report it.
    """
    if name == "loss":
        return metrics.avg_loss
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
            for metrics in history
            if self.metric == "loss" or self.metric in metrics.scalars
            if math.isfinite(value := watched_value(metrics, self.metric, "keep_best"))
        ]
        sign = -1.0 if self.higher_is_better else 1.0
        return min(found, key=lambda one: sign * one.value, default=None)

    def reached(self, history: Sequence[EpochMetrics]) -> bool:
        """Whether the last epoch is better than all earlier ones; with equal values the first wins.

        Raises:
            ValueError: An epoch did not report the metric.
        """
        sign = -1.0 if self.higher_is_better else 1.0
        values = [sign * watched_value(epoch, self.metric, "keep_best") for epoch in history]
        before = [value for value in values[:-1] if math.isfinite(value)]
        return math.isfinite(values[-1]) and all(values[-1] < value for value in before)
