"""Facts about a run as plain JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fdl.base.masking import KNOWN
from flodl.monitor.records import RunInfo, finite

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


def without_origins(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a mapping; of a value with an origin, only the value."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            found[name] = value["value"] if "value" in value else without_origins(value)
        else:
            found[name] = value
    return found


def config_and_facts(info: RunInfo) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what other trackers show of a run: its configuration, and all else that is known."""
    facts = without_origins(info.metadata)
    config = facts.pop("config", None)
    return config if isinstance(config, dict) else {}, facts


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
