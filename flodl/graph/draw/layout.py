"""Convert a diagram to positions in pixels: of every box and along every edge."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flodl.graph.draw.diagram import Box, Diagram, Edge
from flodl.graph.draw.layered import Layered, Link, layered
from flodl.graph.draw.routing import Anchor, Point, Router, Way, stack
from flodl.graph.draw.shapes import SMALL, heading, shortened, size_of, text_width
from flodl.graph.draw.style import Line, Shape

HEADER = 20.0
"""Height of the strip with the name of an open box."""

_GAP, _BEND_GAP = 26.0, 14.0
_FRAME_PADDING = 14.0
_END_WIDTH = 40.0


@dataclass(frozen=True, slots=True)
class Placed:
    """A box and its position.

    Attributes:
        box: The box.
        width: Its width; that of the frame if it is open.
        height: Its height.
        x: Horizontal centre.
        y: Vertical centre.
        inside: The layout of an open box.
        inside_at: Upper left corner of that layout, relative to the box.
    """

    box: Box
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    inside: Layout | None = None
    inside_at: Point = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Route:
    """An edge and its path.

    Attributes:
        edge: The edge.
        way: Its path.
        text: Its label, shortened.
        text_at: Centre of the label.
    """

    edge: Edge
    way: Way
    text: str
    text_at: Point


@dataclass(frozen=True, slots=True)
class Layout:
    """A diagram with positions.

    Attributes:
        width: Total width.
        height: Total height.
        boxes: In the order of the diagram.
        routes: In the order of its edges.
        entry: Point where values enter an inner diagram.
        exit: Point where its value leaves.
    """

    width: float
    height: float
    boxes: tuple[Placed, ...]
    routes: tuple[Route, ...]
    entry: Point = (0.0, 0.0)
    exit: Point = (0.0, 0.0)


def layout(diagram: Diagram) -> Layout:
    """Place everything, inner diagrams first; the same diagram always gives the same layout."""
    sized = [_sized(box) for box in diagram.boxes]
    ends = [Anchor(Shape.POINT, _END_WIDTH, 0.0)] * 2 if diagram.id else []
    anchors = [_anchor(placed) for placed in sized] + ends
    ranks, index = _ranks(diagram)
    links = [_link(edge, ranks, index) for edge in diagram.edges]
    graph = layered([anchor.width for anchor in anchors], ranks, links)
    reduce_crossings(graph)
    xs = horizontal(graph, _GAP, _BEND_GAP)
    rows = stack(graph, [anchor.height for anchor in anchors], xs)
    anchors = [
        replace(anchor, x=xs[vertex], y=rows[graph.layer_of[vertex]].centre)
        for vertex, anchor in enumerate(anchors)
    ]
    router = Router(graph, xs, rows, anchors)
    return Layout(
        width=max((x + w / 2 for x, w in zip(xs, graph.widths, strict=True)), default=0.0),
        height=rows[-1].bottom if rows else 0.0,
        boxes=tuple(
            replace(placed, x=anchor.x, y=anchor.y)
            for placed, anchor in zip(sized, anchors, strict=False)
        ),
        routes=tuple(
            Route(edge, router.way(number, link), shortened(edge.label), router.text_at(number))
            for number, (edge, link) in enumerate(zip(diagram.edges, links, strict=True))
        ),
        entry=(anchors[-2].x, anchors[-2].y) if diagram.id else (0.0, 0.0),
        exit=(anchors[-1].x, anchors[-1].y) if diagram.id else (0.0, 0.0),
    )


def _sized(box: Box) -> Placed:
    """A box with its size, without a position."""
    if box.inside is None:
        width, height = size_of(box)
        return Placed(box, width, height)
    inside = layout(box.inside)
    # Values arrive at the middle of the frame; its contents are moved so that edges go straight on.
    half = max(inside.entry[0], inside.width - inside.entry[0]) + _FRAME_PADDING
    half = max(half, text_width(heading(box), SMALL) / 2 + 8)
    return Placed(
        box,
        width=2 * half,
        height=inside.height + HEADER,
        inside=inside,
        inside_at=(half - inside.entry[0], HEADER),
    )


def _anchor(placed: Placed) -> Anchor:
    if placed.inside is None:
        return Anchor(placed.box.shape, placed.width, placed.height)
    beside = placed.inside.exit[0] - placed.inside.entry[0]
    return Anchor(Shape.BOX, placed.width, placed.height, exit_offset=beside)


def _ranks(diagram: Diagram) -> tuple[list[int], dict[str, int]]:
    """The rank of every box and of both ends, and their index in that list by id."""
    index = {box.id: number for number, box in enumerate(diagram.boxes)}
    first = 1 if diagram.id else 0
    ranks = [box.level + first for box in diagram.boxes]
    readers: dict[str, list[int]] = {}
    for edge in diagram.edges:
        if edge.target in index and not edge.back:
            readers.setdefault(edge.source, []).append(ranks[index[edge.target]])
    for number, box in enumerate(diagram.boxes):
        # A state reader runs just before its consumer, so it is drawn just above it.
        if box.floats and box.id in readers:
            ranks[number] = max(ranks[number], min(readers[box.id]) - 1)
    if diagram.id:
        index |= {diagram.entry: len(ranks), diagram.exit: len(ranks) + 1}
        ranks += [0, diagram.depth + 1]
    return ranks, index


def _link(edge: Edge, ranks: Sequence[int], index: dict[str, int]) -> Link:
    source, target = index[edge.source], index[edge.target]
    adjacent = ranks[target] - ranks[source] == 1
    if edge.back or edge.line is Line.STATE:
        priority = 0
    else:
        priority = 1 if edge.line is Line.REFERENCE else 2 + adjacent
    return Link(
        source,
        target,
        group=-1 if edge.back else list(Line).index(edge.line),
        priority=priority,
        label=text_width(shortened(edge.label), SMALL) + 4 if edge.label else 0.0,
    )


_WORK = 400_000
"""Approximate number of segments to examine before the best order so far is used."""


def reduce_crossings(graph: Layered) -> None:
    """Reorder the layers of a graph so that few edges cross; deterministic."""
    segments = sum(map(len, graph.below))
    position = _positions(graph.layers, len(graph.widths))
    best, fewest = [list(layer) for layer in graph.layers], crossings(graph, position)
    for sweep in range(max(2, min(16, _WORK // max(1, segments)))):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        layers = graph.layers if downwards else graph.layers[::-1]
        neighbours = graph.above if downwards else graph.below
        for layer in layers[1:]:
            _sort(layer, neighbours, position)
        found = crossings(graph, position)
        if found < fewest:
            best, fewest = [list(layer) for layer in graph.layers], found
    graph.layers = best


def crossings(graph: Layered, position: list[int]) -> int:
    """Number of crossing pairs of segments, given the position of every vertex on its layer."""
    total = 0
    for layer in graph.layers:
        seen: list[int] = []
        for vertex in layer:
            ends = sorted(position[lower] for lower, _ in graph.below[vertex])
            for end in ends:
                total += len(seen) - bisect_right(seen, end)
            for end in ends:
                insort(seen, end)
    return total


def _sort(layer: list[int], neighbours: list[list[tuple[int, int]]], position: list[int]) -> None:
    """Sort one layer by the mean position of connected vertices; a vertex without any stays."""
    keys = {}
    for vertex in layer:
        ends = neighbours[vertex]
        mean = sum(position[end] for end, _ in ends) / len(ends) if ends else position[vertex]
        keys[vertex] = mean
    layer.sort(key=keys.__getitem__)
    for index, vertex in enumerate(layer):
        position[vertex] = index


Neighbours = list[list[tuple[int, int]]]


def horizontal(graph: Layered, gap: float, bend_gap: float) -> list[float]:
    """Place every vertex of an ordered graph.

    Args:
        graph: A graph whose layers are in their final order.
        gap: Free space between two vertices of a layer.
        bend_gap: Free space if one of the two is a bend.

    Returns:
        The centre of every vertex; the leftmost edge of all vertices is at 0.
    """
    if not graph.widths:
        return []
    conflicts = _conflicts(graph)
    eligible = _eligible(graph.above, graph.below), _eligible(graph.below, graph.above)
    placements = []
    for upwards in (False, True):
        for mirrored in (False, True):
            layers = graph.layers[::-1] if upwards else graph.layers
            layers = [layer[::-1] for layer in layers] if mirrored else layers
            root = _align(graph, layers, eligible[upwards], conflicts)
            xs = _pack(graph, layers, root, gap, bend_gap)
            placements.append([-x for x in xs] if mirrored else xs)
    xs = _balance(graph.widths, placements)
    left = min(x - width / 2 for x, width in zip(xs, graph.widths, strict=True))
    return [x - left for x in xs]


def _conflicts(graph: Layered) -> set[tuple[int, int]]:
    """Segments (upper, lower) that cross a segment between two bends, which must stay straight."""
    found: set[tuple[int, int]] = set()
    position = _positions(graph.layers, len(graph.widths))
    for upper, layer in pairwise(graph.layers):
        left, scanned = 0, 0
        for index, vertex in enumerate(layer):
            inner = _inner_above(graph, vertex)
            last = index == len(layer) - 1
            if inner is None and not last:
                continue
            right = len(upper) - 1 if inner is None else position[inner]
            for other in layer[scanned : index + 1]:
                for end, _ in graph.above[other]:
                    crosses = position[end] < left or position[end] > right
                    if crosses and not (end >= graph.real and other >= graph.real):
                        found.add((end, other))
            left, scanned = right, index + 1
    return found


def _inner_above(graph: Layered, vertex: int) -> int | None:
    """The bend above a bend, or None."""
    if vertex < graph.real:
        return None
    end = graph.above[vertex][0][0]
    return end if end >= graph.real else None


def _eligible(neighbours: Neighbours, opposite: Neighbours) -> list[list[int]]:
    """The adjacent vertices that each vertex may be aligned with.

    Both ends must prefer the link, so that side branches do not bend the main stream.
    """
    highest = [max((value for _, value in ends), default=0) for ends in opposite]
    chosen = []
    for ends in neighbours:
        best = max((value for _, value in ends), default=0)
        chosen.append([end for end, value in ends if value == best == highest[end]])
    return chosen


def _positions(layers: Sequence[Sequence[int]], count: int) -> list[int]:
    position = [0] * count
    for layer in layers:
        for index, vertex in enumerate(layer):
            position[vertex] = index
    return position


def _align(
    graph: Layered,
    layers: Sequence[Sequence[int]],
    neighbours: Sequence[Sequence[int]],
    conflicts: set[tuple[int, int]],
) -> list[int]:
    """Align each vertex with a median of the previous layer; return the root of every block."""
    root = list(range(len(graph.widths)))
    position = _positions(layers, len(root))
    for layer in layers[1:]:
        reached = -1
        for vertex in layer:
            ends = neighbours[vertex]
            if not ends:
                continue
            favoured = sorted((position[end], end) for end in ends)
            middle = (len(favoured) - 1) // 2
            for place, end in favoured[middle : len(favoured) // 2 + 1]:
                pair = (
                    (end, vertex) if graph.layer_of[end] < graph.layer_of[vertex] else (vertex, end)
                )
                if place > reached and pair not in conflicts:
                    root[vertex] = root[end]
                    reached = place
                    break
    return root


def _pack(
    graph: Layered,
    layers: Sequence[Sequence[int]],
    root: Sequence[int],
    gap: float,
    bend_gap: float,
) -> list[float]:
    """Place every block as far left as possible, then close gaps towards the right."""
    widths, real = graph.widths, graph.real
    right: dict[int, list[tuple[int, float]]] = {}
    waiting: dict[int, int] = dict.fromkeys(root, 0)
    for layer in layers:
        for a, b in pairwise(layer):
            space = (widths[a] + widths[b]) / 2 + (gap if a < real and b < real else bend_gap)
            right.setdefault(root[a], []).append((root[b], space))
            waiting[root[b]] += 1
    x = dict.fromkeys(waiting, 0.0)
    order = [block for block, count in waiting.items() if not count]
    for block in order:
        for other, space in right.get(block, ()):
            x[other] = max(x[other], x[block] + space)
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    for block in reversed(order):
        limits = [x[other] - space for other, space in right.get(block, ())]
        if limits:
            x[block] = max(x[block], min(limits))
    return [x[block] for block in root]


def _balance(widths: Sequence[float], placements: Sequence[list[float]]) -> list[float]:
    """Align the placements with the narrowest one and take the mean of the two middle ones."""

    def extent(xs: list[float]) -> tuple[float, float]:
        pairs = list(zip(xs, widths, strict=True))
        return min(x - w / 2 for x, w in pairs), max(x + w / 2 for x, w in pairs)

    extents = [extent(xs) for xs in placements]
    low, high = min(extents, key=lambda ends: ends[1] - ends[0])
    shifted = []
    for index, (xs, (left, right)) in enumerate(zip(placements, extents, strict=True)):
        shift = high - right if index % 2 else low - left
        shifted.append([x + shift for x in xs])
    return [sum(sorted(candidates)[1:3]) / 2 for candidates in zip(*shifted, strict=True)]
