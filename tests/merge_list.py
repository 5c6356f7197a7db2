"""The list of the tests with the mark ``merge``; read by pytest and by the scripts.

It imports nothing of the tests, because :mod:`scripts.mutation` imports it before it forks.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

LISTED = Path(__file__).parent / "records" / "merge_tests.txt"


@cache
def listed() -> dict[str, float]:
    """Name of a test, or of a file with all its tests -> seconds when it was measured."""
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    rows = (line.split(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(seconds) for seconds, name in rows}


def is_listed(test: str) -> bool:
    """Whether the list has this test, or its file."""
    return test in listed() or test.partition("::")[0] in listed()
