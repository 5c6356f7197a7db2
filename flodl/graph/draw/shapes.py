"""Outlines in SVG: the size of a box for its text, and the path around it."""

from __future__ import annotations

import math
import unicodedata

from flodl.graph.draw.diagram import Box
from flodl.graph.draw.style import Shape

FONT = 12.0
"""Font size of a box in pixels; its smaller lines and labels have ``SMALL``."""
SMALL = 10.0
LINE = 15.0
"""Distance between the lines of a box."""
_LONGEST = 30

_PADDING = 11.0
_NARROW, _WIDE = frozenset("fijlrt.,:;'|!()[]/ "), frozenset("mwMW@%#×")


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in common sans-serif fonts, rather too large than too small."""
    ems = 0.0
    for letter in text:
        if unicodedata.east_asian_width(letter) in "WF":
            ems += 1.05
        elif letter in _NARROW:
            ems += 0.36
        elif letter in _WIDE:
            ems += 0.9
        else:
            ems += 0.74 if letter.isupper() else 0.6
    return ems * size


def shortened(text: str) -> str:
    """Return the text, cut with an ellipsis if it would make a box very wide."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def text_lines(box: Box) -> list[str]:
    """The text of a closed box, the title first."""
    names = [f"#{tag}" for tag in box.tags]
    lines = [box.name or box.kind, *([f"({box.kind})"] if box.name else []), *names, *box.facts]
    return [shortened(line) for line in lines]


def heading(box: Box) -> str:
    """The text above an open box, on one line."""
    names = [box.name, box.kind, *(f"#{tag}" for tag in box.tags)]
    return " · ".join(shortened(part) for part in (*names, *box.facts) if part)


def size_of(box: Box) -> tuple[float, float]:
    """Width and height of a closed box."""
    lines = text_lines(box)
    width = max(text_width(line, FONT if index == 0 else SMALL) for index, line in enumerate(lines))
    height = LINE * len(lines)
    match box.shape:
        case Shape.CIRCLE:
            diameter = math.hypot(width, height) + 8
            return diameter, diameter
        case Shape.DIAMOND:
            # The text's rectangle fits when its sides, as shares of the axes, add up to one.
            return 1.55 * width + 16, height / (1 - width / (1.55 * width + 16)) + 2
        case Shape.ELLIPSE:
            return 1.3 * width + 12, 1.35 * height + 6
        case Shape.INPUT | Shape.OUTPUT:
            return width + 2 * _PADDING, height + 24
        case Shape.WHOLE:
            return width + 2 * _PADDING + 14, height + 22
        case Shape.MAP:
            return width + 2 * _PADDING + 24, height + 12
    return width + 2 * _PADDING, height + 12


def half_height(shape: Shape, width: float, height: float, offset: float) -> float:
    """Distance from the centre line to the outline, ``offset`` to the side of the centre."""
    share = min(1.0, abs(offset) / (width / 2)) if width else 0.0
    match shape:
        case Shape.DIAMOND:
            return height / 2 * (1 - share)
        case Shape.CIRCLE | Shape.ELLIPSE:
            return height / 2 * math.sqrt(1 - share * share)
    return height / 2


def outlines(shape: Shape, width: float, height: float) -> list[str]:
    """The paths of a shape centred at the origin, the filled one first."""
    x, y = width / 2, height / 2
    match shape:
        case Shape.CIRCLE | Shape.ELLIPSE:
            return [
                f"M{-x:.1f} 0A{x:.1f} {y:.1f} 0 1 1 {x:.1f} 0A{x:.1f} {y:.1f} 0 1 1 {-x:.1f} 0Z"
            ]
        case Shape.DIAMOND:
            return [_polygon((0, -y), (x, 0), (0, y), (-x, 0))]
        case Shape.INPUT:
            return [_polygon((-x, -y), (x, -y), (x, y - 12), (0, y), (-x, y - 12))]
        case Shape.OUTPUT:
            return [_polygon((0, -y), (x, 12 - y), (x, y), (-x, y), (-x, 12 - y))]
        case Shape.WHOLE:
            return [_octagon(x, y), _octagon(x - 4, y - 4)]
        case Shape.MAP:
            return [_polygon((12 - x, -y), (x, -y), (x - 12, y), (-x, y))]
        case Shape.LOOP:
            front = _polygon((-x, 5 - y), (5 - x, -y), (x, -y), (x, y - 5), (x - 5, y), (-x, y))
            corner = f"{x - 5:.1f} {5 - y:.1f}"
            return [front, f"M{-x:.1f} {5 - y:.1f}L{corner}V{y:.1f}M{corner}L{x:.1f} {-y:.1f}"]
    return [_rounded(x, y, 4)]


def _polygon(*points: tuple[float, float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"


def _octagon(x: float, y: float) -> str:
    cut = min(x, y) * 0.45
    return _polygon(
        (cut - x, -y), (x - cut, -y), (x, cut - y), (x, y - cut),
        (x - cut, y), (cut - x, y), (-x, y - cut), (-x, cut - y),
    )  # fmt: skip


def _rounded(x: float, y: float, radius: float) -> str:
    arc = f"a{radius:.1f} {radius:.1f} 0 0 1 "
    width, height = 2 * (x - radius), 2 * (y - radius)
    return (
        f"M{radius - x:.1f} {-y:.1f}h{width:.1f}{arc}{radius:.1f} {radius:.1f}v{height:.1f}"
        f"{arc}{-radius:.1f} {radius:.1f}h{-width:.1f}{arc}{-radius:.1f} {-radius:.1f}"
        f"v{-height:.1f}{arc}{radius:.1f} {-radius:.1f}Z"
    )
