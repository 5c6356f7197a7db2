"""From a graph to text and images: what :class:`~flodl.graph.drawn.Drawn` offers as methods.

Apart from it, so that models which are never drawn start without the renderer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flodl.graph.draw.describe import describe
from flodl.graph.draw.dot import dot_source
from flodl.graph.draw.graphviz import render
from flodl.graph.draw.opening import opened
from flodl.graph.draw.page import fragment
from flodl.graph.draw.svg import svg_source

if TYPE_CHECKING:
    from flodl.graph.base import GraphBase


def dot(graph: GraphBase, depth: int, expand: Iterable[str], *, profiled: bool) -> str:
    """Graphviz source."""
    return dot_source(opened(describe(graph, profiled=profiled), depth, expand))


def svg(
    graph: GraphBase, engine: str | None, depth: int, expand: Iterable[str], *, profiled: bool
) -> bytes:
    """An SVG image, by Graphviz where the engine is ``"dot"``."""
    if engine == "dot":
        return render(dot(graph, depth, expand, profiled=profiled))
    return svg_source(opened(describe(graph, profiled=profiled), depth, expand)).encode()


def unfolding(graph: GraphBase) -> str:
    """The drawing as HTML, with boxes that unfold."""
    return fragment(describe(graph))
