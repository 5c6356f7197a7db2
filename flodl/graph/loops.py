"""Loop bodies that publish what they see in every iteration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Traces = dict[str, list[Tensor]]
"""Name -> one value per publication, in order."""


class TraceEmit:
    """Where a loop body publishes the values of one step.

    Args:
        traces: Lists to append to; None throws every value away.
    """

    __slots__ = ("_published", "_traces")

    def __init__(self, traces: Traces | None = None) -> None:
        self._traces = traces
        self._published: list[str] = []

    @classmethod
    def discard(cls) -> TraceEmit:
        """An emitter whose values nobody reads; publishing a name twice is still refused."""
        return cls(None)

    def publish(self, name: str, value: Tensor) -> None:
        """Append a value to the trace ``name``; a step may leave a name out.

        Args:
            name: Name of the trace, read back with ``Graph.traces(name)``.
            value: Kept with its autograd graph.

        Raises:
            ValueError: The name was published in this step already.
        """
        if name in self._published:
            raise ValueError(f"trace {name!r} was published twice in one step; use two names")
        self._published.append(name)
        if self._traces is not None:
            self._traces.setdefault(name, []).append(value)

    def next_step(self) -> None:
        """Forget which names the last step published."""
        self._published.clear()


class LoopBody(nn.Module):
    """A loop body with references and traces: subclasses implement :meth:`step`.

    Outside a loop the module can be called as usual; its traces are then thrown away.
    """

    def forward(
        self,
        x: Tensor,
        refs: Mapping[str, Tensor] | None = None,
        emit: TraceEmit | None = None,
    ) -> Tensor:
        """Run one step, through ``__call__`` so that hooks fire.

        Args:
            x: The state the loop feeds back.
            refs: Tag -> tagged value, the same in every iteration.
            emit: Where to publish; nowhere by default.
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
    """Run ``body.step`` once without recording: for bodies that define ``forward`` by it."""
    return body.step(x, {} if refs is None else refs, TraceEmit.discard())
