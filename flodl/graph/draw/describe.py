"""Convert a graph to its diagram: the boxes and their texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from fdl.base.units import counted
from flodl.graph.base import GraphBase
from flodl.graph.draw.diagram import Box, Diagram, Edge, weigh
from flodl.graph.draw.style import Line, Role, Shape, role_of
from flodl.graph.profile import Profiled
from flodl.graph.topology import (
    ENTRY,
    Call,
    Gate,
    Loop,
    Map,
    Node,
    Operation,
    Port,
    StateRead,
    Switch,
    Topology,
)

_STOPS = "stops when the value is > 0"
"""Text at the exit of a conditional loop."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the drawing: the id of a box, and the registry path of its module."""

    id: str = ""
    path: str = ""

    def within(self, name: str, key: str = "") -> _Place:
        """The place of a part called ``name``, registered under ``key``."""
        path = ".".join(filter(None, (self.path, key)))
        return _Place("/".join(filter(None, (self.id, name))), path)


def describe(graph: GraphBase, *, profiled: bool = False) -> Diagram:
    """The diagram of a graph, with everything in it open.

    Args:
        graph: The graph to draw.
        profiled: Whether boxes show the heat of the last profiled forward, if there was one.
    """
    return _of_graph(graph, _Place(), profiled)


def _of_graph(graph: GraphBase, place: _Place, profiled: bool) -> Diagram:
    topology = graph.topology
    profile = graph.profile() if isinstance(graph, Profiled) else None
    seconds = {} if profile is None else {timing.id: timing.seconds for timing in profile.nodes}
    slowest = max(seconds.values(), default=0.0)
    tags: dict[int, list[str]] = {}
    for tag, number in topology.tags:
        tags.setdefault(number, []).append(tag)
    levels = {node.number: level for level, nodes in enumerate(topology.levels) for node in nodes}
    boxes = []
    for node in topology.nodes:
        module = graph._modules[node.prefix] if node.prefix else None
        box = _box(place.within(node.id, node.prefix), node.operation, module, profiled)
        took = seconds.get(node.id)
        boxes.append(
            replace(
                box,
                kind=node.kind,
                path=box.path if node.prefix else "",
                shape=_shape(node, topology) or box.shape,
                role=_role(node, topology) or box.role,
                level=levels[node.number],
                tags=tuple(tags.get(node.number, ())),
                seconds=took,
                heat=took / slowest if profiled and took is not None and slowest else None,
                floats=isinstance(node.operation, StateRead),
            )
        )
    return Diagram(place.id, graph.label or "graph", tuple(boxes), tuple(_wires(topology, place)))


def _box(place: _Place, operation: Operation, module: nn.Module | None, profiled: bool) -> Box:
    """A box for a node or a part of a composite, with the facts known without its surroundings."""
    role = role_of(operation, module)
    return Box(
        id=place.id,
        kind="" if module is None else _kind(module),
        path=place.path,
        shape=role.shape,
        role=role,
        weight=weigh(module),
        name=(module.label or "") if isinstance(module, GraphBase) else "",
        detail=_detail(operation, module),
        inside=_inside(operation, module, place, profiled),
    )


def _kind(module: nn.Module) -> str:
    return str(getattr(module, "flodl_name", type(module).__name__.lower()))


def _reads_input(node: Node) -> bool:
    return isinstance(node.operation, Port) or any(wire.source == ENTRY for wire in node.wires)


def _role(node: Node, topology: Topology) -> Role | None:
    """The role that a node has because of its place in the graph, or None."""
    if _reads_input(node):
        return Role.INPUT
    return Role.OUTPUT if node.number == topology.output else None


def _shape(node: Node, topology: Topology) -> Shape | None:
    """The shape that a node has because of its place in the graph, or None."""
    if node.number == topology.output:
        return Shape.WHOLE if _reads_input(node) else Shape.OUTPUT
    return Shape.INPUT if _reads_input(node) else None


