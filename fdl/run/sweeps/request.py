"""What a sweep is asked to do, by flags or by the manifest, and the points that this makes."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Sequence
from decimal import Decimal
from hashlib import sha256
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from fdl.base.errors import ManifestError, SelectionError, UsageError
from fdl.base.global_flags import BEHIND, SPELLINGS
from fdl.base.light_record import Record
from fdl.base.masking import KNOWN
from fdl.base.secrets import REDACTED, redact_tokens
from fdl.base.suggest import did_you_mean
from fdl.manifest.node import origin, text as spelled
from fdl.plan.inspect import unknown
from fdl.run.sweeps.store import blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.base.global_flags import Work
    from fdl.manifest.node import Node
    from fdl.manifest.select.project import Project


Point = dict[str, str]
"""Key -> value, as text."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?(:log)?")
_MOST_POINTS = 10_000
_LONGEST_NAME = 90
_EXAMPLE = "fdl COMMAND --each lr=1e-3,3e-3 --each seed=1..3"


class Range(Record):
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        low: The lowest, as it was written.
        high: The highest.
        step: The distance between two numbers; empty if none was written.
        log: Whether a search picks small and large orders of magnitude equally often.
    """

    low: str
    high: str
    step: str = ""
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only."""
        return all(one.lstrip("+-").isdigit() for one in (self.low, self.high, self.step or "1"))


class Axis(Record):
    """One key and its values.

    Attributes:
        key: An option of the program, or a dotted setting.
        items: Values as they were written, and ranges of numbers.
        source: VALUES as text, or the list of values.
    """

    key: str
    items: Sequence[str | Range]
    source: str | Sequence[str]

    @property
    def text(self) -> str:
        """How messages name it: ``--each lr=1..3``."""
        return f"--each {self.key}={_shown(self.source)}"

    def values(self) -> list[str]:
        """Every value, with those of its ranges.

        Raises:
            UsageError: A range has no end, or a value is there twice.
        """
        found: list[str] = []
        for item in self.items:
            found += self._spread(item) if isinstance(item, Range) else [item]
            if len(found) > _MOST_POINTS:
                raise UsageError(f"`{self.text}`: more than {_MOST_POINTS} values", hint=_EXAMPLE)
        for place, value in enumerate(found):
            if value in found[:place]:
                raise UsageError(
                    f"`{self.text}`: the value `{value}` is given twice", hint="name it once"
                )
        return found

    def _spread(self, span: Range) -> list[str]:
        shown = f"{span.low}..{span.high}"
        if span.log:
            raise UsageError(
                f"`{self.text}`: `:log` is for a search",
                hint=f"fdl --search tpe --trials 20 --goal val_loss:min COMMAND {self.text}",
            )
        if not span.step and not span.whole:
            raise UsageError(
                f"`{self.text}`: a range of fractions needs a step, or a search",
                hint=f"--each {self.key}={shown}..STEP, or list the values",
            )
        low, high, step = Decimal(span.low), Decimal(span.high), Decimal(span.step or "1")
        if step == 0 or (high - low) / step < 0:
            raise UsageError(
                f"`{self.text}`: the range {shown} never ends with the step {step}",
                hint=f"--each {self.key}={_ending(span)}",
            )
        count = min(int((high - low) / step), _MOST_POINTS) + 1
        return [f"{low + step * place:f}" for place in range(count)]


def parse(text: str) -> Axis:
    """Read ``KEY=VALUES``: values with commas between them, quoted if they have one; ranges.

    Raises:
        UsageError: There is no key or no value.
    """
    key, equals, values = text.partition("=")
    if not key.strip() or not equals:
        raise UsageError(f"`--each {text}` is not KEY=VALUES", hint=_EXAMPLE)
    return axis(key.strip(), values)


def axis(key: str, values: str | Sequence[str]) -> Axis:
    """The axis of a key: VALUES as text, or a list of values to take as they are.

    Raises:
        UsageError: There is no value, or an empty one.
    """
    if not isinstance(values, str) and all(values) and values:
        return Axis(key, values, values)
    try:
        (row,) = csv.reader([_shown(values)], skipinitialspace=True, strict=True)
    except (ValueError, csv.Error):
        row = []
    items = [one.strip() for one in row]
    if not items or not all(items):
        raise UsageError(
            f"`--each {key}={_shown(values)}` has no value, or an empty one", hint=_EXAMPLE
        )
    return Axis(key, [_item(one) for one in items], values)


def _shown(values: str | Sequence[str]) -> str:
    return values if isinstance(values, str) else ",".join(values)


