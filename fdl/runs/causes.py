"""Why two runs part: everything that their records say differs, the most likely cause first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fdl.base.own_files import read_own
from fdl.runs.acts import differing
from fdl.runs.cause import Cause
from fdl.runs.code_changes import changed_code
from fdl.runs.describe import environment, shown
from fdl.runs.settings import settings, variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fdl.runs.run import Run
    from fdl.runs.trace import Trace, What

PACKAGES = "packages.txt"
CONTENT = "content"
"""The kind of cause that only the digests of the data know."""

_HARMLESS = "files"
_KINDS: dict[str, re.Pattern[str]] = {
    "seed": re.compile(r"seed"),
    _HARMLESS: re.compile(
        r"(^|[._-])(epochs?|output|resume|name|log|live|port|monitor|run_dir|progress|timeline|"
        r"checkpoint\w*|save\w*|keep\w*|tags?|notes?)$"
    ),
    "data": re.compile(
        r"batch|shuffle|sampl|data|augment|crop|split|worker|prefetch|drop_last|accumul|ranks|"
        r"world|policy|mode|anchor|token|length|image_size"
    ),
    "optimizer": re.compile(
        r"(^|[._-])(lr|learning_rate|weight_decay|momentum|betas?|eps|optim\w*|sched\w*|warmup\w*|"
        r"clip\w*|max_grad_norm|ema|decay)$"
    ),
    "computation": re.compile(
        r"engine|precision|amp|autocast|dtype|device|thread|determin|compile"
    ),
}
"""Kind of a setting -> what its name looks like. Others (model) may change anything."""

_FIRST: dict[What, tuple[str, ...]] = {
    "initial weights": ("seed", "model", "code", "packages", "computation"),
    "data order": ("acts", "data", "seed", "ranks", "code", "packages", "model", CONTENT),
    "data content": ("acts", "data", "seed", "code", "packages", "model", CONTENT),
    "loss": ("acts", "model", "code", "computation", "threads", "packages", "seed", "data"),
    "gradients": ("acts", "optimizer", "model", "code", "computation", "threads", "packages"),
    "weights": (
        *("acts", "optimizer", "computation", "threads", "model"),
        *("code", "packages", "seed", "data"),
    ),
}
"""What differs first -> the kinds of causes that change it, most likely first."""

_KEY_PACKAGES = ("torch", "flodl", "numpy", "torchvision", "transformers", "tokenizers", "datasets")

_ENVIRONMENT_KINDS = {
    "threads": "threads", "engine": "computation", "cpu": "computation", "cuda": "computation",
    "allocator": "computation", "torch": "packages", "flodl": "packages", "python": "packages",
}  # fmt: skip
"""First part of a name in ``environment.json`` -> the kind of cause. Others cannot be a cause."""

# Measurements of a machine, which differ from run to run.
_MEASURED = re.compile(r"^engine\.(trials|plain_ms|step_ms|source|decided|reasons?)\b|_ms$|_MB$")

_ENGINE, _STRETCHES, _SOURCE = "engine.engine", "engine.stretches", "engine.source"
_DECIDED = {"measured": "deciding", "cache": "decided before", "checkpoint": "decided before"}
_PLAIN = [[1, "plain"]]
"""The stretches of an engine that records none."""
_MOST_STRETCHES = 3
_MEASURING = "auto"
"""The engine that measures how to compute steps, so that two runs may compute them differently."""


def causes(
    runs: tuple[Run, Run],
    traces: tuple[Trace, Trace] | None,
    what: What,
    step: int | None = None,
) -> list[Cause]:
    """What differs in the records of two runs, the most likely cause of ``what`` first.

    Args:
        runs: The runs.
        traces: Their traces, if both have one.
        what: What differs first in the traces.
        step: The step at which they part; None if they agree.

    Raises:
        FdlError: A ``config.json`` cannot be read.
    """
    found = [
        *differing(*runs, step, traces),
        *_settings(*runs),
        *_variables(*runs),
        *changed_code(*runs),
        *_environment(*runs),
        *_packages(*runs),
    ]
    if traces is not None:
        named = {cause.name.rpartition(".")[2] for cause in found}
        found += [one for one in _facts(*traces) if one.name.rpartition(" ")[2] not in named]
    order = _FIRST[what]
    place = {kind: number for number, kind in enumerate(order)}
    found.sort(key=lambda one: place.get(one.kind, len(order) + (one.kind == _HARMLESS)))
    engine = _engine_auto(*runs)
    if engine is None or engine.kind not in order:
        return found
    known = next((one for one in found if _names_engine(one)), engine)
    engine = replace(engine, left_origin=known.left_origin, right_origin=known.right_origin)
    return [engine, *(one for one in found if not _names_engine(one))]


def _engine_auto(left: Run, right: Run) -> Cause | None:
    """The engine as a cause, if one of the runs has the measuring one and steps differ by it."""
    sides = environment(left), environment(right)
    engines = [side.get(_ENGINE) for side in sides]
    stretches = [side.get(_STRETCHES) or _PLAIN for side in sides]
    if _MEASURING not in engines or stretches[0] == stretches[1]:
        return None
    name, one, other = "engine", *(_value(side, _ENGINE) for side in sides)
    if one == other:
        name = f"engine {_MEASURING}"
        one, other = (_DECIDED.get(str(side.get(_SOURCE)), "undecided") for side in sides)
    lines = [
        f"the {which} run computed {_first_stretches(found)}"
        for which, found in zip(("first", "second"), stretches, strict=True)
        if isinstance(found, list)
    ]
    return Cause("computation", name, one, other, lines=tuple(lines))


def _first_stretches(stretches: list[object]) -> str:
    """``from step 1 plain, from step 9 fused optimizer``."""
    told = [
        f"from step {one[0]} {one[1]}"
        for one in stretches
        if isinstance(one, list) and len(one) == 2
    ]
    more = f" and {len(told) - _MOST_STRETCHES} more" if len(told) > _MOST_STRETCHES else ""
    return ", ".join(told[:_MOST_STRETCHES]) + more


def _names_engine(cause: Cause) -> bool:
    return cause.kind == "computation" and re.search(r"\bengine\b", cause.name) is not None


def likely(found: list[Cause], what: What) -> list[Cause]:
    """Those of some causes that can change what differs first."""
    return [one for one in found if one.kind in _FIRST[what]]


def kind_of(name: str) -> str:
    """The kind of a setting, by its name."""
    for kind, pattern in _KINDS.items():
        if pattern.search(name.lower()):
            return kind
    return "model"


def _settings(left: Run, right: Run) -> Iterator[Cause]:
    one, other = settings(left), settings(right)
    for name in dict.fromkeys([*one, *other]):
        mine, yours = one.get(name), other.get(name)
        if mine is not None and yours is not None and mine.value == yours.value:
            continue
        yield Cause(
            kind_of(name),
            name,
            shown(mine.value) if mine else None,
            shown(yours.value) if yours else None,
            mine.origin if mine else "",
            yours.origin if yours else "",
        )


def _variables(left: Run, right: Run) -> Iterator[Cause]:
    one, other = variables(left), variables(right)
    if one is None or other is None:
        return
    for name in dict.fromkeys([*one, *other]):
        mine, yours = one.get(name), other.get(name)
        if mine is not None and yours is not None and mine.value == yours.value:
            continue
        yield Cause(
            kind_of(name),
            f"variable {name}",
            shown(mine.value) if mine else None,
            shown(yours.value) if yours else None,
            mine.origin if mine else "",
            yours.origin if yours else "",
        )


def _environment(left: Run, right: Run) -> Iterator[Cause]:
    one, other = environment(left), environment(right)
    for name in dict.fromkeys([*one, *other]):
        kind = _ENVIRONMENT_KINDS.get(name.partition(".")[0])
        if kind is None or _MEASURED.search(name) or one.get(name) == other.get(name):
            continue
        yield Cause(kind, name, _value(one, name), _value(other, name))


def _value(values: Mapping[str, object], name: str) -> str | None:
    return shown(values[name]) if name in values else None


def _packages(left: Run, right: Run) -> Iterator[Cause]:
    one, other = _installed(left), _installed(right)
    if one is None or other is None:
        return
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    for name in sorted(names, key=lambda name: (name not in _KEY_PACKAGES, name)):
        yield Cause("packages", name, one.get(name), other.get(name))


def _installed(run: Run) -> dict[str, str] | None:
    try:
        text = read_own(run.path / PACKAGES)
    except (OSError, ValueError):
        return None
    pairs = [line.partition("==") for line in text.splitlines() if "==" in line]
    return {name: version for name, _, version in pairs}


def _facts(left: Trace, right: Trace) -> Iterator[Cause]:
    """Settings that the traces know, also where the configuration does not name them."""
    for name, kind in (("world_size", "ranks"), ("policy", "ranks"), ("accumulate", "data"),
                       ("device", "computation"), ("engine", "computation")):  # fmt: skip
        yield from _fact(kind, name, left.facts.get(name), right.facts.get(name))
    one, other = left.facts.get("data", {}), right.facts.get("data", {})
    for name in dict.fromkeys([*one, *other]):
        kind = "seed" if name == "seed" else "data"
        yield from _fact(kind, name, one.get(name), other.get(name))


def _fact(kind: str, name: str, left: object, right: object) -> Iterator[Cause]:
    if left != right:
        yield Cause(kind, f"the Trainer's {name}", shown(left), shown(right))
