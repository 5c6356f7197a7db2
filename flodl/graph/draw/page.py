"""A drawing as HTML whose composites unfold, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from flodl.graph.draw.diagram import Diagram
from flodl.graph.draw.opening import closed
from flodl.graph.draw.shapes import heading
from flodl.graph.draw.svg import svg_source


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