def _ending(span: Range) -> str:
    """A range like one that never ends: with the ends or the sign of the step the other way."""
    if not span.step:
        return f"{span.high}..{span.low}"
    if Decimal(span.step) == 0:
        return f"{span.low}..{span.high}" + ("" if span.whole else "..STEP")
    step = span.step[1:] if span.step.startswith("-") else f"-{span.step.removeprefix('+')}"
    return f"{span.low}..{span.high}..{step}"


def _item(text: str) -> str | Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        return text
    low, high, step, log = match.groups()
    return Range(low, high, step or "", bool(log))


def points(axes: Sequence[Axis], *, side_by_side: bool) -> list[Point]:
    """Every combination of values; with ``side_by_side`` all first ones, all second ones.

    Raises:
        UsageError: The lengths differ, or there are too many combinations.
    """
    columns = [one.values() for one in axes]
    if side_by_side:
        lengths = [
            f"{one.key} has {len(column)}" for one, column in zip(axes, columns, strict=True)
        ]
        if len({*map(len, columns)}) > 1:
            raise UsageError(
                f"`--zip` needs as many values of each key: {', '.join(lengths)}",
                hint="leave `--zip` out for every combination",
            )
        rows: Iterable[tuple[str, ...]] = zip(*columns, strict=True)
    elif prod(map(len, columns)) > _MOST_POINTS:
        raise UsageError(
            f"a sweep of {prod(map(len, columns))} runs: the most is {_MOST_POINTS}",
            hint="fdl --search tpe --trials 50 --goal val_loss:min COMMAND --each …",
        )
    else:
        rows = product(*columns)
    keys = [one.key for one in axes]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def name_of(point: Point, number: int | None = None) -> str:
    """The name of a point, which is the name of its directory: ``lr=1e-3,seed=1``.

    Unsafe characters are replaced and long names are shortened; a hash keeps such names apart.
    With the ``number`` of a trial, which keeps names apart as well, fractions are rounded.
    """
    if number is not None:
        point = {key: _rounded(value) for key, value in point.items()}
    full = ",".join(f"{key}={value}" for key, value in point.items())
    safe = re.sub(r"[^A-Za-z0-9._+=,-]", "_", full)
    if safe != full or len(safe) > _LONGEST_NAME:
        safe = f"{safe[:_LONGEST_NAME]}-{sha256(full.encode()).hexdigest()[:8]}"
    return safe if number is None else f"{number},{safe}"


def _rounded(value: str) -> str:
    return f"{float(value):.4g}" if re.fullmatch(_NUMBER, value) and "." in value else value


class Request:
    """A sweep before it begins.

    Attributes:
        words: The command line of one run, without ``fdl``.
        axes: What varies.
        work: How the runs are chosen, where they run, and how many at once.
        name: The name of its directory; empty for the time at which it begins.
    """

    def __init__(
        self, words: Sequence[str], axes: Sequence[Axis], work: Work, name: str = ""
    ) -> None:
        self.words = list(words)
        self.axes = list(axes)
        self.work = work
        self.name = name
        self._check()

    @classmethod
    def of_record(cls, record: Mapping[str, Any], work: Work) -> Request:
        """The request of a sweep that began earlier; ``work`` may have other ``jobs``.

        Raises:
            UsageError: Its command line had a secret, which is not recorded.
        """
        if any(REDACTED in word for word in record["command"]):
            raise UsageError(
                "the sweep cannot be continued: its command line had a secret, which is not "
                "recorded",
                hint="pass the secret in an environment variable, and begin the sweep again",
            )
        kept = {key: record[key] for key in ("zip", "search", "goal", "trials")}
        jobs = work.jobs or record["jobs"]
        # GPUs of its own are those of this machine.
        gpus_each = work.gpus_each or (0 if work.on else record["gpus_each"])
        axes = [axis(*one) for one in record["each"].items()]
        return cls(record["command"], axes, work.replaced(jobs=jobs, gpus_each=gpus_each, **kept))

    def record(self) -> dict[str, Any]:
        """The request for ``sweep.json``."""
        work, each = self.work, {one.key: one.source for one in self.axes}
        return {
            "command": KNOWN.texts(redact_tokens(self.words)), "each": each,
            "zip": work.zip, "search": work.search, "trials": work.trials, "goal": work.goal,
            "jobs": work.jobs or 0, "gpus_each": work.gpus_each,
        }  # fmt: skip

    def grown(self, each: Sequence[str], trials: int) -> Request:
        """The same with more values of its settings, or with more trials.

        Args:
            each: ``KEY=VALUES``. A sweep gets these values as well; a search takes them instead.
            trials: How many trials a search makes with those of before; 0 leaves their number.

        Raises:
            UsageError: The sweep does not vary a setting, or has no trials.
        """
        axes = {one.key: one for one in self.axes}
        for more in map(parse, each):
            if more.key not in axes:
                raise UsageError(
                    f"`{more.text}`: the sweep does not vary `{more.key}`",
                    hint=f"it varies {', '.join(axes)}; another setting needs a sweep of its own",
                )
            former = axes[more.key].values() if not self.work.search else []
            left = [one for one in more.values() if one not in former] if former else []
            axes[more.key] = axis(more.key, [*former, *left]) if former else more
        if trials and not self.work.search:
            raise UsageError("`--trials` needs a sweep with `--search`", hint="--each KEY=VALUES")
        work = self.work.replaced(trials=max(trials, self.work.trials))
        return Request(self.words, list(axes.values()), work, self.name)

    def _check(self) -> None:
        keys = [one.key for one in self.axes]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise UsageError(
                    f"`--each {key}` is given twice",
                    hint=f"give all values at once: --each {key}=A,B",
                )
        work = self.work
        if work.search and not (work.trials and work.goal):
            raise UsageError(
                "`--search` needs `--trials` and `--goal`",
                hint="fdl --search tpe --trials 20 --goal val_loss:min COMMAND --each …",
            )
        if work.trials and not work.search:
            raise UsageError("`--trials` needs `--search`", hint="--search tpe")
        if work.search and work.zip:
            raise UsageError("`--zip` and `--search` exclude each other", hint="remove one of them")


