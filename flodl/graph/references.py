"""Modules that receive tagged values by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from flodl.graph.base import GraphBase
from flodl.graph.loops import LoopBody
from flodl.graph.topology import RefStyle


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
