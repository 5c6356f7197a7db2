"""Mention `fdl warm` once, in a project whose trainings start often.

Imported after an entry that ran on a terminal.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH118, PTH120, PTH123
from __future__ import annotations

import os
import sys
import time

from fdl import output
from fdl.terminal import is_set
from fdl.warm.eligible import SWITCH, program_of
from fdl.warm.places import has_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.plan import Plan

FILE = os.path.join(".fdl", "starts")
"""Times of the last starts, one a line; or the word below."""

_OFFERED = "offered"
_OFTEN = 5
_WITHIN_S = 600.0


def offer(plan: Plan) -> None:
    """Note a start of a plan; print the line if it is the fifth within ten minutes."""
    if not sys.platform.startswith("linux") or is_set(os.environ, "CI") or output.is_quiet():
        return
    if SWITCH in os.environ or has_any(plan.root) or program_of(plan) is None:
        return
    # A project that cannot be written to has no offer.
    try:
        _note(plan)
    except OSError:
        return


def _note(plan: Plan) -> None:
    file = os.path.join(plan.root, FILE)
    known = _read(file)
    if _OFFERED in known:
        return
    from fdl.manifest.cache import make_folder

    now = time.time()
    recent = [one for one in known if now - _seconds(one) < _WITHIN_S]
    recent = [*recent[1 - _OFTEN :], f"{now:.0f}"]
    often = len(recent) >= _OFTEN and _trains(plan)
    make_folder(os.path.dirname(file))
    with open(file, "w", encoding="utf-8") as stream:
        stream.write("\n".join([_OFFERED] if often else recent))
    if often:
        output.note(
            "fdl: trainings start often here; `fdl warm` keeps torch loaded, so that they start at "
            "once"
        )


def _trains(plan: Plan) -> bool:
    from fdl.planning.imports import program_mentions

    return program_mentions(plan, "torch", "flodl")


def _read(file: str) -> list[str]:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read().split()
    except OSError:
        return []


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
