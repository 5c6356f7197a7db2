"""Convert a graph to text and images, for the methods of :class:`~flodl.graph.drawn.Drawn`.

A separate module, so that programs which never draw do not import the renderer.
"""

from __future__ import annotations

from collections.abc import Iterable

from flodl.graph.base import GraphBase
from flodl.graph.draw.describe import describe
from flodl.graph.draw.dot import dot_source
from flodl.graph.draw.graphviz import render
from flodl.graph.draw.opening import opened
from flodl.graph.draw.page import fragment
from flodl.graph.draw.svg import svg_source


def dot(graph: GraphBase, depth: int, expand: Iterable[str], *, profiled: bool) -> str:
    """Return Graphviz source."""
    return dot_source(opened(describe(graph, profiled=profiled), depth, expand))


def svg(
    graph: GraphBase, engine: str | None, depth: int, expand: Iterable[str], *, profiled: bool
) -> bytes:
    """Return an SVG image; Graphviz draws it if the engine is ``"dot"``."""
    if engine == "dot":
        return render(dot(graph, depth, expand, profiled=profiled))
    return svg_source(opened(describe(graph, profiled=profiled), depth, expand)).encode()


def unfolding(graph: GraphBase) -> str:
    """Return the drawing as HTML, with boxes that unfold."""
    return fragment(describe(graph))
