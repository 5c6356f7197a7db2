"""A diagram as Graphviz source."""

from __future__ import annotations

from collections.abc import Iterator

from flodl.graph.draw.diagram import Box, Diagram, Edge
from flodl.graph.draw.style import Line, format_seconds, heat_color

_INDENT = "  "


def dot_source(diagram: Diagram) -> str:
    """Return the source for ``dot``: a cluster per level, and one per open composite."""
    lines = [
        "rankdir=TB;",
        'fontname="Helvetica";',
        'node [fontname="Helvetica", fontsize=11, style=filled];',
        'edge [fontname="Helvetica", fontsize=9];',
        *_diagram(diagram),
    ]
    return "\n".join(["digraph G {", *(_INDENT + line for line in lines), "}"]) + "\n"


def _diagram(diagram: Diagram) -> Iterator[str]:
    if diagram.id:
        for end in (diagram.entry, diagram.exit):
            yield f'{_quoted(end)} [shape=point, width=0.06, label=""];'
    levels: dict[int, list[Box]] = {}
    for box in diagram.boxes:
        levels.setdefault(box.level, []).append(box)
    for level, boxes in sorted(levels.items()):
        name = f"cluster_{diagram.id}/level_{level}" if diagram.id else f"cluster_level_{level}"
        yield f"subgraph {_quoted(name)} {{"
        yield f"{_INDENT}label={_quoted(f'level {level}')};"
        yield f'{_INDENT}style=dashed; color="#aab7b8"; fontcolor="#5d6d7e"; fontsize=9;'
        for box in boxes:
            for line in _box(box):
                yield _INDENT + line
        yield "}"
    ends = {box.id: box.inside for box in diagram.boxes if box.inside is not None}
    for edge in diagram.edges:
        source = ends[edge.source].exit if edge.source in ends else edge.source
        target = ends[edge.target].entry if edge.target in ends else edge.target
        yield f"{_quoted(source)} -> {_quoted(target)} [{_edge_style(edge)}];"


def _box(box: Box) -> Iterator[str]:
    if box.inside is None:
        fill = box.role.fill if box.heat is None else heat_color(box.heat)
        label = _text("\n".join(_label(box)))
        yield (f'{_quoted(box.id)} [label={label}, shape={box.shape.value}, fillcolor="{fill}"];')
        return
    yield f"subgraph {_quoted(f'cluster_{box.id}')} {{"
    yield f"{_INDENT}label={_text('  '.join(_label(box)))};"
    yield f'{_INDENT}style=rounded; color="#5d6d7e";'
    for line in _diagram(box.inside):
        yield _INDENT + line
    yield "}"


def _label(box: Box) -> list[str]:
    """The lines of a label: kind, tags, time, parameters, and what is frozen."""
    lines = [box.kind]
    if box.tags:
        lines.append(" ".join(f"#{tag}" for tag in box.tags))
    if box.seconds is not None:
        lines.append(format_seconds(box.seconds))
    if box.weight.elements:
        lines.append(f"[{box.weight}]")
    if box.weight.freeze:
        lines.append(box.weight.freeze)
    return lines


def _edge_style(edge: Edge) -> str:
    parts = [f"style={edge.line.value}", f'color="{edge.line.color}"']
    if edge.label:
        parts += [f"label={_text(edge.label)}", f'fontcolor="{edge.line.color}"']
    if edge.back or edge.line is Line.STATE:
        # The reader must not move below the writer because of this edge.
        parts.append("constraint=false")
    return ", ".join(parts)


def _text(text: str) -> str:
    """A quoted label; Graphviz replaces character entities in it."""
    return _quoted(text.replace("&", "&amp;"))


def _quoted(text: str) -> str:
    """A quoted string in which backslashes are literal and newlines break the line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
