"""The vertical part of a layout: distances between layers, and the path of every edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flodl.graph.draw.layered import Layered, Link
from flodl.graph.draw.shapes import half_height
from flodl.graph.draw.style import Shape

Point = tuple[float, float]

_GAP, _BEND_GAP, _TEXT_HEIGHT = 26.0, 13.0, 12.0
_SLOPE, _STEEPEST = 0.1, 70.0
_ARC = 22.0


@dataclass(frozen=True, slots=True)
class Anchor:
    """A fixed point for edges: a box, or an end of an inner diagram.

    Attributes:
        shape: Its outline.
        width: Its width.
        height: Its height.
        exit_offset: Horizontal distance from the centre to the start of its outgoing edges.
        x: Horizontal centre.
        y: Vertical centre.
    """

    shape: Shape
    width: float
    height: float
    exit_offset: float = 0.0
    x: float = 0.0
    y: float = 0.0

    def top(self, offset: float = 0.0) -> Point:
        """The point on the upper outline, ``offset`` to the side of the centre."""
        return self.x + offset, self.y - half_height(self.shape, self.width, self.height, offset)

    def bottom(self, offset: float = 0.0) -> Point:
        """The point on the lower outline, ``offset`` to the side of the centre."""
        return self.x + offset, self.y + half_height(self.shape, self.width, self.height, offset)


class Row(NamedTuple):
    """The vertical space of a layer."""

    top: float
    bottom: float

    @property
    def centre(self) -> float:
        """Vertical centre of its boxes."""
        return (self.top + self.bottom) / 2


def stack(graph: Layered, heights: Sequence[float], xs: Sequence[float]) -> list[Row]:
    """Assign vertical space to every layer; the gap below grows with the sideways reach of edges.

    Args:
        graph: The layers.
        heights: Height of every vertex that is not a bend.
        xs: Centre of every vertex.
    """
    texts = {bend for bend in graph.label_bends if bend is not None}
    rows: list[Row] = []
    top = 0.0
    for layer in graph.layers:
        tall = max((heights[vertex] for vertex in layer if vertex < graph.real), default=0.0)
        if any(vertex in texts for vertex in layer):
            tall = max(tall, _TEXT_HEIGHT)
        rows.append(Row(top, top + tall))
        boxes = any(vertex < graph.real for vertex in layer)
        sideways = max(
            (abs(xs[lower] - xs[upper]) for upper in layer for lower, _ in graph.below[upper]),
            default=0.0,
        )
        top += tall + (_GAP if boxes else _BEND_GAP) + min(_STEEPEST, _SLOPE * sideways)
    return rows


class Way(NamedTuple):
    """The path of an edge.

    Attributes:
        points: From its start to the tip of its arrow. Between points of different ``x`` it is a
            curve that starts and ends vertically. An arc passes through one point in between.
        upwards: Whether its arrow points up.
        arc: Whether it connects boxes of one layer.
    """

    points: tuple[Point, ...]
    upwards: bool = False
    arc: bool = False


class Router:
    """Computes the paths of links through a graph with coordinates.

    Args:
        graph: Layers and chains.
        xs: Centre of every vertex.
        rows: Vertical space of every layer.
        anchors: Every vertex that is not a bend, at its position.
    """

    def __init__(
        self, graph: Layered, xs: Sequence[float], rows: Sequence[Row], anchors: Sequence[Anchor]
    ) -> None:
        self._graph = graph
        self._xs = xs
        self._rows = rows
        self._anchors = anchors

    def way(self, number: int, link: Link) -> Way:
        """The path of a link from its source to its target."""
        source, target = self._anchors[link.source], self._anchors[link.target]
        layer = self._graph.layer_of
        if layer[link.source] == layer[link.target]:
            return self._beneath(source, target, layer[link.source])
        downwards = layer[link.source] < layer[link.target]
        chain = self._graph.chains[number] or []
        if downwards:
            offsets = source.exit_offset, 0.0
            upper, lower = link.source, link.target
        else:
            # It starts and ends beside the middle, which edges of the usual direction use.
            upper, lower = link.target, link.source
            beside = self._xs[chain[0]] if chain else self._xs[lower] + 1
            side = 1 if beside >= self._xs[upper] else -1
            offsets = side * target.width / 4, side * source.width / 4
        way = self._down(upper, lower, chain, *offsets)
        return Way(tuple(way if downwards else way[::-1]), upwards=not downwards)

    def text_at(self, number: int) -> Point:
        """Centre of a link's label; the origin if the link has none."""
        bend = self._graph.label_bends[number]
        if bend is None:
            return 0.0, 0.0
        return self._xs[bend], self._rows[self._graph.layer_of[bend]].centre

    def _down(
        self, upper: int, lower: int, chain: Sequence[int], leave: float, arrive: float
    ) -> list[Point]:
        start = self._anchors[upper].bottom(leave)
        end = self._anchors[lower].top(arrive)
        layer = self._graph.layer_of
        way = [start, (start[0], self._rows[layer[upper]].bottom)]
        for bend in chain:
            row = self._rows[layer[bend]]
            way += [(self._xs[bend], row.top), (self._xs[bend], row.bottom)]
        return [*way, (end[0], self._rows[layer[lower]].top), end]

    def _beneath(self, source: Anchor, target: Anchor, layer: int) -> Way:
        """A path between boxes of one layer, through the gap below it."""
        depth = self._rows[layer].bottom + _ARC
        side = 1 if target.x >= source.x else -1
        start = source.bottom(side * source.width / 4)
        end = target.bottom(-side * target.width / 4)
        middle = (start[0] + end[0]) / 2, depth
        return Way((start, middle, end), upwards=True, arc=True)
