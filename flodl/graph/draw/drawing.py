"""Convert a graph to text and images, for the methods of :class:`~flodl.graph.drawn.Drawn`.

A separate module, so that programs which never draw do not import the renderer.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from html import escape

from flodl.errors import FlodlError
from flodl.graph.base import GraphBase
from flodl.graph.draw.describe import describe
from flodl.graph.draw.diagram import Diagram
from flodl.graph.draw.dot import dot_source
from flodl.graph.draw.opening import closed, opened
from flodl.graph.draw.shapes import heading
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


def render(source: str) -> bytes:
    """Let ``dot`` draw Graphviz source as SVG.

    Raises:
        FlodlError: The program is not on PATH, or it failed.
    """
    program = shutil.which("dot")
    if program is None:
        raise FlodlError(
            "engine='dot' needs Graphviz, and there is no `dot` on PATH; install it (`apt-get "
            "install graphviz`, `brew install graphviz`, `winget install graphviz`), or leave "
            "engine out to draw with the built-in one"
        )
    done = subprocess.run(
        [program, "-Tsvg"],
        input=source.encode(errors="backslashreplace"),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise FlodlError(
            f"{program} -Tsvg ended with status {done.returncode}: {said}; leave engine out to "
            "draw with the built-in one"
        )
    return done.stdout


def fragment(diagram: Diagram) -> str:
    """Return the diagram with everything closed, and below it one ``<details>`` per composite."""
    return "\n".join(['<div class="flodl-drawing">', *_parts(diagram), "</div>"])


def _parts(diagram: Diagram) -> Iterator[str]:
    yield svg_source(closed(diagram)).rstrip()
    for box in diagram.boxes:
        if box.inside is not None:
            name = box.id.rpartition("/")[2]
            yield '<details style="margin-left:1em">'
            yield f"<summary>{escape(name)}: {escape(heading(box))}</summary>"
            yield from _parts(box.inside)
            yield "</details>"
