"""The acts on a training while it ran, read from ``acts.jsonl``.

docs/reference/run-record.md describes the file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fdl.run_directory.cause import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.run_directory.run import Run

ACTS = "acts.jsonl"
_WITHOUT_EFFECT = ("checkpoint", "pause", "continue", "stop", "resume")
"""Acts that do not change what the steps compute."""


def read_acts(run: Run) -> list[dict[str, Any]]:
    """The acts of a run, in their order; lines that are not acts are left out."""
    try:
        text = (run.path / ACTS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    acts = []
    for line in text.split("\n")[:-1]:
        try:
            act = json.loads(line)
        except ValueError:
            continue
        if isinstance(act, dict) and isinstance(act.get("step"), int) and act.get("act"):
            acts.append(act)
    return acts


def what(act: dict[str, Any]) -> str:
    """What an act did: ``lr 0.1 -> 0.01``, ``set beta 1 -> 2``, ``pause``."""
    words = [str(act["act"]), str(act.get("key", ""))]
    if "value" in act:
        old = f"{json.dumps(act['old'], ensure_ascii=False)} -> " if "old" in act else ""
        words.append(old + json.dumps(act["value"], ensure_ascii=False))
    return " ".join(filter(None, words))


def rows(run: Run) -> list[tuple[str, ...]]:
    """The acts as rows: after which step, what, by whom and when, and more about it."""
    return [
        (
            f"after step {act['step']:,}",
            what(act),
            ", ".join(str(act[name]) for name in ("by", "time", "detail") if act.get(name)),
        )
        for act in read_acts(run)
    ]


def differing(left: Run, right: Run, step: int | None) -> Iterator[Cause]:
    """The first act that only one of two runs has.

    Args:
        left: A run.
        right: Another run.
        step: The step at which the runs part; a later act cannot be the cause. None if they agree.
    """
    one, other = (
        [a for a in read_acts(r) if a["act"] not in _WITHOUT_EFFECT] for r in (left, right)
    )
    for number in range(max(len(one), len(other))):
        mine = one[number] if number < len(one) else None
        yours = other[number] if number < len(other) else None
        if _same(mine, yours):
            continue
        after = min(act["step"] for act in (mine, yours) if act is not None)
        can_be_cause = step is not None and after < step
        mine, yours = (act if act and act["step"] == after else None for act in (mine, yours))
        yield Cause(
            "acts" if can_be_cause else "files",
            f"while it trained, after step {after:,}:",
            what(mine) if mine else None,
            what(yours) if yours else None,
            _by(mine) if mine else "",
            _by(yours) if yours else "",
        )
        return


def _same(mine: dict[str, Any] | None, yours: dict[str, Any] | None) -> bool:
    if mine is None or yours is None:
        return False
    return all(mine.get(name) == yours.get(name) for name in ("step", "act", "key", "value"))


def _by(act: dict[str, Any]) -> str:
    return f"{ACTS}, by {act['by']}" if act.get("by") else ACTS
