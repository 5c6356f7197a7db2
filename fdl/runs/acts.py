"""The acts on a training while it ran, read from ``acts.jsonl``.

docs/reference/run-record.md describes the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, final

from fdl.base.own_files import read_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.runs.run import Run
    from fdl.runs.trace_file import Trace


@final
@dataclass(frozen=True, slots=True)
class Cause:
    """Something that differs between two runs and may be why they part.

    Attributes:
        kind: acts, seed, data, optimizer, model, computation, threads, ranks, code, packages,
            content for data that was changed, or files for what has no effect: settings that name
            files, runs and lengths, later acts.
        name: The setting, the file or the package.
        left: The value of the first run; None if it has none.
        right: That of the second run.
        left_origin: ``file:line:column`` of the setting, or where else it came from; or empty.
        right_origin: The same of the second run.
        lines: Changed lines of code or samples, or what guards said about their acts.
    """

    kind: str
    name: str
    left: str | None
    right: str | None
    left_origin: str = ""
    right_origin: str = ""
    lines: tuple[str, ...] = ()

    def sentence(self) -> str:
        """``seed 42 (train/fdl.yml:11:9) against 43 (command line)``."""
        sides = [
            f"{value if value is not None else 'absent'}{f' ({origin})' if origin else ''}"
            for value, origin in ((self.left, self.left_origin), (self.right, self.right_origin))
        ]
        if sides == ["absent", "absent"]:
            return f"{self.name} was changed"
        return f"{self.name} {sides[0]} against {sides[1]}"


ACTS = "acts.jsonl"
GUARD = "guard"
"""Who acts in a journal, if it is not a person."""

_WITHOUT_EFFECT = ("checkpoint", "pause", "continue", "stop", "resume")
"""Acts that do not change what the steps compute."""


def read_acts(run: Run) -> list[dict[str, Any]]:
    """The acts of a run, in their order; lines that are not acts are left out."""
    try:
        text = read_own(run.path / ACTS, "replace")
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
    """What an act did: ``lr 0.1 -> 0.01``, ``set beta 1 -> 2``, ``pause``, ``skip``."""
    words = [str(act["act"]), str(act.get("key", ""))]
    if "value" in act and not isinstance(act["value"], dict):
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


def differing(
    left: Run, right: Run, step: int | None, traces: tuple[Trace, Trace] | None = None
) -> Iterator[Cause]:
    """The first act that only one of two runs has.

    Args:
        left: A run.
        right: Another run.
        step: The step at which the runs part; a later act cannot be the cause. None if they agree.
        traces: Their traces, if both have one.
    """
    one, other = (_with_effect(run) for run in (left, right))
    pairs = enumerate(zip_longest(one, other))
    place = next((at for at, (mine, yours) in pairs if not _same(mine, yours)), None)
    if place is None:
        return
    rests = [
        [(_after(act, trace), act) for act in acts[place:]]
        for acts, trace in zip((one, other), traces or (None, None), strict=True)
    ]
    # A guard that tries again leaves out earlier batches than before.
    after = min(at for rest in rests for at, _ in rest)
    first, second = (next((act for at, act in rest if at == after), None) for rest in rests)
    can_be_cause = step is not None and after < step
    yield Cause(
        "acts" if can_be_cause else "files",
        f"while it trained, after step {after:,}:",
        what(first) if first else None,
        what(second) if second else None,
        _by(first) if first else "",
        _by(second) if second else "",
        tuple(line for act in (first, second) if act for line in _details(act)),
    )


def left_out(run: Run) -> dict[int, str]:
    """The samples that the guards of a run left out: number -> what was wrong."""
    found: dict[int, str] = {}
    for act in _with_effect(run):
        if _is_guarded(act):
            found = {**dict.fromkeys(act["value"].get("samples", ()), act["why"]), **found}
    return found


def _with_effect(run: Run) -> list[dict[str, Any]]:
    """The acts that change what the steps compute.

    A guard records what was wrong, which batches it leaves out, and at which rate. The second of
    these has all that changes the steps; it gets the first one as ``why``.
    """
    found = []
    why = ""
    for act in read_acts(run):
        if act.get("by") == GUARD:
            why = str(act.get("detail", "")) if act["act"] == "rewind" else why
            if act["act"] == "skip" and isinstance(act.get("value"), dict):
                found.append({**act, "why": why})
        elif act["act"] not in _WITHOUT_EFFECT:
            found.append(act)
    return found


def _is_guarded(act: dict[str, Any]) -> bool:
    return "why" in act


def _after(act: dict[str, Any], trace: Trace | None) -> int:
    """The step after which an act can change what is computed.

    A guard acts when it has gone back, and repeats the steps before the batches that it leaves out.
    """
    begin = int(act["step"])
    if trace is None or not _is_guarded(act) or not act["value"].get("batches"):
        return begin
    size = int(trace.facts.get("data", {}).get("batch_size", 0))
    place = (int(act["value"].get("epoch", 0)), min(act["value"]["batches"]) * size)
    for step in range(begin + 1, trace.last + 1):
        numbers = trace.batches_of(step)
        if numbers and (trace.batch(numbers[0]).epoch, trace.batch(numbers[0]).start) >= place:
            return step - 1
    return max(begin, trace.last)


def _details(act: dict[str, Any]) -> Iterator[str]:
    """What a guard says about an act."""
    if _is_guarded(act):
        yield from filter(None, (act["why"], str(act.get("detail", ""))))


def _same(mine: dict[str, Any] | None, yours: dict[str, Any] | None) -> bool:
    if mine is None or yours is None:
        return False
    return all(mine.get(name) == yours.get(name) for name in ("step", "act", "key", "value"))


def _by(act: dict[str, Any]) -> str:
    return f"{ACTS}, by {act['by']}" if act.get("by") else ACTS
