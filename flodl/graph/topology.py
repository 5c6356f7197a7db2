"""The structure of a graph as values: nodes, wires, tags. No modules, no tensors, no code.

The builder makes a topology, code generation turns it into a function, the structural hash
describes it, and the renderer draws it. A new kind of node needs a new operation here and a new
case in ``codegen``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from flodl.errors import BuildError

ENTRY = 0
"""Source number of a wire that starts at the graph's first input; nodes count from 1."""

REF = "ref_"
"""Prefix of ports for references; the tag follows."""


class MergeOp(Enum):
    """How to merge streams: ``ADD`` sums them, ``MEAN`` divides the sum by their number."""

    ADD = "add"
    MEAN = "mean"


class RefStyle(Enum):
    """How a module receives the values of its references; decided while building.

    - ``ARGUMENT``: a mapping from tag to tensor as the second argument.
    - ``METHOD``: the method ``forward_named`` is called instead of the module, with the same two
      arguments.
    - ``PORTS``: the auxiliary inputs of a graph, as positional arguments in their order.
    - ``NAMED``: the auxiliary inputs of a graph by name, because some optional ones are omitted.
    - ``STEP``: a loop body, which also receives an emitter for traces.
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
        style: How its references are passed; None if it has none.
    """

    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return []


@dataclass(frozen=True, slots=True)
class Combine:
    """Add the inputs element by element, or average them.

    Attributes:
        how: Sum or mean.
        broadcast: Whether inputs of different shapes are broadcast; if not, they raise an error.
    """

    how: MergeOp
    broadcast: bool = False

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return [self.how.value]


@dataclass(frozen=True, slots=True)
class Port:
    """Return an auxiliary input of the graph."""

    name: str

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return [self.name]


@dataclass(frozen=True, slots=True)
class StateRead:
    """Read the value of a tag from the previous call, for one consumer.

    Attributes:
        tag: The tag whose value is carried from call to call.
        custom: Whether this reader has its own initial value. If not, it starts with zeros of the
            shape of the consumer's input.
    """

    tag: str
    custom: bool = False

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return [self.tag]


@dataclass(frozen=True, slots=True)
class Loop:
    """Feed a body its own output; the registered module has a child ``body`` and perhaps ``cond``.

    Attributes:
        kind: ``for`` runs ``limit`` times, ``while`` tests before each iteration, ``until`` after.
        limit: Number of iterations, or the maximum.
        batch: Whether the condition stops all rows together, and not each by itself.
        style: How the body takes references; None if the node has none.
    """

    kind: Literal["for", "while", "until"]
    limit: int
    batch: bool = False
    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return [self.kind, self.limit, *(["batch"] if self.batch else [])]


@dataclass(frozen=True, slots=True)
class Gate:
    """Weight the outputs of all experts; the registered module has ``router`` and ``experts``.

    Attributes:
        experts: Number of experts.
        top_k: How many of them a row uses; None for all.
        style: How the router takes references; None if the node has none.
    """

    experts: int
    top_k: int | None = None
    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return [self.experts, *([] if self.top_k is None else [self.top_k])]


@dataclass(frozen=True, slots=True)
class Switch:
    """Run branches on the rows that chose them; the module has ``router`` and ``branches``.

    Attributes:
        branches: Number of branches.
        batch: Whether one branch serves all rows.
        style: How the router takes references; None if the node has none.
    """

    branches: int
    batch: bool = False
    style: RefStyle | None = None

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return [self.branches, *(["batch"] if self.batch else [])]


@dataclass(frozen=True, slots=True)
class Map:
    """Run the registered body on slices of the input.

    Attributes:
        kind: ``each`` slices the first dimension, ``over`` that of a tagged value, ``slices`` cuts
            the last dimension into ``pieces``.
        pieces: Number of pieces, for ``slices``; 0 otherwise.
        batched: Whether the body gets all slices in one call.
    """

    kind: Literal["each", "over", "slices"]
    pieces: int = 0
    batched: bool = False

    def arguments(self) -> list[str | int]:
        """The arguments that define this operation, for the structural hash."""
        return [self.kind, self.pieces]


Operation = Call | Combine | Port | StateRead | Loop | Gate | Switch | Map


