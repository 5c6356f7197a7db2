"""Check a topology from elsewhere by the rules that all topologies of the builder follow.

Code generation relies on these rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from torch import nn

from flodl.errors import BuildError
from flodl.graph.base import GraphBase
from flodl.graph.draft import check_name
from flodl.graph.modules import delivered
from flodl.graph.nodes import GateNode, LoopNode, SwitchNode
from flodl.graph.topology import (
    ENTRY,
    Combine,
    Map,
    MergeOp,
    Node,
    Port,
    StateRead,
    Topology,
    Wire,
)


def check_topology(topology: Topology) -> None:
    """Check nodes, wires, names and tags.

    Raises:
        BuildError: A rule is broken; the message says which, and where.
    """
    _check_names(topology)
    _check_tags(topology)
    _check_inputs(topology)
    for node in topology.nodes:
        _check_kind(node)
        _check_ports(node)
        for wire in node.wires:
            _check_source(topology, node, wire)
    _check_readers(topology)
    topology.levels  # noqa: B018 - refuses cycles


def check_children(topology: Topology, node_modules: Mapping[int, nn.Module]) -> None:
    """Check the labels and the inputs of nested graphs.

    Raises:
        BuildError: Two graphs have the same label, a label is a tag of another node, or a graph
            does not receive its inputs.
    """
    owners: dict[str, Node] = {}
    for node in topology.nodes:
        module = node_modules.get(node.number)
        if isinstance(module, GraphBase) and module.label is not None:
            if module.label in owners:
                raise BuildError(
                    f"{owners[module.label].id} and {node.id} are graphs of one label "
                    f"{module.label!r}"
                )
            if topology.tagged_nodes.get(module.label, node.number) != node.number:
                raise BuildError(
                    f"the graph in {node.id} is labelled {module.label!r}, a tag of another node"
                )
            owners[module.label] = node
        receiver = _receiver(module)
        if isinstance(receiver, GraphBase):
            given = [str(wire.reference) for wire in node.references]
            try:
                ordered = delivered(receiver, given)
            except ValueError as error:
                raise BuildError(f"the graph in {node.id} {error}") from None
            if given != ordered:
                raise BuildError(f"the graph in {node.id} receives {given}, not in its order")


def _receiver(module: nn.Module | None) -> nn.Module | None:
    """The module in a node that receives references."""
    if isinstance(module, LoopNode):
        return module.body
    return module.router if isinstance(module, GateNode | SwitchNode) else module


def _check_names(topology: Topology) -> None:
    prefixes = [node.prefix for node in topology.nodes if node.prefix]
    names = [name for name, _ in topology.tags] + [name for name, _ in topology.groups]
    _check_unique(prefixes, "prefix")
    _check_unique(names, "tag")
    for name in (*prefixes, *names):
        check_name(name)


def _check_tags(topology: Topology) -> None:
    tags = topology.tagged_nodes
    for name, number in topology.tags:
        if isinstance(topology.node(number).operation, StateRead):
            raise BuildError(f"tag {name!r} names {topology.node(number).id}, a reader of state")
    for group, members in topology.groups:
        if len(members) < 2 or not all(member in tags for member in members):
            raise BuildError(f"group {group!r} must hold two tags or more: {list(members)!r:.80}")
    for tag in sorted(topology.internal):
        if tag not in tags:
            raise BuildError(f"internal: there is no tag {tag!r}")
    for tag in sorted(topology.passing):
        if tag not in tags:
            raise BuildError(f"passing: there is no tag {tag!r}")


def _check_inputs(topology: Topology) -> None:
    ports = [(n.operation.name, n.number) for n in topology.nodes if isinstance(n.operation, Port)]
    _check_unique(topology.inputs, "input")
    if not topology.inputs or topology.inputs[1:] != tuple(name for name, _ in ports):
        raise BuildError(
            f"inputs {list(topology.inputs)!r:.80} must be the entry and then the ports in their "
            f"order: {[name for name, _ in ports]!r:.80}"
        )
    for name in sorted(topology.optional):
        if name not in topology.inputs[1:]:
            raise BuildError(f"optional: there is no auxiliary input {name!r}")
    for name, number in ports:
        if topology.tagged_nodes.get(name) != number:
            raise BuildError(f"input {name!r} must carry a tag of its name")


def _check_kind(node: Node) -> None:
    match node.operation:
        case Combine(how):
            kinds: tuple[str, ...] = ("add", "merge") if how is MergeOp.ADD else ("merge",)
        case Port():
            kinds = ("input",)
        case StateRead():
            kinds = ("state_read",)
        case _:
            return
    if node.kind not in kinds:
        raise BuildError(f"{node.id} must be of kind {' or '.join(kinds)}")


def _check_ports(node: Node) -> None:
    ports = [wire.port for wire in node.wires]
    plain = [wire.port for wire in node.wires if wire.reference is None]
    match node.operation:
        case Port() | StateRead():
            wanted: list[str] = []
        case Combine():
            wanted = [f"input_{index}" for index in range(max(2, len(ports)))]
        case _:
            wanted = ["input"]
    accepts = wanted == ["input"] and not isinstance(node.operation, Map)
    if plain != wanted or ports[: len(plain)] != plain or (len(ports) > len(plain) and not accepts):
        raise BuildError(
            f"{node.id} has the ports {ports!r:.80}, its operation wants {wanted!r:.80}"
        )
    _check_unique(ports, f"{node.id}: port")


def _check_source(topology: Topology, node: Node, wire: Wire) -> None:
    source = topology.node(wire.source) if wire.source != ENTRY else None
    reads = source.operation if source is not None else None
    if wire.reference is None:
        if isinstance(reads, StateRead):
            raise BuildError(f"{node.id} reads state as a plain input; state is a reference")
    elif isinstance(reads, StateRead):
        if reads.tag != wire.reference:
            raise BuildError(f"{node.id} receives {wire.reference!r}, its reader {reads.tag!r}")
    elif topology.tagged_nodes.get(wire.reference) != wire.source:
        raise BuildError(f"{node.id} receives {wire.reference!r} from a node without that tag")


def _check_readers(topology: Topology) -> None:
    """Check that every reader has one consumer, which gives missing state its shape."""
    uses = Counter(wire.source for node in topology.nodes for wire in node.references)
    for node in topology.nodes:
        if not isinstance(node.operation, StateRead):
            continue
        if node.operation.tag not in topology.tagged_nodes:
            raise BuildError(f"{node.id} reads the tag {node.operation.tag!r}, which no node has")
        if node.number == topology.output or uses[node.number] != 1:
            raise BuildError(f"{node.id} must have exactly one reader")


def _check_unique(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BuildError(f"{what} {name!r} occurs twice")
        seen.add(name)
