"""Loop bodies that publish values in every iteration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Traces = dict[str, list[Tensor]]
"""Name -> one value per publication, in order."""


class TraceEmit:
    """Collects the values that a loop body publishes, step by step.

    Args:
        traces: Lists to append to; None discards every value.
    """

    __slots__ = ("_published", "_traces")

    def __init__(self, traces: Traces | None = None) -> None:
        self._traces = traces
        self._published: list[str] = []

    @classmethod
    def discard(cls) -> TraceEmit:
        """Make an emitter that discards all values; it still refuses a name twice in one step."""
        return cls(None)

    def publish(self, name: str, value: Tensor) -> None:
        """Append a value to the trace ``name``; a step need not publish every name.

        Args:
            name: Name of the trace, read with ``Graph.traces(name)``.
            value: Kept with its autograd graph.

        Raises:
            ValueError: The name was already published in this step.
        """
        if name in self._published:
            raise ValueError(f"trace {name!r} was published twice in one step; use two names")
        self._published.append(name)
        if self._traces is not None:
            self._traces.setdefault(name, []).append(value)

    def next_step(self) -> None:
        """Start a new step, in which every name may be published again."""
        self._published.clear()


class LoopBody(nn.Module):
    """A loop body with references and traces: subclasses implement :meth:`step`.

    Outside a loop the module can be called as usual; its traces are then discarded.
    """

    def forward(
        self,
        x: Tensor,
        refs: Mapping[str, Tensor] | None = None,
        emit: TraceEmit | None = None,
    ) -> Tensor:
        """Run one step; call the module itself, so that hooks run.

        Args:
            x: The state that the loop feeds back.
            refs: Tag -> tagged value, the same in every iteration.
            emit: Collects published values; by default they are discarded.
        """
        emit = TraceEmit.discard() if emit is None else emit
        return self.step(x, {} if refs is None else refs, emit)

    @abstractmethod
    def step(self, x: Tensor, refs: Mapping[str, Tensor], emit: TraceEmit) -> Tensor:
        """Compute the next state.

        Args:
            x: The state.
            refs: Tag -> tagged value.
            emit: ``emit.publish(name, value)`` records a value of this iteration.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement step")


def forward_via_step(body: LoopBody, x: Tensor, refs: Mapping[str, Tensor] | None = None) -> Any:
    """Run ``body.step`` once without recording; use it in bodies that override ``forward``."""
    return body.step(x, {} if refs is None else refs, TraceEmit.discard())
