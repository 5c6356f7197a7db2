"""Modules for graphs: functions as modules, bodies of loops, modules with inputs by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from flodl.graph.base import GraphBase
from flodl.graph.topology import RefStyle

ModuleLike = nn.Module | Callable[..., Any]
"""Values that can become a node: a module, or a callable on tensors."""


class Lambda(nn.Module):
    """A function as a module: ``Lambda(torch.sin)``; it has no parameters.

    Args:
        function: Called with the inputs of the module. A graph with a lambda expression cannot be
            pickled; a graph with a named function can.

    Raises:
        ValueError: ``function`` is not callable.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(function):
            raise ValueError(f"Lambda needs a callable, not {type(function).__name__}")
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """Apply the function."""
        return self.function(*inputs)

    def extra_repr(self) -> str:
        """Return the name of the function."""
        return getattr(self.function, "__qualname__", repr(self.function))


def as_module(candidate: ModuleLike) -> nn.Module:
    """Return a module unchanged, and any other callable as a :class:`Lambda`.

    Raises:
        ValueError: The candidate is neither, or is a class instead of an instance.
    """
    if isinstance(candidate, nn.Module):
        return candidate
    if isinstance(candidate, type) or not callable(candidate):
        raise ValueError(f"expected a module or a function of tensors, not {candidate!r}")
    return Lambda(candidate)


def modules(*candidates: ModuleLike) -> list[nn.Module]:
    """Collect modules for ``split``, ``gate`` and ``switch``; functions become :class:`Lambda`.

    Raises:
        ValueError: One of them is neither a module nor a function.
    """
    return [as_module(candidate) for candidate in candidates]


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


class NamedInputModule(nn.Module):
    """A module with further inputs, passed by name with ``FlowBuilder.using``.

    Subclasses implement :meth:`forward_named`. Calling the module goes through ``forward``, so
    hooks run.

    Example:
        >>> class AddContext(NamedInputModule):
        ...     def forward_named(self, x, refs):
        ...         return x + refs["ctx"]
    """

    def forward(self, x: Tensor, refs: Mapping[str, Tensor] | None = None) -> Tensor:
        """Call :meth:`forward_named`, with an empty mapping if there are no references.

        Args:
            x: The stream.
            refs: Tag -> tagged value.
        """
        return self.forward_named(x, {} if refs is None else refs)

    @abstractmethod
    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        """Compute the output from the stream and the references.

        Args:
            x: The stream.
            refs: Tag -> tagged value; never None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement forward_named")


def ref_style(module: nn.Module) -> RefStyle | None:
    """How a module takes references, or None if it takes none."""
    if isinstance(module, LoopBody):
        return RefStyle.STEP
    if isinstance(module, NamedInputModule):
        return RefStyle.ARGUMENT
    if isinstance(module, GraphBase):
        return RefStyle.PORTS if len(module.topology.inputs) > 1 else None
    return RefStyle.METHOD if callable(getattr(module, "forward_named", None)) else None


def delivered(graph: GraphBase, given: Collection[str]) -> list[str]:
    """Auxiliary inputs of a graph that a node provides, in the graph's order.

    Raises:
        ValueError: The graph has no such input, or needs one that is not provided.
    """
    ports, optional = graph.topology.inputs[1:], graph.topology.optional
    known = [port for port in ports if port in given]
    if len(known) != len(given) or not all(port in given or port in optional for port in ports):
        named = [f"{port} (optional)" if port in optional else port for port in ports]
        raise ValueError(f"has the auxiliary inputs {named} and receives {sorted(given)}")
    return known


def port_style(graph: GraphBase, given: Collection[str]) -> RefStyle:
    """How a graph receives its auxiliary inputs that are provided."""
    return RefStyle.PORTS if len(given) == len(graph.topology.inputs) - 1 else RefStyle.NAMED