@dataclass(frozen=True, slots=True)
class Wire:
    """An input of a node.

    Attributes:
        source: Number of the node whose output it is, or ``ENTRY``.
        port: Its name at the node: ``input``; ``input_<i>`` for several streams; ``ref_<tag>``.
    """

    source: int
    port: str = "input"

    @property
    def reference(self) -> str | None:
        """The tag whose value this wire passes by name; None for a plain input."""
        return self.port[len(REF) :] if self.port.startswith(REF) else None


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a graph.

    Attributes:
        number: Position in building order, from 1, counted over all kinds.
        kind: The module's kind (``linear``), or a structural one (``add``, ``merge``, ``loop``,
            ``gate``, ``switch``, ``map``, ``input``, ``state_read``).
        operation: The operation on the inputs.
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
        """The wires that pass tagged values by name."""
        return tuple(wire for wire in self.wires if wire.port.startswith(REF))


@dataclass(frozen=True)
class Topology:
    """A whole graph.

    Attributes:
        nodes: All nodes in building order; node ``k`` has index ``k - 1``.
        output: Number of the node whose value the graph returns.
        inputs: Names of the graph's inputs: the entry first, then the auxiliary ones in the order
            of their declaration.
        tags: Tag name and number of its node, in declaration order.
        groups: Group name and its tags, in declaration order.
        internal: Tags hidden from parents.
        label: Name of the graph, or None.
        optional: Auxiliary inputs that a call may omit; their nodes then have the value None.
        passing: Tags whose values are deleted in the forward, after their last reader.
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
        """Id of the source node of a wire; the name of the entry if it is the graph's input."""
        return self.inputs[0] if wire.source == ENTRY else self.node(wire.source).id

    def carried(self, wire: Wire) -> StateRead | None:
        """The state reader at the source of a wire; None for a value of the same call."""
        operation = None if wire.source == ENTRY else self.node(wire.source).operation
        return operation if isinstance(operation, StateRead) else None

    @cached_property
    def tagged_nodes(self) -> dict[str, int]:
        """Node number of every tag."""
        return dict(self.tags)

    @cached_property
    def kept_tags(self) -> tuple[str, ...]:
        """Tags whose values can be read after a forward, in declaration order."""
        return tuple(name for name, _ in self.tags if name not in self.passing)

    @cached_property
    def state_tags(self) -> tuple[str, ...]:
        """Tags whose values are carried from call to call, in the order of their first reader."""
        tags = [node.operation.tag for node in self.nodes if isinstance(node.operation, StateRead)]
        return tuple(dict.fromkeys(tags))

    @cached_property
    def leads_back(self) -> bool:
        """Whether gradients of every value that a call returns reach every carried value.

        True if output, tags and carried values all depend on every state reader, and no reader
        feeds a router, because its decision may stop gradients.
        """
        readers = [node for node in self.nodes if isinstance(node.operation, StateRead)]
        returned = {self.output, *self.tagged_nodes.values()}
        return bool(readers) and all(returned <= self._behind(reader.number) for reader in readers)

    def _behind(self, number: int) -> set[int]:
        """The nodes from which a gradient reaches this one; references to routers do not count."""
        behind = {number}
        for node in (node for level in self.levels for node in level):
            routed = isinstance(node.operation, Gate | Switch)
            wires = node.wires[:1] if routed else node.wires
            if any(wire.source in behind for wire in wires):
                behind.add(node.number)
        return behind

    @cached_property
    def loops(self) -> tuple[Node, ...]:
        """The nodes that record traces, in building order."""
        return tuple(node for node in self.nodes if isinstance(node.operation, Loop))

    @cached_property
    def levels(self) -> list[list[Node]]:
        """The nodes by level, see :func:`levels`."""
        return levels(self.nodes)


def levels(nodes: Sequence[Node]) -> list[list[Node]]:
    """Order nodes so that each comes after everything it reads, after Kahn (1962).

    A level holds the nodes that could run in parallel, in building order. Nodes that read no other
    node are in level 0.

    Raises:
        BuildError: Some nodes depend on each other in a cycle.
    """
    by_number = {node.number: node for node in nodes}
    order = TopologicalSorter(
        {node.number: [w.source for w in node.wires if w.source != ENTRY] for node in nodes}
    )
    try:
        order.prepare()
    except CycleError as error:
        names = ", ".join(by_number[number].id for number in sorted(set(error.args[1])))
        raise BuildError(f"the graph has a cycle through {names}: each waits for another") from None
    ordered = []
    while order.is_active():
        level = sorted(order.get_ready())
        order.done(*level)
        ordered.append([by_number[number] for number in level])
    return ordered
