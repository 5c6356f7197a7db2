"""Numbers for JSON, the same in the records of both halves and on all pages."""

from __future__ import annotations

import math


def in_json(value: float) -> float | str:
    """A value for JSON, which has no nan and no infinity: ``"nan"``, ``"inf"``, ``"-inf"``."""
    return value if math.isfinite(value) else str(value)
