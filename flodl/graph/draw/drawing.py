"""Convert a graph to text and images, for the methods of :class:`~flodl.graph.drawn.Drawn`.

A separate module, so that programs which never draw do not import the renderer.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape

from fdl.base.suggest import nearest
from flodl.errors import FlodlError, PathError
from flodl.graph.base import GraphBase
from flodl.graph.draw.describe import describe
from flodl.graph.draw.diagram import Box, Diagram
from flodl.graph.draw.dot import dot_source
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
    """Return HTML: everything closed, and below it one ``<details>`` per composite."""
    parts = _parts(describe(graph))
    return "\n".join(['<div class="flodl-drawing">', *parts, "</div>"])


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


def _parts(diagram: Diagram) -> Iterator[str]:
    yield svg_source(_prune(diagram, 1, set())).rstrip()
    for box in diagram.boxes:
        if box.inside is not None:
            name = box.id.rpartition("/")[2]
            yield '<details style="margin-left:1em">'
            yield f"<summary>{escape(name)}: {escape(heading(box))}</summary>"
            yield from _parts(box.inside)
            yield "</details>"


def opened(diagram: Diagram, depth: int, expand: Iterable[str]) -> Diagram:
    """Close all composites that were not asked for.

    Args:
        diagram: The diagram with everything open.
        depth: Number of nested diagrams to show; 1 shows only the outermost.
        expand: Composites to open at any depth, by registry path (``encoder.loop_2``). The label
            of a nested graph works like its key. Composites around them are opened too.

    Raises:
        ValueError: ``depth`` is below 1, or ``expand`` is one string instead of several.
        PathError: A path does not name a composite.
    """
    if depth < 1:
        raise ValueError(
            f"depth counts diagrams from the outermost one, so it is 1 or more: {depth}"
        )
    if isinstance(expand, str):
        raise ValueError(f"expand takes several paths, not one text: expand=({expand!r},)")
    wanted = list(expand)
    ids = _find(diagram, wanted) if wanted else set()
    return _prune(diagram, depth, ids)


def _prune(diagram: Diagram, depth: int, ids: set[str]) -> Diagram:
    def pruned(box: Box) -> Box:
        if box.inside is None:
            return box
        stays = depth > 1 or box.id in ids
        return replace(box, inside=_prune(box.inside, depth - 1, ids) if stays else None)

    return replace(diagram, boxes=tuple(map(pruned, diagram.boxes)))


def _find(diagram: Diagram, wanted: list[str]) -> set[str]:
    """The ids of the boxes with these paths, and of the boxes around them."""
    known: dict[str, set[str]] = {}
    for path, chain in _paths(diagram, "", []):
        known.setdefault(path, set()).update(box.id for box in chain)
    for path in wanted:
        if path not in known:
            near = nearest(path, known)
            hint = f"did you mean {near}?" if near else f"there is {list(known)}"
            raise PathError(
                f"expand: {path!r} names no nested graph, loop, map, gate or switch; {hint}"
            )
    return set().union(*(known[path] for path in wanted))


def _paths(diagram: Diagram, around: str, chain: list[Box]) -> Iterator[tuple[str, list[Box]]]:
    """Yield every composite under each of its names, with the boxes around it and itself."""
    for box in diagram.boxes:
        if box.inside is None:
            continue
        here = [*chain, box]
        parent = chain[-1].path if chain else ""
        key = box.path[len(parent) + 1 :] if parent else box.path
        names = dict.fromkeys((key, box.name or key))
        for name in names:
            path = ".".join(filter(None, (around, name)))
            yield path, here
            yield from _paths(box.inside, path, here)
