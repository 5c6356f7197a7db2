"""``--each KEY=VALUES``: what a sweep varies, and the points that this makes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import product
from math import prod

from fdl.base.errors import UsageError
from fdl.base.light_record import Record

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
        UsageError: A key is there twice, the lengths differ, or there are too many combinations.
    """
    refuse_repeated(axes)
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


def refuse_repeated(axes: Sequence[Axis]) -> None:
    """Refuse a key that is varied twice.

    Raises:
        UsageError: There is one.
    """
    keys = [one.key for one in axes]
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise UsageError(
                f"`--each {key}` is given twice", hint=f"give all values at once: --each {key}=A,B"
            )


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
        from hashlib import sha256

        safe = f"{safe[:_LONGEST_NAME]}-{sha256(full.encode()).hexdigest()[:8]}"
    return safe if number is None else f"{number},{safe}"


def _rounded(value: str) -> str:
    return f"{float(value):.4g}" if re.fullmatch(_NUMBER, value) and "." in value else value
