"""The metrics part of a graph's interface: collect, flush, ask for trends, write to files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from flodl.errors import StateError
from flodl.graph import plot
from flodl.graph.base import GraphBase, Names
from flodl.graph.history import MetricHistory as MetricHistory, Point, Values
from flodl.graph.trend import Trend, TrendGroup


class Reduce(Enum):
    """How to reduce a tensor of several elements to one value; ``NORM`` is the Euclidean norm."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    NORM = "norm"

    @classmethod
    def _missing_(cls, value: object) -> Reduce:
        known = ", ".join(repr(member.value) for member in cls)
        raise ValueError(f"there is no reduction {value!r}; choose one of {known}")


_REDUCTIONS: dict[Reduce, Callable[[Tensor], Tensor]] = {
    Reduce.MEAN: torch.mean,
    Reduce.SUM: torch.sum,
    Reduce.MAX: torch.max,
    Reduce.MIN: torch.min,
    Reduce.NORM: torch.linalg.vector_norm,
}


class Observed(GraphBase):
    """Metrics of a graph; a base class of ``Graph``.

    Values are buffered batch by batch: :meth:`collect` takes them from tags, :meth:`record` from
    the caller. :meth:`flush`, usually called at the end of an epoch, adds the mean of each buffer
    as one point. The points of a metric are its :meth:`trend`.
    """

    @cached_property
    def _metrics(self) -> MetricHistory:
        return MetricHistory()

    # --- Buffering -------------------------------------------------------------------------

    def collect(self, *tags: Names) -> None:
        """Buffer the value of each tag in the last forward.

        The values are detached, and read at the flush. So collecting does not wait for a device.

        Args:
            tags: Tags whose values have one element, or tag groups of such tags, one by one or as a
                list. A path such as ``"encoder.hidden"`` collects for the metrics of the graph that
                has the tag.

        Raises:
            KeyError: The graph has no such tag.
            PathError: A path does not exist.
            StateError: There are no values: no forward has run.
            ValueError: A value does not have exactly one element. Nothing is buffered.
        """
        captured = self._captured(tags)
        for name, value in captured.items():
            if value.numel() != 1:
                raise ValueError(
                    f"tag {name!r} has shape {list(value.shape)}, and collect takes one element: "
                    f"say how to reduce it, as in collect_with({name!r}, Reduce.MEAN)"
                )
        for name, value in captured.items():
            self.record_scalar(name, value)

    def collect_with(self, tags: str | Iterable[str], reduce: Reduce | str) -> None:
        """Buffer the value of each tag in the last forward, reduced to one element.

        Args:
            tags: As for :meth:`collect`, one or several. Values of one element stay as they are.
            reduce: A :class:`Reduce` or its name, such as ``"max"``. Half precision is first
                converted to float32, and so are integers for a mean or a norm.

        Raises:
            KeyError: The graph has no such tag.
            StateError: There are no values: no forward has run.
            ValueError: A value has no elements, or there is no such reduction. Nothing is buffered.
        """
        kind = Reduce(reduce)
        captured = self._captured([tags] if isinstance(tags, str) else tags)
        for name, value in captured.items():
            if value.numel() == 0:
                raise ValueError(
                    f"tag {name!r} has shape {list(value.shape)}: there is nothing to reduce"
                )
        for name, value in captured.items():
            self.record_scalar(name, value if value.numel() == 1 else _one(value, kind))

    def record(self, name: str, values: Values) -> None:
        """Buffer values of a metric until the next :meth:`flush`.

        Args:
            name: The metric; with labels before it, as in ``"encoder.loss"``, that of a nested
                graph.
            values: A number of Python, NumPy or torch; several numbers or one-element tensors; or
                one tensor, whose elements all count. Tensors are detached. They are read at the
                flush, all in one transfer.

        Raises:
            TypeError: ``values`` is not one of these.
            ValueError: One of several values is a tensor with several elements.
        """
        graph, metric = self._metric(name)
        graph._metrics.record(metric, values)

    def record_scalar(self, name: str, value: float | Tensor) -> None:
        """Buffer one value of a metric until the next :meth:`flush`; for names see :meth:`record`.

        Raises:
            ValueError: ``value`` is a tensor with several elements.
        """
        if "." in name:
            graph, name = self._metric(name)
            graph._metrics.record_scalar(name, value)
        else:
            self._metrics.record_scalar(name, value)

    def collected(self, name: str) -> list[float]:
        """The buffered values of a metric since its last flush.

        Args:
            name: As for :meth:`trend`.

        Raises:
            KeyError: Nothing was ever recorded under the name, and it is not a tag.
            StateError: A recorded tensor was changed in place.
        """
        graph, metric = self._known_metric(name)
        return graph._metrics.collected(metric)

    # --- Flushing --------------------------------------------------------------------------

    def flush(self, *names: Names) -> None:
        """Add one point per metric, the mean of its buffered values, and clear the buffers.

        Afterwards every labelled graph below is flushed completely. A graph with empty buffers
        gets no point, and its :attr:`flush_count` stays the same.

        Args:
            names: Metrics or tag groups of this graph to flush, one by one or as a list; default:
                all.

        Raises:
            KeyError: Nothing was ever recorded under a name, and it is not a tag.
            StateError: A recorded tensor was changed in place; nothing is flushed anywhere.
        """
        own = self._own_metrics(names)
        below = {graph._metrics: () for prefix, graph in self._tree() if prefix}
        _flush({self._metrics: own, **below})

    @property
    def flush_count(self) -> int:
        """Number of flushes that added a point to this graph."""
        return self._metrics.flush_count

    def eta(self, total: int) -> float:
        """Seconds until `total` flushes are done, at the mean pace so far; 0 before the first.

        The clock starts at the first forward, record or flush.
        """
        return self._metrics.eta(total)

    # --- Looking at the past ---------------------------------------------------------------

    def latest_metrics(self) -> list[tuple[str, float]]:
        """Return ``(name, value)`` for the last point of every metric.

        The graph's own metrics come first, in the order of their first value. Then those of the
        labelled graphs below follow as ``child.metric``.
        """
        return [
            (prefix + name, value)
            for prefix, graph in self._tree()
            for name, value in graph._metrics.latest()
        ]

    def trend(self, name: str) -> Trend:
        """The points of one metric; an empty trend before its first flush.

        Args:
            name: A metric of this graph, or a tag that is not collected yet; or the path of a
                metric of a nested graph, such as ``"encoder.loss"``.

        Raises:
            KeyError: Nothing was ever recorded under the name, and it is not a tag.
        """
        graph, metric = self._known_metric(name)
        return Trend(graph._metrics.values(metric))

    def trends(self, *names: Names) -> TrendGroup:
        """The trends of several metrics; a tag group means all of its members.

        Raises:
            KeyError: As for :meth:`trend`.
        """
        return TrendGroup(self.trend(name) for name in self._expanded(names))

    # --- Writing ---------------------------------------------------------------------------

    def plot_html(self, path: str | os.PathLike[str], *names: Names) -> None:
        """Write a page that draws metrics over epochs; it needs only a browser.

        Args:
            path: File to write; an existing one is replaced, missing folders are created.
            names: Metrics, tag groups, or ``child.metric`` of a nested graph; default: all, sorted.

        Raises:
            ValueError: A named metric has no points, or no metric has any.
        """
        plot.page(path, _values(self._series(names)))

    def export_trends(self, path: str | os.PathLike[str], *names: Names) -> None:
        """Write metrics as CSV: ``epoch`` (from 1), then one column per metric, eight decimals.

        Args:
            path: As for :meth:`plot_html`.
            names: As for :meth:`plot_html`.

        Raises:
            ValueError: A named metric has no points, or no metric has any.
        """
        plot.table(path, _values(self._series(names)))

    def write_log(self, path: str | os.PathLike[str], total: int, *names: Names) -> None:
        """Write one line per epoch: ``epoch   1  loss=0.5000  [1.2s  ETA 2.4s]``.

        Args:
            path: As for :meth:`plot_html`.
            total: Number of epochs that the run is to train; 0 omits the ETA.
            names: As for :meth:`plot_html`.

        Raises:
            ValueError: A named metric has no points, or no metric has any.
        """
        plot.log(path, total, self._series(names))

    # --- Names -----------------------------------------------------------------------------

    def _why_absent(self, tag: str) -> str:
        if not self.has_run:
            return "no forward has run to its end; call the graph first"
        if tag in self.topology.passing:
            return "it was made with tag(…, keep=False)"
        off = "observation is off, turn it on with observe(True)"
        if tag in self.topology.optional:
            return f"the last call left this input out, or {off}"
        return off

    def _captured(self, tags: Iterable[Names]) -> dict[str, Tensor]:
        names = self._expanded(tags)
        own, found = self._captured_tags(), {}
        for name in names:
            value = own[name] if name in own else self.tagged(name)  # raises if it is not a tag
            if value is not None:
                found[name] = value
        for name in names:
            if name not in found:
                graph, tag = self._owner(name)
                raise StateError(f"tag {name!r} has no value to collect: {graph._why_absent(tag)}")
        return found

    def _metric(self, name: str) -> tuple[Observed, str]:
        """Return the graph a metric belongs to and its name there; recorded dotted names win."""
        return (self, name) if name in self._metrics else self._owner(name)

    def _known_metric(self, name: str) -> tuple[Observed, str]:
        graph, metric = self._metric(name)
        if metric in graph._metrics or metric in graph.topology.tagged_nodes:
            return graph, metric
        if graph.tag_group(metric):
            raise KeyError(f"{name!r} is a tag group; ask trends({name!r}) or one of its members")
        known = [
            prefix + one
            for prefix, part in self._tree()
            for one in dict.fromkeys([*part._metrics.names(), *part.tag_names()])
        ]
        raise KeyError(self._no_such("metric", name, known))

    def _own_metrics(self, names: Iterable[Names]) -> list[str]:
        """Names and groups as metrics of this graph; raises for those of other graphs."""
        own = self._expanded(names)
        for name in own:
            if self._known_metric(name)[0] is not self:
                raise KeyError(f"{name!r} is a metric of another graph; flush that one")
        return own

    def _series(self, names: Iterable[Names]) -> dict[str, list[Point]]:
        series: dict[str, list[Point]] = {}
        for prefix, graph in self._tree():
            for name in graph._metrics.names():
                series.setdefault(prefix + name, graph._metrics.points(name))
        return plot.select(series, self._expanded(names))


def _flush(chosen: dict[MetricHistory, Iterable[str]]) -> None:
    # Read all before changing any: a lost value must not leave half of a tree flushed.
    means = {history: history.means(names) for history, names in chosen.items()}
    for history, found in means.items():
        history.append(found)


def _values(series: dict[str, list[Point]]) -> dict[str, list[float]]:
    return {name: [point.value for point in points] for name, points in series.items()}


def _one(value: Tensor, reduce: Reduce) -> Tensor:
    wide = value.detach()
    if wide.is_floating_point():
        wide = wide.float() if wide.element_size() < 4 else wide
    elif reduce in (Reduce.MEAN, Reduce.NORM):
        wide = wide.float()
    return _REDUCTIONS[reduce](wide)
