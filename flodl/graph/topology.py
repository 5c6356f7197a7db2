"""What a graph is, as values: nodes, the wires between them, tags. No modules, no tensors, no code.

The builder makes a topology, code generation turns it into a function, the structural hash
describes it, the renderer draws it. A new kind of node is a new operation here and a new case in
``codegen``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal

from flodl.errors import BuildError

ENTRY = 0
"""Source number of a wire that starts at the graph's first input; nodes count from 1."""

REF = "ref_"
"""Ports of references begin so; the tag follows."""


class MergeOp(Enum):
    """How parallel streams become one: ``ADD`` is their sum, ``MEAN`` the sum over their number."""

    ADD = "add"
    MEAN = "mean"


class RefStyle(Enum):
    """How a module receives the values its references name; decided while building.

    ``ARGUMENT``: a mapping from tag to tensor as the second argument. ``METHOD``: the method
    ``forward_named`` is called instead of the module, with the same two arguments. ``PORTS``: the
    auxiliary inputs of a graph, as positional arguments in their order. ``NAMED``: those of a graph
    that is called without some optional ones, by name. ``STEP``: a loop body, which also
    receives something to publish traces with.
    """

    ARGUMENT = "argument"
    METHOD = "method"
    PORTS = "ports"
    NAMED = "named"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Call:
    """Run the module registered under the node's prefix.

    Attributes:
        style: How its references are passed; None when it has none.
    """

    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return []


@dataclass(frozen=True, slots=True)
class Combine:
    """Add the inputs element by element, or average them.

    Attributes:
        how: Sum or mean.
        broadcast: Whether inputs of different shapes are broadcast; otherwise they are an error.
    """

    how: MergeOp
    broadcast: bool = False

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.how.value]


@dataclass(frozen=True, slots=True)
class Port:
    """Pass an auxiliary input of the graph on."""

    name: str

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.name]


@dataclass(frozen=True, slots=True)
class StateRead:
    """Read what a tag left behind in the previous call, for one consumer.

    Attributes:
        tag: The tag whose value is carried from call to call.
        custom: Whether the builder was given an initial value of its own for this reader; zeros
            of the shape of the consumer's input serve otherwise.
    """

    tag: str
    custom: bool = False

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.tag]


@dataclass(frozen=True, slots=True)
class Loop:
    """Feed a body its own output; the registered module has children ``body`` and, maybe, ``cond``.

    Attributes:
        kind: ``for`` runs ``limit`` times, ``while`` tests before each iteration, ``until`` after.
        limit: Number of iterations, or the most there can be.
        style: How the body takes references; None when the node has none.
    """

    kind: Literal["for", "while", "until"]
    limit: int
    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.kind, self.limit]


@dataclass(frozen=True, slots=True)
class Gate:
    """Weigh the outputs of all experts; the registered module has ``router`` and ``experts``.

    Attributes:
        experts: How many there are.
        style: How the router takes references; None when the node has none.
    """

    experts: int
    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.experts]


@dataclass(frozen=True, slots=True)
class Switch:
    """Run one of the branches; the registered module has ``router`` and ``branches``.

    Attributes:
        branches: How many there are.
        style: How the router takes references; None when the node has none.
    """

    branches: int
    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.branches]


@dataclass(frozen=True, slots=True)
class Map:
    """Run the registered body on slices of the input.

    Attributes:
        kind: ``each`` slices the first dimension, ``over`` that of a tagged value, ``slices`` cuts
            the last dimension into ``pieces``.
        pieces: Number of pieces, for ``slices``; 0 otherwise.
        batched: Whether the body sees all slices in one call.
    """

    kind: Literal["each", "over", "slices"]
    pieces: int = 0
    batched: bool = False

    def arguments(self) -> list[str | int]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.kind, self.pieces]


Operation = Call | Combine | Port | StateRead | Loop | Gate | Switch | Map


