"""The drawing of a graph that a monitor watches, updated without delaying training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final, runtime_checkable

from flodl.monitor.records import EpochRecord, StepSeries
from flodl.monitor.sinks import Sink


@runtime_checkable
class Drawable(Protocol):
    """The argument of :meth:`Monitor.watch`: a Graph, or an object that draws itself like one."""

    def svg(self) -> bytes:
        """Return the drawing."""

    def svg_with_profile(self) -> bytes:
        """Return the drawing with the time of every node."""


@final
class DrawingSink(Sink):
    """Draws a graph again when the run has progressed.

    Its :class:`Delivery` runs it on its own thread and limits it to a twentieth of the time,
    however long one drawing takes.

    Args:
        graph: The model.
        show: Receives the drawing.
        watched: Whether a reader sees the drawing now; if not, it is not updated.
        profiled: Draw node times, which change; if not, one drawing is enough.
    """

    flush_seconds = 1.0

    def __init__(
        self,
        graph: Drawable,
        show: Callable[[bytes], None],
        watched: Callable[[], bool],
        *,
        profiled: bool,
    ) -> None:
        self._graph = graph
        self._show = show
        self._watched = watched
        self._profiled = profiled
        self._wanted = self._moved = True
        self._failed = False

    def __str__(self) -> str:
        return "drawing of the graph"

    def record(self, record: EpochRecord) -> None:  # noqa: ARG002 - any epoch has new node times
        """Note that there are new node times."""
        self._moved = self._profiled or self._moved

    def steps(self, series: Sequence[StepSeries]) -> None:  # noqa: ARG002 - as above
        """Note that there are new node times."""
        self._moved = self._profiled or self._moved

    def renew(self) -> None:
        """Draw at the next flush, even if no reader sees it."""
        self._wanted = True

    def flush(self) -> None:
        """Draw if there is something new and a reader to see it."""
        if self._moved and (self._wanted or self._watched()):
            self._wanted = self._moved = False
            draw = self._graph.svg_with_profile if self._profiled else self._graph.svg
            try:
                self._show(draw())
            except (IndexError, ValueError):
                # A forward that runs at the same time may replace node times while they are read.
                # The next try then succeeds; two failures in a row have another cause.
                if self._failed:
                    raise
                self._failed = self._moved = True
            else:
                self._failed = False


def facts_of(model: Any) -> tuple[dict[str, str], dict[str, int]]:
    """Return label and hash of a model if it has them, and its parameter counts.

    Args:
        model: A Graph or any ``torch.nn.Module``.
    """
    identity = {}
    if isinstance(label := getattr(model, "label", None), str) and label:
        identity["label"] = label
    if callable(identify := getattr(model, "structural_hash", None)):
        identity["hash"] = str(identify())
    parameters = getattr(model, "parameters", None)
    if not callable(parameters):
        return identity, {}
    counts = [(one.numel(), one.requires_grad) for one in parameters()]
    total = sum(count for count, _ in counts)
    trainable = sum(count for count, learns in counts if learns)
    counted = {"total": total, "trainable": trainable, "frozen": total - trainable}
    return identity, counted
