"""Script and style that all pages of ``fdl`` and ``flodl`` have, and the policy of a page."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CHART_SCRIPTS = (
    "uplot.js",
    "elements.js",
    "theme.js",
    "format.js",
    "scale.js",
    "plot.js",
    "chart.js",
    "linechart.js",
)
"""What a page with charts begins with, in the order of their dependencies."""


def asset(name: str) -> str:
    """The text of a file that all pages have: ``base.css``, ``format.js``.

    Raises:
        FileNotFoundError: There is no such file.
    """
    return read(__package__, f"page/{name}")


def read(package: str, path: str) -> str:
    """The text of a file in a package."""
    return (resources.files(package) / path).read_text(encoding="utf-8")


def policy(scripts: Iterable[str], style: str, *, served: bool) -> str:
    """The content security policy of a page: it allows only its own script and style.

    Args:
        scripts: The text of each script element.
        style: The text of the style element.
        served: Whether the page may also read from the server that it came from.
    """
    own = ["'self'"] if served else []
    rules = [
        ["default-src", "'none'"],
        ["script-src", *map(_digest, scripts)],
        ["style-src", _digest(style)],
        ["img-src", *own, "data:"],
        ["connect-src", *(own or ["'none'"])],
        ["base-uri", "'none'"],
        ["form-action", "'none'"],
    ]
    return "; ".join(" ".join(rule) for rule in rules)


def _digest(text: str) -> str:
    """The source of the policy that allows exactly this inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
