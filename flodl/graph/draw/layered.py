"""Vertices on layers: the input of crossing reduction and of coordinate assignment.

An edge over several layers becomes a chain of bends, one on every layer between (Sugiyama, Tagawa,
Toda 1981). Long edges from the same vertex share one chain and branch off it. So a value with many
readers is drawn as one trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_SPARE_BENDS = 20_000
"""Bends allowed in addition to ten per vertex; beyond that the longest edges are straight."""


@dataclass(frozen=True, slots=True)
class Link:
    """An edge to lay out.

    Attributes:
        source: Index of a vertex.
        target: Index of a vertex.
        group: Links of one group from the same vertex share a trunk; -1 never shares.
        priority: Among links to the same vertex, those of the highest priority are kept straight.
        label: Width of its text, or 0.
    """

    source: int
    target: int
    group: int = 0
    priority: int = 0
    label: float = 0.0


@dataclass(slots=True)
class Layered:
    """A graph whose edges connect adjacent layers.

    Attributes:
        layers: The vertices of every layer from left to right. Given vertices count from 0, bends
            follow.
        widths: Width of every vertex.
        above: For every vertex, its vertices on the layer before, with the link's priority.
        below: The same for the layer after.
        layer_of: Layer of every vertex.
        real: Number of vertices that are not bends.
        chains: For every link, the bends from its upper to its lower end. None if it is straight:
            it connects vertices of one layer, or there are too many bends.
        label_bends: For every link, the bend with its text, or None.
        joined: The connected pairs, upper vertex first.
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
        """Connect two vertices of adjacent layers, once."""
        if (upper, lower) not in self.joined:
            self.joined.add((upper, lower))
            self.below[upper].append((lower, priority))
            self.above[lower].append((upper, priority))


def layered(widths: Sequence[float], ranks: Sequence[int], links: Sequence[Link]) -> Layered:
    """Put vertices on layers and replace long links by chains of bends.

    Args:
        widths: Width of every vertex.
        ranks: Rank of every vertex. Ranks become layers; extra layers are added for texts and
            returning links.
        links: Links between vertices; a link from a later to an earlier rank is laid out reversed.
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
    """The layer of every rank; texts and returning links add a free layer before a rank."""
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
    """Add the bends of all links: short links first, returning ones to the right of the others."""
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
