"""Facts about a run as plain JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fdl.base.masking import KNOWN
from flodl.monitor.records import finite

_DEEPEST = 32


def read_metadata(source: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return an independent copy that contains only JSON values, and no secrets.

    Args:
        source: A mapping, or the text of a JSON object. Values that JSON lacks become text (a path,
            a dtype); a non-finite number becomes null.

    Raises:
        ValueError: The text is not a JSON object, or the nesting never ends.
    """
    if isinstance(source, str):
        try:
            source = json.loads(source)
        except ValueError as error:
            raise ValueError(
                f"metadata: not JSON: {error}; pass a mapping or a JSON object"
            ) from None
    if not isinstance(source, Mapping):
        raise ValueError(
            f"metadata: a {type(source).__name__} is not a mapping; pass "
            '{"config": {...}, "environment": {...}}'
        )
    return KNOWN.data({str(key): _plain(value, 1) for key, value in source.items()})


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(
            f"metadata: nested deeper than {_DEEPEST} levels; is a value its own part?"
        )
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return finite(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return str(value)
