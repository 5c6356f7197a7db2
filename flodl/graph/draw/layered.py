"""Vertices on layers: what crossing reduction and coordinate assignment work on.

An edge over several layers becomes a chain of bends, one on every layer between (Sugiyama, Tagawa,
Toda 1981). Long edges that leave the same vertex share one chain and branch off it, so that a
value read everywhere is drawn as one trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_SPARE_BENDS = 20_000
"""Bends a drawing may have beside ten per vertex; the longest edges go straight beyond that."""


@dataclass(frozen=True, slots=True)
class Link:
    """An edge that is to be laid out.

    Attributes:
        source: Index of a vertex.
        target: Index of a vertex.
        group: Links of one group that leave the same vertex share a trunk; -1 never shares.
        priority: Of the links that end at a vertex, those of the highest are kept straight.
        label: Width of the text on it, 0 without.
    """

    source: int
    target: int
    group: int = 0
    priority: int = 0
    label: float = 0.0


@dataclass(slots=True)
class Layered:
    """A graph whose edges join neighbouring layers.

    Attributes:
        layers: The vertices of every layer from left to right; the given ones count from 0,
            bends follow.
        widths: Width of every vertex.
        above: For every vertex, its neighbours on the layer before, with the link's priority.
        below: The same for the layer after.
        layer_of: Layer of every vertex.
        real: Number of vertices that are not bends.
        chains: For every link the bends from its upper to its lower end; None where the link goes
            straight, because it joins vertices of one layer or is one of too many.
        label_bends: For every link the bend that carries its text, or None.
        joined: The pairs that are neighbours, upper one first.
    """

    layers: list[list[int]]
    widths: list[float]
    layer_of: list[int]
    real: int
    above: list[list[tuple[int, int]]] = field(default_factory=list)
    below: list[list[tuple[int, int]]] = field(default_factory=list)
    chains: list[list[int] | None] = field(default_factory=list)
    label_bends: list[int | None] = field(default_factory=list)
    joined: set[tuple[int, int]] = field(default_factory=set)

    def bend(self, layer: int, width: float) -> int:
        """Add a bend and return its number."""
        number = len(self.widths)
        self.widths.append(width)
        self.layer_of.append(layer)
        self.layers[layer].append(number)
        self.above.append([])
        self.below.append([])
        return number

    def join(self, upper: int, lower: int, priority: int) -> None:
        """Connect vertices of neighbouring layers, once."""
        if (upper, lower) not in self.joined:
            self.joined.add((upper, lower))
            self.below[upper].append((lower, priority))
            self.above[lower].append((upper, priority))


def layered(widths: Sequence[float], ranks: Sequence[int], links: Sequence[Link]) -> Layered:
    """Put vertices on layers and break long links into chains of bends.

    Args:
        widths: Width of every vertex.
        ranks: Rank of every vertex; ranks become layers, with further layers between where texts
            or returning links need room.
        links: Between vertices; one whose source ranks below its target is laid out upside down.
    """
    layer_of_rank = _spread(ranks, links)
    layer_of = [layer_of_rank[rank] for rank in ranks]
    graph = Layered(
        layers=[[] for _ in range(max(layer_of, default=-1) + 1)],
        widths=list(widths),
        layer_of=layer_of,
        real=len(widths),
        above=[[] for _ in widths],
        below=[[] for _ in widths],
        chains=[None] * len(links),
        label_bends=[None] * len(links),
    )
    for vertex, layer in enumerate(layer_of):
        graph.layers[layer].append(vertex)
    _chain(graph, links)
    return graph


def _spread(ranks: Sequence[int], links: Sequence[Link]) -> list[int]:
    """The layer of every rank: a free layer stands before a rank where texts or returns need it."""
    count = max(ranks, default=-1) + 1
    roomy = [False] * (count + 1)
    for link in links:
        top, bottom = sorted((ranks[link.source], ranks[link.target]))
        returns = ranks[link.source] > ranks[link.target] and bottom - top == 1
        if top < bottom and (link.label or returns):
            roomy[bottom] = True
    layers, layer = [], -1
    for rank in range(count):
        layer += 2 if roomy[rank] else 1
        layers.append(layer)
    return layers


def _chain(graph: Layered, links: Sequence[Link]) -> None:
    """Give every link its bends: short links first, returning ones to the right of the others."""
    trunks: dict[tuple[int, int], list[int]] = {}
    budget = _SPARE_BENDS + 10 * graph.real
    spans = [graph.layer_of[link.target] - graph.layer_of[link.source] for link in links]
    for index in sorted(range(len(links)), key=lambda index: (spans[index] < 0, abs(spans[index]))):
        link, span = links[index], spans[index]
        needed = abs(span) - 1
        if needed < 0 or len(graph.widths) - graph.real + needed > budget:
            continue
        upper, lower = (link.source, link.target) if span > 0 else (link.target, link.source)
        shared = span > 0 and link.group >= 0
        trunk = trunks.setdefault((upper, link.group), []) if shared else []
        own = int(bool(link.label))
        _extend(graph, trunk, upper, needed - own, link.priority)
        chain = trunk[: needed - own]
        if own:
            bend = graph.bend(graph.layer_of[lower] - 1, link.label)
            graph.join(chain[-1] if chain else upper, bend, link.priority)
            graph.label_bends[index] = bend
            chain.append(bend)
        graph.join(chain[-1] if chain else upper, lower, link.priority)
        graph.chains[index] = chain


def _extend(graph: Layered, trunk: list[int], upper: int, length: int, priority: int) -> None:
    while len(trunk) < length:
        bend = graph.bend(graph.layer_of[upper] + 1 + len(trunk), 0.0)
        graph.join(trunk[-1] if trunk else upper, bend, priority)
        trunk.append(bend)
