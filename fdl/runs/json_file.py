"""JSON files of runs, which may be damaged or huge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fdl.base.own_files import open_own

_MAX_BYTES = 16 << 20


def read_json(file: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if no object can be read."""
    try:
        with open_own(file) as stream:
            data = stream.read(_MAX_BYTES + 1)
        content = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