def _detail(operation: Operation, module: nn.Module | None) -> str:
    match operation:
        case Loop("for", limit):
            return f"for ×{limit}"
        case Loop(kind, limit, batch):
            return f"{'batch ' if batch else ''}{kind}, at most ×{limit}"
        case Gate(experts, top_k):
            return counted(experts, "expert") + ("" if top_k is None else f", top {top_k}")
        case Switch(branches, batch):
            return f"{branches} branches" + (", one per batch" if batch else "")
        case Map("slices", pieces):
            return counted(pieces, "slice")
        case Map(kind):
            return kind
    return counted(len(module.topology.nodes), "node") if isinstance(module, GraphBase) else ""


def _wires(topology: Topology, place: _Place) -> Iterator[Edge]:
    """The edges of a graph; an inner graph has points where values enter and leave."""
    inner = bool(place.id)
    entry, exit_ = f"{place.id}/in", f"{place.id}/out"

    def id_of(number: int) -> str:
        return place.within(topology.node(number).id).id

    for node in topology.nodes:
        for wire in node.wires:
            line = Line.REFERENCE if wire.reference is not None else Line.FLOW
            label = wire.reference or ""
            if wire.source != ENTRY:
                yield Edge(id_of(wire.source), id_of(node.number), line, label)
            elif inner:
                yield Edge(entry, id_of(node.number), line, label)
        match node.operation:
            case StateRead(tag):
                writer = topology.tagged_nodes[tag]
                yield Edge(id_of(writer), id_of(node.number), Line.STATE, back=True)
            case Port() if inner:
                yield Edge(entry, id_of(node.number), Line.REFERENCE)
    if inner:
        yield Edge(id_of(topology.output), exit_)


def _inside(
    operation: Operation, module: nn.Module | None, place: _Place, profiled: bool
) -> Diagram | None:
    """The inside of a composite; None for a simple node or a module of another kind."""
    if isinstance(module, GraphBase) and isinstance(operation, Call):
        return _of_graph(module, place, profiled)
    parts = {} if module is None else _parts(operation, module)
    if not parts:
        return None
    second = ""
    if isinstance(operation, Loop):
        second = "body" if operation.kind == "while" else "cond"
    boxes = [
        replace(_box(place.within(name, key), Call(), part, profiled), level=int(name == second))
        for name, (key, part) in parts.items()
    ]
    edges = [
        replace(edge, source=f"{place.id}/{edge.source}", target=f"{place.id}/{edge.target}")
        for edge in _flow(operation, list(parts))
    ]
    return Diagram(place.id, _detail(operation, module), tuple(boxes), tuple(edges))


def _parts(operation: Operation, module: nn.Module) -> dict[str, tuple[str, nn.Module]]:
    """The parts of a composite: name -> registry key and module."""
    registered = module._modules
    match operation:
        case Loop():
            names = ("body", "cond")
        case Gate():
            names = ("router", "experts")
        case Switch():
            names = ("router", "branches")
        case Map():
            return {"body": ("", module)}  # registered directly under the prefix of its node
        case _:
            return {}
    found: dict[str, tuple[str, nn.Module]] = {}
    for name in names:
        part = registered.get(name)
        if isinstance(part, nn.ModuleList):
            for index, choice in enumerate(part):
                found[f"{name}_{index}"] = f"{name}.{index}", choice
        elif part is not None:
            found[name] = name, part
    return found if len(found) >= (1 if isinstance(operation, Loop) else 2) else {}


def _flow(operation: Operation, parts: list[str]) -> Iterator[Edge]:
    """The edges inside a composite: between the names of its parts, its entry and its exit."""
    match operation:
        case Loop("while") if "cond" in parts:
            yield Edge("in", "cond")
            yield Edge("cond", "body")
            yield Edge("cond", "out", label=_STOPS)
            yield Edge("body", "cond", label="again", back=True)
        case Loop("until") if "cond" in parts:
            yield Edge("in", "body")
            yield Edge("body", "cond")
            yield Edge("cond", "out", label=_STOPS)
            yield Edge("cond", "body", label="again", back=True)
        case Loop(_, limit):
            yield Edge("in", "body")
            yield Edge("body", "out")
            yield Edge("out", "in", label=f"×{limit}", back=True)
        case _:
            decides = "weights" if isinstance(operation, Gate) else "choice"
            for name in parts:
                yield Edge("in", name)
                if name == "router":
                    yield Edge(name, "out", Line.REFERENCE, decides)
                else:
                    yield Edge(name, "out")
