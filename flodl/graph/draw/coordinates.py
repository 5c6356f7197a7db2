"""Horizontal coordinates that keep chains straight, after Brandes and Köpf (2001).

Vertices are aligned into vertical blocks, and blocks are packed. This is done four times, once per
corner. Each vertex gets the mean of its two middle positions. Blocks are packed by longest paths,
which also avoids the overlaps of the original packing (Brandes, Walter, Zink 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flodl.graph.draw.layered import Layered

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
