"""Modules that receive tagged values by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn

from flodl.graph.base import GraphBase
from flodl.graph.loops import LoopBody
from flodl.graph.topology import RefStyle


class NamedInputModule(nn.Module):
    """A module with further inputs, delivered by name with ``FlowBuilder.using``.

    Subclasses implement :meth:`forward_named`. Calling the module goes through ``forward``, so
    hooks fire.

    Example:
        >>> class AddContext(NamedInputModule):
        ...     def forward_named(self, x, refs):
        ...         return x + refs["ctx"]
    """

    def forward(self, x: Tensor, refs: Mapping[str, Tensor] | None = None) -> Tensor:
        """Hand over to :meth:`forward_named`, with an empty mapping when there are no references.

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
    """How a module takes references, or None when it takes none."""
    if isinstance(module, LoopBody):
        return RefStyle.STEP
    if isinstance(module, NamedInputModule):
        return RefStyle.ARGUMENT
    if isinstance(module, GraphBase):
        return RefStyle.PORTS if len(module.topology.inputs) > 1 else None
    return RefStyle.METHOD if callable(getattr(module, "forward_named", None)) else None
