"""Convert the metrics given to :meth:`Monitor.log` to names and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, SupportsFloat, TypeAlias, runtime_checkable

from flodl.monitor.records import EpochMetrics


@runtime_checkable
class HasMetrics(Protocol):
    """An object that keeps its own metrics, such as a Graph."""

    def latest_metrics(self) -> Iterable[tuple[str, float]]:
        """Return the last value of every metric."""


MetricSource: TypeAlias = (
    Mapping[str, SupportsFloat]
    | Iterable[tuple[str, SupportsFloat]]
    | HasMetrics
    | EpochMetrics
    | tuple[HasMetrics | EpochMetrics, Mapping[str, SupportsFloat]]
    | None
)
"""A mapping, (name, value) pairs, a graph, an EpochMetrics, or one of the last two with a mapping
of further values; None for an epoch without metrics."""


def metric_pairs(source: MetricSource) -> tuple[tuple[str, float], ...]:
    """Return names and values in the given order; the later of two equal names wins.

    Raises:
        ValueError: `source` has none of the accepted forms, or a value is not one number.
    """
    found: dict[str, float] = {}
    for name, value in _walk(source):
        found[str(name)] = _number(str(name), value)
    return tuple(found.items())


def _walk(source: Any) -> Iterable[tuple[object, object]]:
    if source is None:
        return ()
    if isinstance(source, EpochMetrics):
        # A scalar that the program itself named "loss" must not hide the training loss.
        loss = "avg_loss" if "loss" in source.scalars else "loss"
        return [(loss, source.avg_loss), *source.scalars.items()]
    if isinstance(source, Mapping):
        return source.items()
    if isinstance(source, HasMetrics):
        return list(source.latest_metrics())
    if isinstance(source, tuple) and source and isinstance(source[0], (HasMetrics, EpochMetrics)):
        return [pair for part in source for pair in _walk(part)]
    if isinstance(source, Iterable) and not isinstance(source, str):
        return [_pair(item) for item in source]
    raise _refusal(source)


def _pair(item: object) -> tuple[object, object]:
    if isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str):
        return item[0], item[1]
    raise _refusal(item)


def _refusal(item: object) -> ValueError:
    return ValueError(
        f"metrics: {item!r:.80} is neither a mapping, a (name, value) pair, a graph nor "
        'an EpochMetrics; pass {"loss": value}'
    )


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass  # the message below is clearer than torch's or Python's own
    shape = getattr(value, "shape", None)
    what = type(value).__name__ + (f" of shape {list(shape)}" if shape is not None else "")
    raise ValueError(f"metric {name!r} is a {what}, not one number; reduce it, e.g. with .mean()")
