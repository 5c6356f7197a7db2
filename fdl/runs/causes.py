"""Why two runs part: everything that their records say differs, the most likely cause first."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fdl.base.code_record import DIFF_OPTIONS, GIT_SETTINGS
from fdl.base.own_files import read_own
from fdl.runs.acts import Cause, differing
from fdl.runs.describe import changed, environment, shown
from fdl.runs.run import settings, variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fdl.runs.run import Run, Setting
    from fdl.runs.trace import What
    from fdl.runs.trace_file import Trace

CODE = "code.diff"
"""The file of a run directory with the changes of the working tree against the commit."""

MOST_LINES = 8
"""Number of changed lines that a cause names."""

_GIT_SECONDS = 10
_FILE = re.compile(r'diff --git .* "?b/')
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_FACT = re.compile(r"# (\w+): (.*)")


class Line(NamedTuple):
    """A line that a change adds or removes."""

    file: str
    number: int
    """In the changed file, from 1."""
    text: str
    """With ``+`` or ``-`` in front."""


class Code(NamedTuple):
    """The code of a run."""

    commit: str
    truncated: str
    """Which limit its changes reached; empty for none."""
    lines: tuple[Line, ...]
    """The changes against the commit."""


def changed_code(left: Run, right: Run) -> Iterator[Cause]:
    """One cause per file whose lines differ, and one if the commits differ and git knows no more.

    Args:
        left: The first run.
        right: The second run.
    """
    one, other = read_code(left.path), read_code(right.path)
    if one is None or other is None:
        return
    changes = _between_runs(one, other, _without_place)
    if not changes and one.commit == other.commit:
        # They added the same lines, in another order or another number of times.
        changes = _between_runs(one, other, tuple)
    if one.commit != other.commit:
        between = _between(one.commit, other.commit)
        if between is None:
            yield Cause("code", "commit", one.commit[:12] or None, other.commit[:12] or None)
        changes += between or []
    files: dict[str, list[Line]] = {}
    for line in changes:
        files.setdefault(line.file, []).append(line)
    for file in sorted(files, key=lambda name: (not name.endswith(".py"), name)):
        lines = files[file]
        told = [f"{line.file}:{line.number}: {line.text}" for line in lines[:MOST_LINES]]
        if len(lines) > MOST_LINES:
            told.append(f"and {len(lines) - MOST_LINES} more lines")
        yield Cause("code", file, None, None, lines=tuple(told))
    if one.truncated or other.truncated:
        yield Cause("code", "changes that were not recorded", one.truncated, other.truncated)


def read_code(folder: Path) -> Code | None:
    """Read ``code.diff`` of a run directory; None if there is none."""
    try:
        text = read_own(folder / CODE, "replace")
    except OSError:
        return None
    facts = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if found := _FACT.fullmatch(line):
            facts[found[1]] = found[2]
    truncated = facts.get("truncated", "no")
    commit = facts.get("commit", "").strip()
    return Code(
        # git would take anything else for an option.
        commit if _COMMIT.fullmatch(commit) else "",
        "" if truncated == "no" else truncated,
        tuple(changed_lines(text)),
    )


def changed_lines(text: str) -> Iterator[Line]:
    """The lines that a diff in git's format adds and removes."""
    file, number, inside = "", 0, False
    for line in text.splitlines():
        if line.startswith("diff --git "):
            file, inside = _FILE.sub("", line).rstrip('"'), False
        elif found := _HUNK.match(line):
            number, inside = int(found[1]), True
        elif inside and line.startswith("+"):
            yield Line(file, number, line)
            number += 1
        elif inside and line.startswith("-"):
            yield Line(file, number, line)
        elif inside and line.startswith(" "):
            number += 1


def _between_runs(left: Code, right: Code, key: Callable[[Line], object]) -> list[Line]:
    """The changes that only one of two runs has, as told by a key; those of the first turned round.

    So they lead from the code of the first run to that of the second.
    """
    ours, theirs = (set(map(key, code.lines)) for code in (left, right))
    turned = {"+": "-", "-": "+"}
    return [
        *(line for line in right.lines if key(line) not in ours),
        *(
            line._replace(text=turned[line.text[0]] + line.text[1:])
            for line in left.lines
            if key(line) not in theirs
        ),
    ]


def _without_place(line: Line) -> tuple[str, str]:
    return line.file, line.text


def _between(left: str, right: str) -> list[Line] | None:
    """The changed lines between two commits; None if git cannot tell.

    It is asked in the working directory: a run may bring a repository, whose settings can name
    programs.
    """
    if not (left and right):
        return None
    try:
        done = subprocess.run(
            ["git", *GIT_SETTINGS, "diff", "--unified=0", *DIFF_OPTIONS, left, right, "--"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return list(changed_lines(done.stdout.decode("utf-8", "replace")))


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
    "allocator": "computation", "torch": "packages", "lock": "packages",
    "flodl": "packages", "python": "packages",
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
        *_settings(map(settings, runs)),
        *_settings(map(variables, runs), prefix="variable "),
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


def _settings(records: Iterable[Mapping[str, Setting] | None], prefix: str = "") -> Iterator[Cause]:
    """What differs of two records with origins; nothing if one of them is missing."""
    one, other = records
    if one is None or other is None:
        return
    for name, (mine, yours) in changed([one, other]).items():
        yield Cause(
            kind_of(name),
            prefix + name,
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
    for name in sorted(changed([one, other]), key=lambda name: (name not in _KEY_PACKAGES, name)):
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
