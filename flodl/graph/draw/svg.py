"""A layout as SVG: one static file without scripts and remote assets, for light and dark pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise

from fdl.base.units import counted
from flodl.graph.draw.diagram import Box, Diagram
from flodl.graph.draw.layout import HEADER, Layout, Placed, Route, layout
from flodl.graph.draw.routing import Point
from flodl.graph.draw.shapes import LINE, SMALL, heading, outlines, text_lines, text_width
from flodl.graph.draw.style import Line, Role, Shape, format_seconds, heat_color

_ILLEGAL = re.compile("[\x00-\x1f\ud800-\udfff\ufffe\uffff]")

_MARGIN = 16.0
_ARROW = 7.0
_LEGEND = 30.0

# Boxes keep their light fills and dark letters on dark pages; only the surroundings change.
# Names are scoped, because a page may hold several drawings.
_STYLE = """
.flodl-graph{font-family:Helvetica,Arial,sans-serif;font-size:10px;background:#fff;height:auto;\
max-width:100%}
.flodl-graph text{text-anchor:middle;fill:#1b2631}
.flodl-graph .t{font-size:12px;font-weight:600}
.flodl-graph .o{stroke:#5d6d7e;stroke-width:1}
.flodl-graph .n{fill:none}
.flodl-graph .z{stroke-dasharray:4 2.5;stroke:#1b4f72;stroke-width:1.5}
.flodl-graph .f{fill:#5d6d7e;fill-opacity:.06}
.flodl-graph .h{fill-opacity:.85;stroke:none}
.flodl-graph .l{text-anchor:start}
.flodl-graph .e{fill:none;stroke-width:1.3}
.flodl-graph .solid{stroke:#2c3e50}.flodl-graph .dashed{stroke:#2980b9;stroke-dasharray:5 3}
.flodl-graph .dotted{stroke:#e67e22;stroke-dasharray:1.5 3}
.flodl-graph .a{stroke:none}.flodl-graph .a.solid{fill:#2c3e50}
.flodl-graph .a.dashed{fill:#2980b9}.flodl-graph .a.dotted{fill:#e67e22}
.flodl-graph text.b{fill:#21618c;paint-order:stroke;stroke:#fff;stroke-width:3px}
.flodl-graph text.g{fill:#1b2631}
@media (prefers-color-scheme:dark){.flodl-graph{background:#1c2128}
.flodl-graph .f{fill:#aeb6bf;fill-opacity:.08}
.flodl-graph .solid{stroke:#aeb6bf}.flodl-graph .a.solid{fill:#aeb6bf}
.flodl-graph .dashed{stroke:#5dade2}.flodl-graph .a.dashed{fill:#5dade2}
.flodl-graph .a{stroke:none}
.flodl-graph .z{stroke:#2e86c1}
.flodl-graph text.b{fill:#85c1e9;stroke:#1c2128}.flodl-graph text.g{fill:#d5d8dc}}
""".strip()


def svg_source(diagram: Diagram) -> str:
    """Draw a diagram as an ``<svg>`` element."""
    placed = layout(diagram)
    legend = list(_legend(diagram))
    legend_width = sum(_entry_width(text) for text, _ in legend)
    width = max(placed.width, legend_width) + 2 * _MARGIN
    height = placed.height + 2 * _MARGIN + (_LEGEND if legend else 0)
    summary = f"{diagram.title}: {counted(len(diagram.boxes), 'node')}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flodl-graph" role="img" '
        f'aria-label="{_escaped(summary)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.1f} {height:.1f}">',
        f"<title>{_escaped(summary)}</title>",
        f"<style>{_STYLE}</style>",
        f'<g transform="translate({(width - placed.width) / 2:.1f} {_MARGIN:.1f})">',
        *_layout(placed),
        "</g>",
    ]
    x = (width - legend_width) / 2
    for text, sample in legend:
        middle = height - _LEGEND / 2 - 2
        lines.append(f'<g transform="translate({x:.1f} {middle:.1f})">{sample}')
        lines.append(f'<text class="l g" x="26" y="3.5">{_escaped(text)}</text></g>')
        x += _entry_width(text)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _layout(placed: Layout) -> Iterator[str]:
    # Frames are below the edges, edges below the boxes.
    for box in placed.boxes:
        if box.inside is not None:
            yield from _frame(box, box.inside)
    for route in sorted(placed.routes, key=_depth):
        yield from _route(route)
    for box in placed.boxes:
        if box.inside is None:
            yield from _box(box)
    for route in placed.routes:
        if route.text:
            x, y = route.text_at
            yield f'<text class="b" x="{x:.1f}" y="{y + 3.5:.1f}">{_escaped(route.text)}</text>'


def _depth(route: Route) -> int:
    """Drawing order: later lines cover earlier ones, the stream over references over state."""
    return -list(Line).index(route.edge.line)


def _frame(placed: Placed, inside: Layout) -> Iterator[str]:
    left, top = placed.x - placed.width / 2, placed.y - placed.height / 2
    box = placed.box
    shift_x, shift_y = placed.inside_at
    fill = box.role.fill if box.heat is None else heat_color(box.heat)
    frozen = " z" if _is_frozen(box) else ""
    size = f'width="{placed.width:.1f}"'
    yield f'<g transform="translate({left:.1f} {top:.1f})"><title>{_escaped(_about(box))}</title>'
    yield f'<rect class="o f{frozen}" {size} height="{placed.height:.1f}" rx="4"/>'
    yield f'<rect class="h" {size} height="{HEADER:.1f}" rx="4" fill="{fill}"/>'
    yield f'<text x="{placed.width / 2:.1f}" y="14">{_escaped(heading(box))}</text>'
    yield f'<g transform="translate({shift_x:.1f} {shift_y:.1f})">'
    yield from _layout(inside)
    yield "</g></g>"


def _box(placed: Placed) -> Iterator[str]:
    box = placed.box
    fill = box.role.fill if box.heat is None else heat_color(box.heat)
    frozen = " z" if _is_frozen(box) else ""
    yield f'<g transform="translate({placed.x:.1f} {placed.y:.1f})">'
    yield f"<title>{_escaped(_about(box))}</title>"
    outer, *inner = outlines(box.shape, placed.width, placed.height)
    yield f'<path class="o{frozen}" fill="{fill}" d="{outer}"/>'
    for path in inner:
        yield f'<path class="o n" d="{path}"/>'
    texts = text_lines(box)
    y = -LINE * (len(texts) - 1) / 2 + (6.5 if box.shape is Shape.LOOP else 4)
    for number, text in enumerate(texts):
        title = ' class="t"' if number == 0 else ""
        yield f'<text{title} y="{y + LINE * number:.1f}">{_escaped(text)}</text>'
    yield "</g>"


def _route(route: Route) -> Iterator[str]:
    points, upwards, arc = route.way
    x, y = points[-1]
    back = _ARROW if upwards else -_ARROW
    base = x, y + back
    path = _arc(points[0], points[1], base) if arc else _path([*points[:-1], base])
    style = route.edge.line.value
    yield f'<path class="e {style}" d="{path}"/>'
    yield f'<path class="a {style}" d="M{x:.1f} {y:.1f}l-3.5 {back:.1f}h7Z"/>'


def _arc(start: Point, lowest: Point, end: Point) -> str:
    # A cubic curve covers three quarters of the distance to its control points.
    control = lowest[1] + (lowest[1] - max(start[1], end[1])) / 3
    return (
        f"M{start[0]:.1f} {start[1]:.1f}"
        f"C{start[0]:.1f} {control:.1f} {end[0]:.1f} {control:.1f} {end[0]:.1f} {end[1]:.1f}"
    )


def _path(points: list[Point]) -> str:
    """A path that is straight where ``x`` stays and curved with vertical ends where it changes."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(x1 - x0) < 0.05:
            if y1 != y0:
                parts.append(f"V{y1:.1f}")
        else:
            middle = (y0 + y1) / 2
            parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(parts)


def _legend(diagram: Diagram) -> Iterator[tuple[str, str]]:
    """The used lines and colours with their meaning: text and a sample of 20 by 10 pixels."""
    boxes = list(diagram.walk())
    drawn = [diagram, *(box.inside for box in boxes if box.inside is not None)]
    roles = {box.role for box in boxes if box.heat is None}
    for role in Role:
        if role in roles:
            yield role.word, f'<rect class="o" y="-5" width="20" height="10" fill="{role.fill}"/>'
    texts = {Line.REFERENCE: "reference", Line.STATE: "from the last call"}
    for line, text in texts.items():
        if any(edge.line is line for part in drawn for edge in part.edges):
            yield text, f'<path class="e {line.value}" d="M0 0H20"/>'
    times = [box.seconds for box in boxes if box.heat is not None and box.seconds is not None]
    if times:
        steps = "".join(
            f'<rect x="{2 * step}" y="-5" width="2" height="10" fill="{heat_color(step / 9)}"/>'
            for step in range(10)
        )
        yield f"0 to {format_seconds(max(times))}", steps


def _entry_width(text: str) -> float:
    return 26 + text_width(text, SMALL) + 12


def _is_frozen(box: Box) -> bool:
    return bool(box.weight.tensors) and box.weight.frozen == box.weight.tensors


def _about(box: Box) -> str:
    """All facts about a box in one sentence, for tooltips and screen readers."""
    tags = " ".join(f"#{tag}" for tag in box.tags)
    where = f"registered as {box.path}" if box.path else ""
    exact = f"{box.weight.elements:,} parameters" if box.weight.elements >= 1000 else ""
    parts = [box.name, box.kind, tags, f"level {box.level}", *box.facts, exact, where]
    return f"{box.id}: " + ", ".join(part for part in parts if part)


def _escaped(text: str) -> str:
    # Characters that XML cannot hold, even escaped, are shown as Python escapes.
    return escape(_ILLEGAL.sub(lambda found: ascii(found[0])[1:-1], text))
