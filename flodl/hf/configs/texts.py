"""The text of a ``config.json``: read with clear errors, written in the form of transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from flodl.hf.errors import ConfigError

_DEEPEST: Final = 100  # levels; far below the depth that Python can still write
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def parse_object(text: str, origin: str) -> dict[str, Any]:
    """The JSON object in a text.

    Raises:
        ConfigError: The text is not JSON, or is JSON of another kind; names the place.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{origin}: line {error.lineno}, column {error.colno}: no valid JSON: {error.msg}"
        ) from None
    except ValueError as error:  # for instance a number with thousands of digits
        raise ConfigError(f"{origin}: no usable JSON: {error}") from None
    except RecursionError:
        raise _too_deep(origin) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{origin}: a JSON object is needed, this is {type(data).__name__}")
    if _is_deep(data):
        raise _too_deep(origin)
    return data


def json_text(data: Mapping[str, Any]) -> str:
    """The text of a ``config.json``: keys sorted (ids by number), two spaces, final newline."""
    labels = data.get("id2label")
    if isinstance(labels, Mapping) and all(_NUMBER.fullmatch(key) for key in labels):
        data = {**data, "id2label": {int(key): name for key, name in labels.items()}}
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _is_deep(data: Any) -> bool:
    """Whether the value is nested so deep that Python could not write it."""
    level = [data]
    for _ in range(_DEEPEST):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _too_deep(origin: str) -> ConfigError:
    return ConfigError(
        f"{origin}: nested more than {_DEEPEST} levels deep, which no config.json is"
    )
