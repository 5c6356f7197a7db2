"""Graphs inside graphs: addressing, freezing and observing them by path."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, cast

from torch import Tensor, nn

from flodl.checkpoint import LoadReport, persistent_buffers, qualify
from flodl.checkpoint.store import OnShapeMismatch
from flodl.errors import PathError
from flodl.graph import tree_report
from flodl.graph.base import GraphBase
from flodl.graph.freezing import (
    follow_mode,
    freeze_params,
    pin_statistics,
    release_statistics,
    unfreeze_params,
)
from flodl.graph.paths import PathKind, Target, resolve, resolve_owner

if TYPE_CHECKING:
    from flodl.graph.graph import Graph
    from flodl.graph.trend import Trend


class Tree(GraphBase):
    """The part of a graph's interface that reaches into nested graphs.

    A labelled graph that is a node of another is its child. ``"encoder.read.hidden"`` is the tag
    ``hidden`` of the child ``read`` of the child ``encoder``. Tags that a graph declares
    ``internal``, and those that begin with an underscore, are seen by that graph alone.

    Every method that takes a path raises :class:`~flodl.errors.PathError` for one that leads
    nowhere; the message names the segment and what is there instead.
    """

    def __init__(self) -> None:
        super().__init__()
        self._composed = False

    # --- Structure -------------------------------------------------------------------------

    @property
    def is_composed(self) -> bool:
        """Whether this graph has been made a child of another."""
        return self._composed

    def child_graph(self, label: str) -> Graph | None:
        """The child with this label, or None."""
        return self.tree_children().get(label)

    def validate_path(self, path: str) -> PathKind:
        """Tell what a path leads to."""
        return self._at(path).kind

    def subgraph(self, path: str) -> Graph:
        """The graph a path leads to.

        Raises:
            PathError: The path leads nowhere, or to a tag.
        """
        target = self._at(path)
        if target.tag is not None:
            raise PathError(f"path {path!r} leads to a tag; give the path of a child graph")
        return target.graph

    def tree_summary(self) -> str:
        """This graph and all below it as indented text: labels, sizes, tags."""
        return tree_report.tree_summary(self._as_graph)

    def param_summary(self) -> str:
        """A table of what each child holds, and this graph itself as ``(own)``.

        Columns are the number of parameter tensors, of their elements, the share of all elements,
        and ``trainable``, ``frozen`` or ``i/n frozen``, counted in tensors. A shared parameter
        counts once, where it comes first.
        """
        return tree_report.param_summary(self._as_graph)

    def _adopt_children(self) -> None:
        """Note on every child that it has a parent now; called when the nodes are registered."""
        for child in self.tree_children().values():
            child._composed = True

    # --- Parameters ------------------------------------------------------------------------

    def parameters_at(self, path: str) -> list[nn.Parameter]:
        """The parameters of a graph or of a tagged node; none where the node has no module."""
        module = self._at(path).module
        return [] if module is None else list(module.parameters())

    def named_parameters_at(self, path: str) -> list[tuple[str, nn.Parameter]]:
        """Like :meth:`parameters_at`, with the names they have in the target's own graph.

        These are the names in a checkpoint of that graph: ``linear_1/weight`` for a parameter of
        a child, ``hidden/weight`` for one of a tagged node.
        """
        target = self._at(path)
        if target.module is None:
            return []
        named = target.module.named_parameters(target.prefix)
        return [(qualify(name), parameter) for name, parameter in named]

    def named_buffers_at(self, path: str) -> list[tuple[str, Tensor]]:
        """Like :meth:`named_parameters_at`, for persistent buffers."""
        target = self._at(path)
        if target.module is None:
            return []
        before = f"{target.prefix}." if target.prefix else ""
        return [
            (qualify(before + name), value) for name, value in persistent_buffers(target.module)
        ]

    def optim_group(self, path: str, lr: float) -> dict[str, Any]:
        """A parameter group for any torch optimizer.

        Example:
            >>> Adam([graph.optim_group("encoder", 1e-4), graph.optim_group("head", 1e-3)])

        Args:
            path: A graph or a tagged node.
            lr: Learning rate of the group.
        """
        return {"params": self.parameters_at(path), "lr": lr}

    def load_subgraph_checkpoint(
        self,
        path: str,
        file: str | os.PathLike[str],
        *,
        on_shape_mismatch: OnShapeMismatch = "error",
    ) -> LoadReport:
        """Load a checkpoint that a graph of the child's architecture was saved to.

        Names and structural hash are the child's own; nothing else of this graph changes.

        Args:
            path: A child graph.
            file: The checkpoint.
            on_shape_mismatch: As for ``Graph.load_checkpoint``.

        Raises:
            PathError: The path leads nowhere, or to a tag.
            CheckpointError: As for ``Graph.load_checkpoint``.
        """
        return self.subgraph(path).load_checkpoint(file, on_shape_mismatch=on_shape_mismatch)

    # --- Freezing and mode -----------------------------------------------------------------

    def freeze(self, path: str, *, stats: bool = False) -> None:
        """Exclude parameters from training.

        Their gradients are dropped as well, so that an optimizer that holds them applies neither
        momentum nor weight decay.

        Args:
            path: A graph or a tagged node.
            stats: Also keep the running statistics of normalisation layers below: these layers
                stay in evaluation mode, whatever ``train()`` says, until :meth:`thaw`.
        """
        module = self._at(path).module
        if module is not None:
            freeze_params(module.parameters())
            if stats:
                pin_statistics(module)

    def thaw(self, path: str) -> None:
        """Undo :meth:`freeze`; normalisation layers take the mode this graph is in."""
        module = self._at(path).module
        if module is not None:
            unfreeze_params(module.parameters())
            release_statistics(module, training=self.training)

    def is_frozen(self, path: str) -> bool:
        """Whether there are parameters and none of them is trained."""
        parameters = self.parameters_at(path)
        return bool(parameters) and not any(p.requires_grad for p in parameters)

    def train(self, mode: bool = True) -> Self:
        """Set training mode, except for layers that ``freeze(..., stats=True)`` has pinned."""
        super().train(mode)
        follow_mode(self)
        return self

    def set_training_at(self, path: str, training: bool) -> None:
        """Set the mode of a graph or of a tagged node; a later ``train()`` of this graph resets it.

        Args:
            path: A graph or a tagged node.
            training: True for training mode, False for evaluation.
        """
        module = self._at(path).module
        if module is not None:
            module.train(training)
            follow_mode(module)

    # --- Observation -----------------------------------------------------------------------

    def tagged_at(self, path: str) -> Tensor | None:
        """The value a tag had in the last forward, or None before the first.

        Raises:
            PathError: The path leads nowhere, or to a graph.
        """
        target = self._tag_at(path)
        return target.graph.tagged(cast("str", target.tag))

    def record_at(self, path: str, values: float | Tensor | Iterable[float | Tensor]) -> None:
        """Record values of a metric of a nested graph.

        Args:
            path: Labels that lead to a graph, then the name of the metric. A name alone is a
                metric of this graph.
            values: One number, or what ``Graph.record`` takes.
        """
        graph, metric = resolve_owner(self._as_graph, path)
        if isinstance(values, Tensor | Iterable):
            graph.record(metric, values)
        else:
            graph.record_scalar(metric, values)

    def trend_at(self, path: str) -> Trend:
        """The history of a metric of a nested graph; the path is that of :meth:`record_at`."""
        graph, metric = resolve_owner(self._as_graph, path)
        return graph.trend(metric)

    def collect_at(self, *paths: str | Iterable[str]) -> None:
        """Buffer the present values of tags as metrics of the graphs they belong to.

        Args:
            paths: Paths of tags, one by one or in lists.

        Raises:
            PathError: A path leads nowhere, or to a graph; nothing is collected then.
            ValueError: A value has several elements.
            StateError: No forward has run.
        """
        flat = [path for entry in paths for path in ([entry] if isinstance(entry, str) else entry)]
        for target in [self._tag_at(path) for path in flat]:
            target.graph.collect(cast("str", target.tag))

    # --- Resolution ------------------------------------------------------------------------

    @property
    def _as_graph(self) -> Graph:
        return cast("Graph", self)

    def _at(self, path: str) -> Target:
        return resolve(self._as_graph, path)

    def _tag_at(self, path: str) -> Target:
        target = self._at(path)
        if target.tag is None:
            raise PathError(f"path {path!r} leads to a graph; give the path of one of its tags")
        return target
