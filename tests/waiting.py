"""Wait in a test for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds: long enough for a machine on which other tests run."""
SLOWER = (1.0, 10.0, 100.0)
"""How much more time each try of :func:`at_some_pace` has than the first."""


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


def at_some_pace(attempt: Callable[[float], bool]) -> None:
    """Try what must keep a limit of time; again with more time if the machine was too busy.

    Args:
        attempt: Gets a factor for all its times, and returns whether it went well.

    Raises:
        AssertionError: It did not go well at any pace, so the machine is not the reason.
    """
    assert any(map(attempt, SLOWER)), f"it failed with {SLOWER[-1]:g} times its time as well"


def pass_a_tick() -> None:
    """Wait until the files just written are old enough for fdl's cache.

    ``fdl.manifest.cache`` keeps nothing of a file that is younger than 10 ms, and a forked fdl
    starts sooner than that.
    """
    time.sleep(0.02)
