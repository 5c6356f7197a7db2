"""The graphs of a model, with nodes computed in faster ways inside a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from flodl.graph.rewriting.mixin import Rewritable

if TYPE_CHECKING:
    from torch import nn

NAME = "rewritten graph"
"""The tuning in reports."""

_COPIES = 4
"""Weights put together, their gradients, and the same again as scratch memory."""


@final
class RewrittenGraphs:
    """A context in which the graphs of a model are rewritten, see ``Graph.rewrites``.

    Other code than the training function, such as an evaluation, finds them as they are. A graph
    that its user has rewritten stays so.

    Args:
        model: May be a graph, or contain some.
    """

    __slots__ = ("_graphs",)

    def __init__(self, model: nn.Module) -> None:
        self._graphs = _plain_graphs(model)

    def __enter__(self) -> None:
        """Rewrite the graphs."""
        for graph in self._graphs:
            graph._use_rewrites(True)

    def __exit__(self, *_: object) -> None:
        """Undo it."""
        for graph in self._graphs:
            graph._use_rewrites(False)


def usable_rewrites(model: nn.Module) -> list[str]:
    """Return what a rewrite would change in the graphs of a model, one text per node."""
    return [
        str(rewrite)
        for path, graph in model.named_modules()
        if isinstance(graph, Rewritable) and not graph.is_rewritten
        for rewrite in graph.own_rewrites(path)
        if not rewrite.refusal
    ]


def worth_trying(model: nn.Module, free: int | None) -> bool:
    """Whether a graph of a model can be rewritten in the memory that is free.

    Args:
        model: May be a graph, or contain some.
        free: Bytes on its device; None if nobody knows.
    """
    needed = _COPIES * sum(parameter.nbytes for parameter in model.parameters())
    return bool(usable_rewrites(model)) and (free is None or needed < free)


def _plain_graphs(model: nn.Module) -> list[Rewritable]:
    graphs = [one for one in model.modules() if isinstance(one, Rewritable)]
    return [graph for graph in graphs if not graph.is_rewritten and graph.own_rewrites()]