@dataclass(frozen=True, slots=True)
class Wire:
    """A value on its way into a node.

    Attributes:
        source: Number of the node whose output travels, or ``ENTRY``.
        port: Where it arrives: ``input``; ``input_<i>`` where several streams meet; ``ref_<tag>``.
    """

    source: int
    port: str = "input"

    @property
    def reference(self) -> str | None:
        """The tag this wire delivers by name; None for a plain input."""
        return self.port[len(REF) :] if self.port.startswith(REF) else None


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a graph.

    Attributes:
        number: Position in building order, from 1; one count over all kinds.
        kind: The module's kind (``linear``), or a structural one (``add``, ``merge``, ``loop``,
            ``gate``, ``switch``, ``map``, ``input``, ``state_read``).
        operation: What the node does with its inputs.
        wires: Its inputs in the order of its ports, references last.
        prefix: Key of its module in the graph's registry; empty for a node without a module.
    """

    number: int
    kind: str
    operation: Operation
    wires: tuple[Wire, ...]
    prefix: str = ""

    @property
    def id(self) -> str:
        """The name of the node in messages, hashes and drawings: ``linear_3``."""
        return f"{self.kind}_{self.number}"

    @property
    def references(self) -> tuple[Wire, ...]:
        """The wires that deliver tagged values by name."""
        return tuple(wire for wire in self.wires if wire.port.startswith(REF))


@dataclass(frozen=True)
class Topology:
    """The whole graph.

    Attributes:
        nodes: All nodes in building order; node ``k`` stands at index ``k - 1``.
        output: Number of the node whose value the graph returns.
        inputs: Names of the graph's inputs, the entry first, then the auxiliary ones in the order
            they were declared.
        tags: Tag name and number of the node it names, in declaration order.
        groups: Group name and its tags, in declaration order.
        internal: Tags that parents do not see.
        label: Name of the graph, or None.
        optional: Auxiliary inputs that a call may leave out; their nodes have the value None then.
        passing: Tags whose values die in the forward, after their last reader.
    """

    nodes: tuple[Node, ...]
    output: int
    inputs: tuple[str, ...] = ("input",)
    tags: tuple[tuple[str, int], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    internal: frozenset[str] = frozenset()
    label: str | None = None
    optional: frozenset[str] = frozenset()
    passing: frozenset[str] = frozenset()

    def node(self, number: int) -> Node:
        """The node with this number."""
        return self.nodes[number - 1]

    def source_id(self, wire: Wire) -> str:
        """Id of the node a wire starts at; the name of the entry where it is the graph's input."""
        return self.inputs[0] if wire.source == ENTRY else self.node(wire.source).id

    def carried(self, wire: Wire) -> StateRead | None:
        """What a wire brings over from the previous call; None for a value of this one."""
        operation = None if wire.source == ENTRY else self.node(wire.source).operation
        return operation if isinstance(operation, StateRead) else None

    @cached_property
    def tagged_nodes(self) -> dict[str, int]:
        """Number of the node of every tag."""
        return dict(self.tags)

    @cached_property
    def kept_tags(self) -> tuple[str, ...]:
        """Tags whose values can be read after a forward, in declaration order."""
        return tuple(name for name, _ in self.tags if name not in self.passing)

    @cached_property
    def state_tags(self) -> tuple[str, ...]:
        """Tags whose values are carried from call to call, in the order of their first reader."""
        operations = (node.operation for node in self.nodes)
        return tuple(dict.fromkeys(op.tag for op in operations if isinstance(op, StateRead)))

    @cached_property
    def leads_back(self) -> bool:
        """Whether gradients of every value a call returns pass through every carried value.

        True when output, tags and carried values all stand behind every state reader, and no
        reader feeds a router, whose decision may stop gradients.
        """
        readers = [node for node in self.nodes if isinstance(node.operation, StateRead)]
        returned = {self.output, *self.tagged_nodes.values()}
        return bool(readers) and all(returned <= self._behind(reader.number) for reader in readers)

    def _behind(self, number: int) -> set[int]:
        """The nodes a gradient can reach this one from."""
        behind = {number}
        for node in (node for level in self.levels for node in level):
            routed = isinstance(node.operation, Gate | Switch)
            wires = node.wires[:1] if routed else node.wires
            if any(wire.source in behind for wire in wires):
                behind.add(node.number)
        return behind

    @cached_property
    def loops(self) -> tuple[Node, ...]:
        """The nodes that leave traces, in building order."""
        return tuple(node for node in self.nodes if isinstance(node.operation, Loop))

    @cached_property
    def levels(self) -> list[list[Node]]:
        """The nodes by level, see :func:`levels`."""
        return levels(self.nodes)


def levels(nodes: Sequence[Node]) -> list[list[Node]]:
    """Order nodes so that each stands behind everything it reads, after Kahn (1962).

    A level holds the nodes that could run side by side, in building order. Nodes that read no
    other node are in level 0.

    Raises:
        BuildError: Some nodes wait for one another.
    """
    missing = {node.number: sum(w.source != ENTRY for w in node.wires) for node in nodes}
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for wire in node.wires:
            readers.setdefault(wire.source, []).append(node)
    ordered: list[list[Node]] = []
    level = [node for node in nodes if not missing[node.number]]
    while level:
        ordered.append(level)
        following: dict[int, Node] = {}
        for node in level:
            for reader in readers.get(node.number, ()):
                missing[reader.number] -= 1
                if not missing[reader.number]:
                    following[reader.number] = reader
        level = [following[number] for number in sorted(following)]
    if sum(map(len, ordered)) < len(nodes):
        names = ", ".join(node.id for node in nodes if missing[node.number])
        raise BuildError(f"the graph has a cycle through {names}: each waits for another")
    return ordered
