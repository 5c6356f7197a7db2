"""Convert a diagram to positions in pixels: of every box and along every edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flodl.graph.draw.coordinates import horizontal
from flodl.graph.draw.diagram import Box, Diagram, Edge
from flodl.graph.draw.layered import Link, layered
from flodl.graph.draw.ordering import reduce_crossings
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
