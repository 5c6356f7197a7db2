"""Graphs inside graphs: addressing, freezing and observing them by path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from torch import nn
from torch.nn.parameter import is_lazy

from flodl.checkpoint import LoadReport
from flodl.checkpoint.names import qualify
from flodl.checkpoint.store import OnShapeMismatch
from flodl.errors import PathError
from flodl.graph.base import GraphBase
from flodl.graph.freezing import (
    follow_mode,
    freeze_params,
    pin_statistics,
    release_statistics,
    unfreeze_params,
)
from flodl.graph.paths import Found, PathKind, Target, locate, place_of, resolve, resolve_owner
from flodl.graph.persist import load_part
from flodl.terminal import aligned

if TYPE_CHECKING:
    from flodl.graph.graph import Graph
    from flodl.graph.history import Values
    from flodl.graph.trend import Trend


class Tree(GraphBase):
    """The part of a graph's interface that works on nested graphs.

    A labelled graph that is a node of another graph is its child. ``"encoder.read.hidden"`` is the
    tag ``hidden`` of the child ``read`` of the child ``encoder``. Tags that a graph declares
    ``internal``, and tags that begin with an underscore, are visible only in that graph.

    Methods for modules also take the dotted name of modules, such as ``"encoder.layer.[0-5]"``.
    See :mod:`flodl.graph.selection` for its patterns. The name includes everything below.

    Every method with a path raises :class:`~flodl.errors.PathError` if the path does not exist. The
    message names the segment and what exists instead.
    """

    _composed = False

    # --- Structure -------------------------------------------------------------------------

    @property
    def is_composed(self) -> bool:
        """Whether this graph is a child of another graph."""
        return self._composed

    def child_graph(self, label: str) -> Graph | None:
        """The child with this label, or None."""
        return self.tree_children().get(label)

    def validate_path(self, path: str) -> PathKind:
        """Tell whether a path names a graph or a tag."""
        found = self._all_at(path)[0]
        return found.kind if isinstance(found, Target) else PathKind.MODULE

    def subgraph(self, path: str) -> Graph:
        """The graph with this path.

        Raises:
            PathError: The path does not exist, or names a tag or modules that are not one graph.
        """
        found = self._all_at(path)
        target = found[0]
        if isinstance(target, Target) and target.tag is not None:
            raise PathError(f"path {path!r} leads to a tag; give the path of a child graph")
        if target.module is not target.graph or len(found) > 1:
            raise PathError(f"path {path!r} leads to modules; give the path of a child graph")
        return target.graph

    def replace(self, path: str, module: nn.Module) -> nn.Module:
        """Replace a module; the graph calls the new one as it called the old one.

        An optimizer keeps the old parameters: create it afterwards. Parameters that the old module
        shared with others are no longer shared.

        Args:
            path: One module. If it is registered in several places, only this one changes.
            module: Set to the mode of the old one; its device and dtype stay.

        Returns:
            The old module.

        Raises:
            PathError: The path does not exist, or names several modules, this graph, or a node
                without a module.
            TypeError: ``module`` is not a module.
            ValueError: ``module`` contains the place where it is to go, or it is a graph whose
                label already names something else there.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"replace needs a module, not {type(module).__name__}")
        parent, key = place_of(self._as_graph, path)
        if any(part is parent for part in module.modules()):
            raise ValueError(
                f"the replacement for {path!r} contains the graph in which it would be replaced"
            )
        _check_label(parent, key, module)
        old = cast("nn.Module", parent._modules[key])
        # Not add_module: it refuses names of Graph's methods, and a tag may be one.
        parent._modules[key] = module.train(old.training)
        for holder in self.modules():
            if isinstance(holder, Tree):
                graph = holder._as_graph
                graph._adopt_children()
                graph._carries_state = graph.has_state()
        return old

    def tree_summary(self) -> str:
        """This graph and all graphs below as indented text: labels, sizes, tags."""
        return "\n".join([_line(self._as_graph), *_below(self._as_graph, "")])

    def param_summary(self) -> str:
        """A table of the parameters of each child, and of this graph itself as ``(own)``.

        The columns are the number of parameter tensors, the number of their elements, the share of
        all elements, and ``trainable``, ``frozen`` or ``i/n frozen``, counted in tensors. A shared
        parameter counts once, where it first appears.
        """
        return param_summary(self._as_graph)

    def _adopt_children(self) -> None:
        """Mark every child as having a parent; called when the nodes are registered."""
        for child in self._modules.values():
            if isinstance(child, Tree) and child.topology.label is not None:
                child._composed = True

    # --- Parameters ------------------------------------------------------------------------

    def parameters_at(self, path: str) -> list[nn.Parameter]:
        """The parameters of a graph, a tagged node or modules; a shared one appears once.

        The list is empty if a node has no module.
        """
        modules = self._modules_at(path)
        return list(dict.fromkeys(p for module in modules for p in module.parameters()))

    def named_parameters_at(self, path: str) -> list[tuple[str, nn.Parameter]]:
        """Like :meth:`parameters_at`, with the names in the target's own graph.

        These names are used in a checkpoint of that graph: ``linear_1/weight`` for a parameter of
        a child, ``hidden/weight`` for a parameter of a tagged node.
        """
        named = {
            parameter: qualify(name)
            for target in reversed(self._all_at(path))
            if target.module is not None
            for name, parameter in target.module.named_parameters(target.prefix)
        }
        return [(named[parameter], parameter) for parameter in self.parameters_at(path)]

    def optim_group(self, path: str, lr: float) -> dict[str, Any]:
        """A parameter group for any torch optimizer.

        Example:
            >>> Adam([graph.optim_group("encoder", 1e-4), graph.optim_group("head", 1e-3)])

        Args:
            path: A graph, a tagged node or modules.
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
        """Load a child from its own checkpoint, or from that of a graph that contains it.

        The structural hash in the file shows which it is: the hash of the child, of this graph, or
        of a graph in between. Only the child changes, and the report uses the child's names.

        Args:
            path: A child graph.
            file: The checkpoint.
            on_shape_mismatch: ``"skip"`` compares no hash and loads what fits by name. The file
                may then be that of another model with the child in the same place.

        Raises:
            PathError: The path does not exist or names a tag.
            ArchitectureMismatch: The file was saved from another architecture.
            CheckpointError: As for ``Graph.load_checkpoint``.
        """
        return load_part(self._as_graph, path, file, on_shape_mismatch)

    # --- Freezing and mode -----------------------------------------------------------------

    def freeze(self, path: str, *, stats: bool = False) -> None:
        """Exclude parameters from training.

        Their gradients are dropped too, so that an optimizer that holds them does not apply
        momentum or weight decay.

        Args:
            path: A graph, a tagged node or modules.
            stats: Also keep the running statistics of normalisation layers below. These layers
                stay in evaluation mode until :meth:`thaw`, even after ``train()``.
        """
        for module in self._modules_at(path):
            freeze_params(module.parameters())
            if stats:
                pin_statistics(module)

    def thaw(self, path: str) -> None:
        """Undo :meth:`freeze`; normalisation layers get the mode of this graph."""
        for module in self._modules_at(path):
            unfreeze_params(module.parameters())
            release_statistics(module, training=self.training)

    def is_frozen(self, path: str) -> bool:
        """Whether there are parameters and all of them are frozen."""
        parameters = self.parameters_at(path)
        return bool(parameters) and not any(p.requires_grad for p in parameters)

    def train(self, mode: bool = True) -> Self:
        """Set training mode, except for layers pinned by ``freeze(..., stats=True)``."""
        super().train(mode)
        if mode:
            follow_mode(self)
        return self

    def set_training_at(self, path: str, training: bool) -> None:
        """Set the mode of the modules at a path; a later ``train()`` of this graph resets it.

        Args:
            path: A graph, a tagged node or modules.
            training: True for training mode, False for evaluation.
        """
        for module in self._modules_at(path):
            module.train(training)
            if training:
                follow_mode(module)

    # --- Observation -----------------------------------------------------------------------

    def record_at(self, path: str, values: Values) -> None:
        """Record values of a metric of a nested graph.

        Args:
            path: Labels of nested graphs, then the name of the metric. A name alone is a metric of
                this graph.
            values: As for ``Graph.record``.
        """
        graph, metric = resolve_owner(self._as_graph, path)
        graph.record(metric, values)

    def trend_at(self, path: str) -> Trend:
        """The history of a metric of a nested graph; for the path see :meth:`record_at`."""
        graph, metric = resolve_owner(self._as_graph, path)
        return graph.trend(metric)

    # --- Resolution ------------------------------------------------------------------------

    @property
    def _as_graph(self) -> Graph:
        return cast("Graph", self)

    def _all_at(self, path: str) -> Sequence[Found]:
        return locate(self._as_graph, path)

    def _modules_at(self, path: str) -> list[nn.Module]:
        return [found.module for found in self._all_at(path) if found.module is not None]

    def _tag_at(self, path: str) -> Target:
        target = resolve(self._as_graph, path)
        if target.tag is None:
            raise PathError(f"path {path!r} leads to a graph; give the path of one of its tags")
        return target


def _check_label(parent: nn.Module, key: str, module: nn.Module) -> None:
    """Refuse a graph whose label is already taken by another child or a tag."""
    label = module.label if isinstance(module, GraphBase) else None
    if label is None or not isinstance(parent, GraphBase):
        return
    child = parent.tree_children().get(label)
    number = parent.topology.tagged_nodes.get(label)
    tagged = key if number is None else parent.topology.node(number).prefix
    if tagged != key or (child is not None and child is not parent._modules[key]):
        raise ValueError(f"the graph is labelled {label!r}, which names something else there")


def _below(graph: Graph, indent: str) -> list[str]:
    lines: list[str] = []
    children = list(graph.tree_children().values())
    for child in children:
        last = child is children[-1]
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{_line(child)}")
        lines += _below(child, indent + ("   " if last else "│  "))
    return lines


def _line(graph: Graph) -> str:
    nodes = len(graph.topology.nodes)
    tags = "".join(f" #{tag}" for tag in graph.topology.tagged_nodes)
    return (
        f"{graph.label or '(unlabelled)'}: {nodes} node{'s' * (nodes != 1)}, "
        f"{elements_of(graph.parameters()):,} parameters{tags}"
    )


def param_summary(graph: Graph) -> str:
    """A table with a row per child, one for the graph's own nodes, and one for all."""
    rows = [("", "tensors", "elements", "share", "")]
    owned = _parameters_by_owner(graph)
    everything = [parameter for parameters in owned.values() for parameter in parameters]
    total = elements_of(everything)
    for owner, parameters in owned.items():
        elements = elements_of(parameters)
        share = 100 * elements / total if total else 0.0
        rows.append(
            (owner, str(len(parameters)), f"{elements:,}", f"{share:.1f}%", _status(parameters))
        )
    rows.append(("total", str(len(everything)), f"{total:,}", "", _status(everything)))
    return "\n".join(aligned(rows, left=(0, 4)))


def _parameters_by_owner(graph: Graph) -> dict[str, list[nn.Parameter]]:
    """Parameters by child label, then ``(own)``; a shared one only under its first node."""
    children = {id(child): label for label, child in graph.tree_children().items()}
    owned: dict[str, list[nn.Parameter]] = {label: [] for label in children.values()}
    own: list[nn.Parameter] = []
    seen: set[int] = set()
    for node in graph.topology.nodes:
        module = graph._modules[node.prefix] if node.prefix else None
        if module is None:
            continue
        owner = owned[children[id(module)]] if id(module) in children else own
        for parameter in module.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                owner.append(parameter)
    return {**owned, "(own)": own}


def elements_of(parameters: Iterable[nn.Parameter]) -> int:
    """Count the values of parameters; those of a lazy module have none before its first call."""
    return sum(parameter.numel() for parameter in parameters if not is_lazy(parameter))


def _status(parameters: list[nn.Parameter]) -> str:
    frozen = sum(not parameter.requires_grad for parameter in parameters)
    if not parameters:
        return "no parameters"
    if frozen in (0, len(parameters)):
        return "frozen" if frozen else "trainable"
    return f"{frozen}/{len(parameters)} frozen"
