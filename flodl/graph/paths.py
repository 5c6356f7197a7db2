"""Dotted paths through nested graphs: ``encoder.read.hidden``.

Every segment except the last is the label of a child graph. The last is a child or, if there is no
such child, a tag. A path that fits neither is looked up among the dotted names of modules, which
may contain patterns; see :mod:`flodl.graph.selection`. Parent graphs are not searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, cast

from torch import nn

from fdl.base.suggest import nearest
from flodl.errors import PathError
from flodl.graph.base import GraphBase
from flodl.graph.selection import Spot, explain_absence, select

if TYPE_CHECKING:
    from flodl.graph.graph import Graph


class PathKind(Enum):
    """What a path names: a graph or a tag."""

    SUBGRAPH = "subgraph"
    TAG = "tag"
    MODULE = "module"


class Target(NamedTuple):
    """The graph or tag that a path names.

    Attributes:
        graph: The graph, or the graph that has the tag.
        tag: The tag; None for a graph.
    """

    graph: Graph
    tag: str | None

    @property
    def kind(self) -> PathKind:
        """The kind of the target: graph or tag."""
        return PathKind.SUBGRAPH if self.tag is None else PathKind.TAG

    @property
    def prefix(self) -> str:
        """Prefix of the tagged node's module in its graph; empty for a graph and for a sum."""
        if self.tag is None:
            return ""
        topology = self.graph.topology
        return topology.node(topology.tagged_nodes[self.tag]).prefix

    @property
    def module(self) -> nn.Module | None:
        """The graph, or the tagged node's module; None if the node has no module."""
        if self.tag is None:
            return self.graph
        return self.graph._modules[self.prefix] if self.prefix else None


class _InternalTagError(PathError):
    """The tag is internal: it cannot be addressed from there, not even as a module."""


Found = Target | Spot
"""The result of a path: a graph or a tag, or one of the modules that it names."""


def locate(root: Graph, path: str) -> Sequence[Found]:
    """Follow a path from a graph to a child, a tag, or all modules that it names.

    Args:
        root: The graph in which the first segment is looked up.
        path: A path for :func:`resolve` or for :func:`~flodl.graph.selection.select`.

    Returns:
        One target, or at least one module.

    Raises:
        PathError: The path does not exist, or a pattern is malformed.
    """
    _split(path)
    try:
        return [resolve(root, path)]
    except _InternalTagError:
        raise
    except PathError as error:
        spots = select(root, path)
        if not spots:
            more = explain_absence(root, path, str(error))
            raise PathError(f"{error}; {more}" if more else str(error)) from None
        return spots


def place_of(root: Graph, path: str) -> tuple[nn.Module, str]:
    """Find the parent of the one module that a path names.

    Returns:
        The parent module, and the name of the module in it.

    Raises:
        PathError: The path does not exist or names several modules, ``root``, or a node without a
            module.
    """
    found = locate(root, path)
    if len(found) > 1:
        names = ", ".join(spot.path for spot in found[:3] if isinstance(spot, Spot))
        raise PathError(
            f"path {path!r} leads to {len(found)} modules ({names}, …); give the path of one"
        )
    place = found[0]
    if isinstance(place, Spot):
        if place.parent is None:
            raise PathError(f"path {path!r} leads to this graph; give the path of a part of it")
        return place.parent, place.key
    if place.module is None:
        raise PathError(f"path {path!r} leads to a node without a module")
    if place.tag is not None:
        return place.graph, place.prefix
    before = path.rpartition(".")[0]
    parent = resolve(root, before).graph if before else root
    return parent, next(key for key, m in parent._modules.items() if m is place.graph)


def resolve(root: Graph, path: str) -> Target:
    """Follow a path from a graph to a child or a tag.

    Args:
        root: The graph in which the first segment is looked up; all of its tags are visible.
        path: Segments joined by dots.

    Raises:
        PathError: A segment is empty, does not exist, or is a tag internal to a child.
    """
    segments = _split(path)
    graph, last = resolve_owner(root, path)
    child = graph.tree_children().get(last)
    if child is not None:
        return Target(child, None)
    if last not in graph.topology.tagged_nodes:
        raise PathError(_nothing(graph, segments, len(segments) - 1, path, tags=True))
    if len(segments) > 1 and _is_internal(graph, last):
        raise _InternalTagError(
            f"path {path!r}: tag {last!r} (segment {len(segments)}) is internal to graph "
            f"{segments[-2]!r}; only that graph itself sees it"
        )
    return Target(graph, last)


def resolve_owner(root: Graph, path: str) -> tuple[Graph, str]:
    """Follow all segments except the last, which may be any name, such as that of a metric.

    Raises:
        PathError: A segment is empty, or one before the last is not a child.
    """
    segments = _split(path)
    graph = root
    for depth in range(len(segments) - 1):
        graph = _child(graph, segments, depth, path)
    return graph, segments[-1]


def timed_nodes(root: Graph, path: str) -> tuple[Graph, list[int]]:
    """Follow a path to nodes that a profile has times for: one node, or a child graph's nodes.

    Returns:
        The graph that runs them, and their numbers there. A child graph that runs more than once
        has several nodes.

    Raises:
        PathError: The path does not exist, names several modules, or does not name a node.
    """
    found = locate(root, path)
    if len(found) == 1 and isinstance(target := found[0], Target) and target.tag is not None:
        return target.graph, [target.graph.topology.tagged_nodes[target.tag]]
    parent, key = place_of(root, path)
    if not isinstance(parent, GraphBase):
        raise PathError(f"path {path!r} leads into a node; only whole nodes have times")
    graph = cast("Graph", parent)
    module = graph._modules[key]
    nodes = (node for node in graph.topology.nodes if node.prefix)
    return graph, [node.number for node in nodes if graph._modules[node.prefix] is module]


def _split(path: str) -> list[str]:
    segments = path.split(".") if isinstance(path, str) else []
    if not all(segments) or not segments:
        raise PathError(
            f"path {path!r} has an empty segment; write labels and a tag joined by single dots, "
            "like 'encoder.hidden'"
        )
    return segments


def _child(graph: Graph, segments: list[str], depth: int, path: str) -> Graph:
    child = graph.tree_children().get(segments[depth])
    if child is None:
        raise PathError(_nothing(graph, segments, depth, path, tags=False))
    return child


def _is_internal(graph: Graph, tag: str) -> bool:
    return tag.startswith("_") or tag in graph.topology.internal


def _nothing(graph: Graph, segments: list[str], depth: int, path: str, *, tags: bool) -> str:
    """Return the message for a missing segment: its place, and similar or existing names."""
    segment = segments[depth]
    labels = list(graph.tree_children())
    visible = [t for t in graph.topology.tagged_nodes if not (depth and _is_internal(graph, t))]
    where = f"graph {segments[depth - 1]!r}" if depth else "this graph"
    if not tags and segment in visible:
        return (
            f"path {path!r}: {segment!r} (segment {depth + 1}) is a tag of {where}, nothing lies "
            "below it; every segment but the last is the label of a child graph"
        )
    known = [*labels, *visible] if tags else labels
    near = nearest(segment, known)
    hint = f"it has: {', '.join(known)}" if known else "it has none"
    if near:
        hint = f"did you mean {near}?"
    wanted = "child graph or tag" if tags else "child graph"
    return f"path {path!r}: {where} has no {wanted} {segment!r} (segment {depth + 1}); {hint}"
