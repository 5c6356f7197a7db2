"""Nodes of a body that are computed once before it runs many times.

A loop or a map calls a graph again and again. Some of its nodes have the same value in every call
of a loop; others can be computed for all parts of a map at once. :func:`split` divides a topology
into these nodes and the rest, which gets their values as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from flodl.graph.base import GraphBase
from flodl.graph.codegen import Core
from flodl.graph.rewriting.known import impurity, shares_memory, unhooked
from flodl.graph.topology import Call, Combine, Map, Node, Port, StateRead, Topology


@final
class Halves(NamedTuple):
    """A topology in two parts, whose nodes keep their numbers.

    Attributes:
        before: Computes the moved nodes; the values that the rest reads are its tags.
        rest: Everything else; these values are further inputs of it, in the same order.
        passed: The numbers of these values.
    """

    before: Topology
    rest: Topology
    passed: tuple[int, ...]


def split(topology: Topology, moved: Collection[int]) -> Halves:
    """Divide a topology into nodes that move and the rest.

    Args:
        topology: Of a body.
        moved: Nodes without state and traces. What they read moves, too, or is an input.
    """
    rest = [node for node in topology.nodes if node.number not in moved]
    read = {topology.output, *topology.tagged_nodes.values()}
    read.update(wire.source for node in rest for wire in node.wires)
    # A dot: no name of the user has one.
    names = {n: f"node.{topology.node(n).id}" for n in sorted(moved) if n in read}

    def without(numbers: Collection[int]) -> tuple[Node, ...]:
        """The nodes; those with these numbers only stand for a value from outside."""
        return tuple(
            replace(node, operation=Port(f"node.{node.id}"), wires=())
            if node.number in numbers
            else node
            for node in topology.nodes
        )

    idle = [node.number for node in rest if not isinstance(node.operation, Port)]
    before = replace(
        topology,
        nodes=without(idle),
        output=next(iter(names)),
        tags=tuple((name, number) for number, name in names.items()),
        groups=(),
        passing=frozenset(),
    )
    inputs = (*topology.inputs, *names.values())
    return Halves(before, replace(topology, nodes=without(moved), inputs=inputs), tuple(names))


def closure(topology: Topology, known: Collection[int], able: Callable[[Node], bool]) -> list[int]:
    """The nodes that can be computed from known values alone, in order of execution.

    Args:
        topology: Of a body.
        known: Numbers of values that exist before.
        able: Whether a node may move.
    """
    ready, moved = set(known), list[int]()
    for node in (node for level in topology.levels for node in level):
        movable = isinstance(node.operation, Call | Combine | Map) and node.wires
        if movable and all(wire.source in ready for wire in node.wires) and able(node):
            ready.add(node.number)
            moved.append(node.number)
    return moved


@final
class Body:
    """A graph that is called many times, and its divisions.

    Args:
        core: Of the graph.
        known: Numbers of the values that exist before.
        only: Whether a node may move, as far as its operation shows.
    """

    def __init__(
        self, core: Core, known: Collection[int], only: Callable[[Node], bool] = lambda _: True
    ) -> None:
        self.core = core
        self._known = known
        self._candidates = closure(core.topology, known, only)
        self._divided: dict[tuple[int, ...], Divided | None] = {}

    def divided(self, able: Callable[[Node], bool]) -> Divided | None:
        """The cores of both halves for the nodes that may move now; None if none may."""
        topology = self.core.topology
        now = tuple(n for n in self._candidates if able(topology.node(n)))
        if now not in self._divided:
            moved = closure(topology, self._known, lambda node: node.number in now)
            pays = any(topology.node(number).prefix for number in moved)
            divided = Divided(self.core, moved) if pays else None
            self._divided[now] = divided if divided and divided.keeps_order else None
        return self._divided[now]


@final
class Divided:
    """The two cores of a body, one for each half."""

    def __init__(self, core: Core, moved: Collection[int]) -> None:
        halves = split(core.topology, moved)
        stay = {
            number: one
            for number, one in core.rewrites.items()
            if number not in moved and one.same not in moved
        }
        self.topology = core.topology
        self.moved = tuple(moved)
        order = [node for level in core.topology.levels for node in level]
        last = max(at for at, node in enumerate(order) if node.number in moved)
        self._earlier = [node for node in order[:last] if node.number not in moved]
        self.passed = halves.passed
        self.before = Core(halves.before)
        self.rest = core.rewritten(stay, halves.rest)

    @property
    def keeps_order(self) -> bool:
        """Whether the rest runs in the order in which it runs now, as random numbers need it."""
        return _order(self.topology, self.moved) == _order(self.rest.topology, self.moved)

    def is_safe(self, graph: nn.Module) -> bool:
        """Whether no node that runs before a moved one may write into what that reads."""
        return all(writes_nothing(node, graph._modules.get(node.prefix)) for node in self._earlier)

    def values(self, graph: Any, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """Compute the first half."""
        found: Any = self.before.run(graph._modules, inputs, ())[1]
        return tuple(found)

    def lent(self, graph: nn.Module) -> list[bool]:
        """Which of the values may be given out again: nothing keeps them or writes into them."""
        kept = {self.topology.output, *self.topology.tagged_nodes.values()}
        return [n not in kept and self._only_read(graph, n) for n in self.passed]

    def _only_read(self, graph: nn.Module, number: int) -> bool:
        readers = [
            node
            for node in self.topology.nodes
            if node.number not in self.moved and any(w.source == number for w in node.wires)
        ]
        return all(only_reads(node, graph._modules.get(node.prefix)) for node in readers)


def _order(topology: Topology, without: Collection[int]) -> list[int]:
    return [
        node.number
        for level in topology.levels
        for node in level
        if node.wires and node.number not in without
    ]


def writes_nothing(node: Node, module: nn.Module | None) -> bool:
    """Whether a node certainly writes into none of the values that it reads."""
    if isinstance(node.operation, Combine | Port | StateRead):
        return True
    known = isinstance(node.operation, Call) and module is not None
    return known and not impurity(module)  # type: ignore[arg-type]


def only_reads(node: Node, module: nn.Module | None) -> bool:
    """Whether a node neither writes into the values that it reads nor passes them on."""
    if isinstance(node.operation, Combine):
        return True
    if not isinstance(node.operation, Call) or module is None or impurity(module):
        return False
    return bool(node.references) or not shares_memory(module)


def body_core(body: object) -> Core | None:
    """The core of a body that may be divided; None if the body must be called as it is."""
    if not isinstance(body, GraphBase) or not unhooked(body):
        return None
    graph: Any = body
    core: Core = graph._core
    own = type(graph).forward is type(graph)._shell
    return core if own and core.mark is None and graph._compile_options is None else None


def auxiliary(topology: Topology) -> list[int]:
    """Numbers of the auxiliary inputs."""
    return [node.number for node in topology.nodes if isinstance(node.operation, Port)]


def fresh(values: tuple[Tensor, ...], lent: list[bool]) -> tuple[Tensor, ...]:
    """The values, copied where a reader may write into them."""
    return tuple(v if may else v.clone() for v, may in zip(values, lent, strict=True))
