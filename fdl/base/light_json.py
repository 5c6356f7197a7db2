"""JSON without the ``json`` package, whose import costs more than reading a cache.

Imported on the warm path: nothing at module top.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Settings:
    """What the standard library's C scanner asks of the object that configures it."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def parse(text: str) -> Any:
    """The value of a JSON text without white space around it, as fdl's own caches are written.

    Raises:
        Exception: The text is not JSON. Its class depends on where the scanner stopped.
    """
    try:
        from _json import make_scanner

        scan = make_scanner(_Settings)  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError):
        import json

        return json.loads(text)
    value, end = scan(text, 0)
    if end != len(text):
        raise ValueError("trailing text")
    return value
