"""Crossing reduction: choose the order of the vertices on each layer.

Vertices move to the mean position of their connected vertices, layer by layer, downwards and
upwards in turn (the barycentre method of Sugiyama, Tagawa and Toda 1981).
"""

from __future__ import annotations

from bisect import bisect_right, insort

from flodl.graph.draw.layered import Layered

_WORK = 400_000
"""Approximate number of segments to examine before the best order so far is used."""


def reduce_crossings(graph: Layered) -> None:
    """Reorder the layers of a graph so that few edges cross; deterministic."""
    segments = sum(map(len, graph.below))
    position = [0] * len(graph.widths)
    for layer in graph.layers:
        _number(layer, position)
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


def _number(layer: list[int], position: list[int]) -> None:
    for index, vertex in enumerate(layer):
        position[vertex] = index


def _sort(layer: list[int], neighbours: list[list[tuple[int, int]]], position: list[int]) -> None:
    """Sort one layer by the mean position of connected vertices; a vertex without any stays."""
    keys = {}
    for vertex in layer:
        ends = neighbours[vertex]
        mean = sum(position[end] for end, _ in ends) / len(ends) if ends else position[vertex]
        keys[vertex] = mean
    layer.sort(key=keys.__getitem__)
    _number(layer, position)
