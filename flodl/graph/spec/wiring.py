"""Convert the topology of a graph to JSON and back, checked by all rules of the builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import nn

from flodl.errors import BuildError
from flodl.graph.base import GraphBase
from flodl.graph.modules import port_style, ref_style
from flodl.graph.nodes import GateNode, LoopNode, SwitchNode
from flodl.graph.spec.place import Place
from flodl.graph.spec.rules import check_children, check_topology
from flodl.graph.spec.values import UndescribableError
from flodl.graph.topology import (
    Call,
    Combine,
    Gate,
    Loop,
    Map,
    MergeOp,
    Node,
    Operation,
    Port,
    RefStyle,
    StateRead,
    Switch,
    Topology,
    Wire,
)

Part = Callable[[Place], nn.Module]
"""Returns the module of the entry that a place refers to."""

_OPERATIONS = ("call", "combine", "port", "state", "loop", "gate", "switch", "map")


# --- Writing -------------------------------------------------------------------------------


def write_wiring(
    topology: Topology,
    registry: Mapping[str, nn.Module | None],
    refer: Callable[[Node, nn.Module], int],
) -> dict[str, Any]:
    """Write a graph as JSON.

    Args:
        topology: Nodes, wires and tags.
        registry: The module of every prefix.
        refer: Returns the index of the entry that describes a module of a node.

    Raises:
        UndescribableError: A node holds an unknown operation or value; the message names it.
    """
    return {
        "label": topology.label,
        "inputs": list(topology.inputs),
        "nodes": [
            _write_node(node, registry.get(node.prefix) if node.prefix else None, refer)
            for node in topology.nodes
        ],
        "output": topology.output,
        "tags": [list(tag) for tag in topology.tags],
        "groups": [[name, list(members)] for name, members in topology.groups],
        "internal": sorted(topology.internal),
        **({"optional": sorted(topology.optional)} if topology.optional else {}),
        **({"passing": sorted(topology.passing)} if topology.passing else {}),
    }


def _write_node(
    node: Node, module: nn.Module | None, refer: Callable[[Node, nn.Module], int]
) -> dict[str, Any]:
    written: dict[str, Any] = {
        "kind": node.kind,
        **_write_operation(node, module, lambda part: refer(node, part)),
        "wires": [[wire.source, wire.port] for wire in node.wires],
    }
    return {**written, "prefix": node.prefix} if node.prefix else written


def _write_operation(
    node: Node, module: nn.Module | None, refer: Callable[[nn.Module], int]
) -> dict[str, Any]:
    match node.operation, module:
        case Call(), nn.Module():
            return {"operation": "call", "module": refer(module)}
        case Map(kind, pieces, batched), nn.Module():
            return {
                "operation": "map", "over": kind, "pieces": pieces, "batched": batched,
                "module": refer(module),
            }  # fmt: skip
        case Combine(how, broadcast), None:
            allowed = {"broadcast": True} if broadcast else {}
            return {"operation": "combine", "how": how.value, **allowed}
        case Port(name), None:
            return {"operation": "port", "name": name}
        case StateRead(tag, custom), None:
            if custom:
                raise UndescribableError(
                    f"{node.id}: {tag!r} begins with the value given as using(…, init=…), a tensor "
                    "or function, which a description cannot hold"
                )
            return {"operation": "state", "tag": tag}
        case Loop(kind, limit), LoopNode():
            cond = None if module.cond is None else refer(module.cond)
            return {
                "operation": "loop", "test": kind, "limit": limit, "body": refer(module.body),
                "cond": cond,
            }  # fmt: skip
        case Gate(), GateNode():
            experts = [refer(expert) for expert in module.experts]
            return {"operation": "gate", "router": refer(module.router), "experts": experts}
        case Switch(), SwitchNode():
            branches = [refer(branch) for branch in module.branches]
            return {"operation": "switch", "router": refer(module.router), "branches": branches}
        case operation, other:
            raise UndescribableError(
                f"{node.id}: a {type(operation).__name__.lower()} with a "
                f"{type(other).__name__} in place of its module cannot be described"
            )


# --- Reading -------------------------------------------------------------------------------


def read_wiring(place: Place, part: Part) -> tuple[Topology, dict[int, nn.Module]]:
    """Read a graph.

    Args:
        place: The result of :func:`write_wiring`.
        part: Returns the module of the entry that a place refers to.

    Returns:
        The topology, and the module of every node that has one, by number.

    Raises:
        BuildError: A value is malformed, or the parts do not fit together.
    """
    fields = place.fields(
        "inputs",
        "nodes",
        "output",
        "tags",
        optional=("label", "groups", "internal", "optional", "passing"),
    )
    items = fields["nodes"].items()
    node_modules: dict[int, nn.Module] = {}
    nodes: list[Node] = []
    for number, item in enumerate(items, start=1):
        node, module = _read_node(item, number, len(items), part)
        nodes.append(node)
        if module is not None:
            node_modules[number] = module
    topology = Topology(
        nodes=tuple(nodes),
        output=fields["output"].integer(1, len(nodes)),
        inputs=tuple(name.name() for name in fields["inputs"].items()),
        tags=tuple(_read_tag(item, len(nodes)) for item in fields["tags"].items()),
        groups=tuple(_read_group(item) for item in _optional(fields, "groups")),
        internal=frozenset(item.name() for item in _optional(fields, "internal")),
        label=_read_label(fields.get("label")),
        optional=frozenset(item.name() for item in _optional(fields, "optional")),
        passing=frozenset(item.name() for item in _optional(fields, "passing")),
    )
    try:
        check_topology(topology)
        check_children(topology, node_modules)
    except BuildError as problem:
        raise place.wrong(str(problem)) from None
    return topology, node_modules


def _optional(fields: Mapping[str, Place], name: str) -> Sequence[Place]:
    return fields[name].items() if name in fields else ()


def _read_tag(place: Place, count: int) -> tuple[str, int]:
    name, number = place.pair()
    return name.name(), number.integer(1, count)


def _read_group(place: Place) -> tuple[str, tuple[str, ...]]:
    name, members = place.pair()
    return name.name(), tuple(member.name() for member in members.items())


def _read_label(place: Place | None) -> str | None:
    if place is None or place.value is None:
        return None
    label = place.text()
    if "." in label:
        raise place.wrong(f"a label has no dots: {label!r:.50}")
    return label


def _read_node(place: Place, number: int, count: int, part: Part) -> tuple[Node, nn.Module | None]:
    entries = place.mapping()
    if "operation" not in entries:
        raise place.wrong("lacks operation")
    kind_of_node = entries["operation"].choice(_OPERATIONS)
    required, optional = _FIELDS[kind_of_node]
    prefixed = kind_of_node not in ("combine", "port", "state")
    fields = place.fields(
        "kind", "operation", "wires", *(("prefix",) if prefixed else ()), *required,
        optional=optional,
    )  # fmt: skip
    wires = tuple(_read_wire(item, count) for item in fields["wires"].items())
    kind = fields["kind"].name()
    names = [wire.reference for wire in wires if wire.reference is not None]
    operation, module = _READERS[kind_of_node](fields, f"{kind}_{number}", bool(names), part)
    if names and isinstance(operation, Call) and isinstance(module, GraphBase):
        operation = Call(port_style(module, names))
    prefix = fields["prefix"].name() if prefixed else ""
    return Node(number, kind, operation, wires, prefix), module


def _read_wire(place: Place, count: int) -> Wire:
    source, port = place.pair()
    return Wire(source.integer(0, count), port.text())


def _style(place: Place, receiver: nn.Module, styled: bool) -> RefStyle | None:
    if not styled:
        return None
    style = ref_style(receiver)
    if style is None:
        raise place.wrong(f"{type(receiver).__name__} takes no references, and is given some")
    return style


_Fields = Mapping[str, Place]
_Made = tuple[Operation, nn.Module | None]


def _read_call(fields: _Fields, _id: str, styled: bool, part: Part) -> _Made:
    module = part(fields["module"])
    return Call(_style(fields["module"], module, styled)), module


def _read_combine(fields: _Fields, _id: str, _styled: bool, _part: Part) -> _Made:
    how = MergeOp(fields["how"].choice(tuple(how.value for how in MergeOp)))
    return Combine(how, "broadcast" in fields and fields["broadcast"].flag()), None


def _read_port(fields: _Fields, _id: str, _styled: bool, _part: Part) -> _Made:
    return Port(fields["name"].name()), None


def _read_state(fields: _Fields, _id: str, _styled: bool, _part: Part) -> _Made:
    return StateRead(fields["tag"].name()), None


def _read_loop(fields: _Fields, node_id: str, styled: bool, part: Part) -> _Made:
    test = cast("Any", fields["test"].choice(("for", "while", "until")))
    body = part(fields["body"])
    has_cond = "cond" in fields and fields["cond"].value is not None
    if has_cond != (test != "for"):
        raise fields["test"].wrong(f"a loop of kind {test!r} has {'a' if has_cond else 'no'} cond")
    cond = part(fields["cond"]) if has_cond else None
    operation = Loop(test, fields["limit"].integer(1), _style(fields["body"], body, styled))
    return operation, LoopNode(body, cond, operation, node_id)


def _read_gate(fields: _Fields, node_id: str, styled: bool, part: Part) -> _Made:
    router = part(fields["router"])
    experts = _several(fields["experts"], part)
    operation = Gate(len(experts), _style(fields["router"], router, styled))
    return operation, GateNode(router, experts, operation, node_id)


def _read_switch(fields: _Fields, node_id: str, styled: bool, part: Part) -> _Made:
    router = part(fields["router"])
    branches = _several(fields["branches"], part)
    operation = Switch(len(branches), _style(fields["router"], router, styled))
    return operation, SwitchNode(router, branches, operation, node_id)


def _several(place: Place, part: Part) -> list[nn.Module]:
    items = place.items()
    if len(items) < 2:
        raise place.wrong(f"needs at least 2 entries, has {len(items)}")
    return [part(item) for item in items]


def _read_map(fields: _Fields, _id: str, _styled: bool, part: Part) -> _Made:
    over = cast("Any", fields["over"].choice(("each", "over", "slices")))
    pieces = fields["pieces"]
    count = pieces.integer(1) if over == "slices" else pieces.integer(0, 0)
    return Map(over, count, fields["batched"].flag()), part(fields["module"])


_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "call": (("module",), ()),
    "combine": (("how",), ("broadcast",)),
    "port": (("name",), ()),
    "state": (("tag",), ()),
    "loop": (("test", "limit", "body"), ("cond",)),
    "gate": (("router", "experts"), ()),
    "switch": (("router", "branches"), ()),
    "map": (("over", "pieces", "batched", "module"), ()),
}

_READERS: dict[str, Callable[[_Fields, str, bool, Part], _Made]] = {
    "call": _read_call,
    "combine": _read_combine,
    "port": _read_port,
    "state": _read_state,
    "loop": _read_loop,
    "gate": _read_gate,
    "switch": _read_switch,
    "map": _read_map,
}
