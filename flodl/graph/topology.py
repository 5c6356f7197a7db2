"""What a graph is, as values: nodes, the wires between them, tags. No modules, no tensors, no code.

The builder makes a topology, code generation turns it into a function, the structural hash
describes it. A new kind of node is a new operation here and a new case in ``codegen``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from flodl.errors import BuildError

ENTRY = 0
"""Source number of a wire that starts at the graph's input; nodes count from 1."""


class MergeOp(Enum):
    """How parallel streams become one: ``ADD`` is their sum, ``MEAN`` the sum over their number."""

    ADD = "add"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Call:
    """Run the module registered under the node's prefix."""

    def arguments(self) -> list[str]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return []


@dataclass(frozen=True, slots=True)
class Combine:
    """Add the inputs element by element, or average them."""

    how: MergeOp

    def arguments(self) -> list[str]:
        """What distinguishes this operation from others of its kind, for the structural hash."""
        return [self.how.value]


Operation = Call | Combine


@dataclass(frozen=True, slots=True)
class Wire:
    """A value on its way into a node.

    Attributes:
        source: Number of the node whose output travels, or ``ENTRY``.
        port: Where it arrives: ``input``, or ``input_<i>`` where several streams meet.
    """

    source: int
    port: str = "input"


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a graph.

    Attributes:
        number: Position in building order, from 1; one count over all kinds.
        kind: The module's kind (``linear``), or a structural one (``add``, ``merge``).
        operation: What the node does with its inputs.
        wires: Its inputs, in the order of its ports.
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


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole graph.

    Attributes:
        nodes: All nodes in building order; node ``k`` stands at index ``k - 1``.
        output: Number of the node whose value the graph returns.
        inputs: Names of the graph's inputs, the entry first.
        tags: Tag name and number of the node it names, in declaration order.
        groups: Group name and its tags, in declaration order.
        label: Name of the graph, or None.
    """

    nodes: tuple[Node, ...]
    output: int
    inputs: tuple[str, ...] = ("input",)
    tags: tuple[tuple[str, int], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    label: str | None = None

    def source_id(self, wire: Wire) -> str:
        """Id of the node a wire starts at; the name of the entry where it is the graph's input."""
        return self.inputs[0] if wire.source == ENTRY else self.nodes[wire.source - 1].id


def levels(nodes: Sequence[Node]) -> list[list[Node]]:
    """Order nodes so that each stands behind everything it reads, after Kahn (1962).

    A level holds the nodes that could run side by side, in building order.

    Raises:
        BuildError: Some nodes wait for one another.
    """
    done = {ENTRY}
    waiting = list(nodes)
    ordered: list[list[Node]] = []
    while waiting:
        level = [node for node in waiting if all(wire.source in done for wire in node.wires)]
        if not level:
            names = ", ".join(node.id for node in waiting)
            raise BuildError(f"the graph has a cycle through {names}: each waits for another")
        ordered.append(level)
        done.update(node.number for node in level)
        waiting = [node for node in waiting if node.number not in done]
    return ordered