def take_flags(words: Sequence[str], work: Work, declared: Sequence[str]) -> tuple[list[str], Work]:
    """Take flags of a sweep and of hosts from behind a command, up to ``--``: other words, flags.

    Args:
        words: The command and its arguments.
        work: The flags before the command.
        declared: Flags that the program has itself. They are left to it.

    Raises:
        UsageError: A value is missing.
    """
    end = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    rest = iter(words[:end])
    for word in rest:
        name = word.partition("=")[0]
        flag = SPELLINGS.get(name)
        is_ours = flag is not None and flag.place == BEHIND and name not in declared
        if is_ours and (more := work.taken(word, rest)):
            work = more
        else:
            kept.append(word)
    return [*kept, *words[end:]], work


def of_flags(words: Sequence[str], work: Work) -> Request:
    """The request of a command line.

    Raises:
        UsageError: The flags do not fit together.
    """
    if not work.each:
        raise UsageError(
            "`--zip`, `--search`, `--trials` and `--goal` belong to a sweep",
            hint="fdl COMMAND --each lr=1e-3,3e-3",
        )
    return Request(words, [parse(text) for text in work.each], work)


def of_manifest(project: Project, name: str, work: Work) -> Request:
    """The request of a block under ``sweeps:``; flags that were typed are stronger.

    Raises:
        FdlError: There is no such block, or it is wrong.
    """
    known = blocks(project)
    block = known.get(name)
    if block is None:
        example = f"sweeps: {{{name}: {{command: train, each: {{lr: [0.001, 0.003]}}}}}}"
        others = f"it has: {', '.join(known)}" if known else example
        raise UsageError(
            f"the manifest has no sweep `{name}`", hint=did_you_mean(name, known, others)
        )
    return _of_block(block, name, project, work)


def _of_block(block: Node, name: str, project: Project, work: Work) -> Request:
    if "/" in name or name.startswith("."):
        raise ManifestError(
            f"{origin(block, project.directory)}: no sweep can be called `{name}`, because its "
            "directory has this name",
            hint="choose a name without `/` that does not begin with a dot",
        )
    each = block.get("each")
    axes = [_axis(key, node, project) for key, node in (each.mapping if each else {}).items()]
    for key in ("zip", "search", "trials", "goal", "jobs", "gpus_each"):
        node = block.get(key)
        if node is not None and not getattr(work, key):
            work = work.replaced(**{key: node.value})
    try:
        words = shlex.split(block.text("command") or "")
        selected = project.select(words)
        if not selected.known:
            raise unknown(selected, project)
        return Request(words, axes, work, name)
    except (SelectionError, ValueError) as problem:
        raise _at(block.get("command") or block, project, problem) from None
    except UsageError as problem:
        raise _at(block, project, problem) from None


def _axis(key: str, node: Node, project: Project) -> Axis:
    value = node.value
    try:
        if isinstance(value, list):
            return axis(key, [spelled(item.value) for item in value])
        return axis(key, spelled(value))
    except UsageError as problem:
        raise _at(node, project, problem) from None


def _at(node: Node, project: Project, problem: Exception) -> ManifestError:
    """A problem with its place in the manifest."""
    hint = getattr(problem, "hint", "correct it")
    return ManifestError(f"{origin(node, project.directory)}: {problem}", hint=hint)
