"""Wait in a test for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds: long enough for a machine on which other tests run."""


def wait_for(condition: Callable[[], T], seconds: float = PATIENCE, what: str = "") -> T:
    """Ask again and again until the answer is true, and return the answer.

    Args:
        condition: Asked every hundredth of a second.
        seconds: How long to wait.
        what: What has not come, for the message.

    Raises:
        AssertionError: It did not become true in time.
    """
    limit = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < limit, what or "it has not come in time"
        time.sleep(0.01)
    return answer
