"""The facts, metrics and settings of runs by name, as ``--where``, ``--sort`` and others use them.

===================  =============================================================================
``val_loss``         the last value of a metric
``best:val_loss``    its best value of all epochs; ``best:margin:max`` sets the direction
``min(val_loss)``    its lowest value of all epochs; ``max(val_loss)`` is the highest
``lr``               a setting of the configuration
``state``            a fact of the run, see :data:`FACTS`; a fact hides a metric of the same name
===================  =============================================================================

``last:NAME`` always means a metric, ``config.NAME`` always a setting. A name may stand in
backquotes, and in a list a name with a comma must.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timedelta
from functools import cached_property
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, NamedTuple

from fdl.base.errors import UsageError
from fdl.base.suggest import did_you_mean
from fdl.runs.metrics import BEST_OF, DIRECTIONS, HIGHEST, Metric, as_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fdl.runs.run import Run

FACT, LAST, BEST, LEAST, MOST, SETTING = "fact", "last", "best", "min", "max", "config"

_OWN = ("lr", "grad_norm")
"""Metrics that the Trainer records by itself. A setting of the same name is meant more often."""

_OF_THE_START = ("live", "resume", "output", "dir")
"""Settings that say how a run was started and not what it trained; they are shown last."""

_FUNCTION = re.compile(r"(min|max)\s*\((.+)\)")
_LISTED = re.compile(r"(?:`[^`]*`|[^,])+")


def _age(run: Run) -> float | None:
    return (datetime.now().astimezone() - run.started).total_seconds() if run.started else None


FACTS: dict[str, Callable[[Run], object]] = {
    "name": lambda run: run.name,
    "title": lambda run: run.title,
    "path": lambda run: str(run.path),
    "state": lambda run: run.state,
    "tags": lambda run: run.notes.tags,
    "note": lambda run: run.notes.note or None,
    "started": lambda run: run.started,
    "finished": lambda run: run.finished,
    "age": _age,
    "seconds": lambda run: run.seconds,
    "epochs": lambda run: run.epochs,
    "error": lambda run: run.error or None,
    "resumed_from": lambda run: run.resumed_from or None,
    "imported_from": lambda run: run.imported_from or None,
}
"""Name -> the fact of a run. ``seconds`` and ``age`` are in seconds, times know their zone."""

DATES = ("started", "finished")
NUMBERS = ("age", "seconds", "epochs")


def unquoted(text: str) -> str:
    """A name without the backquotes around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "`" else text


def quoted(name: str) -> str:
    """A name in backquotes; without them if it has some itself."""
    return name if "`" in name else f"`{name}`"


def listed(text: str) -> list[str]:
    """Names that are separated by commas; a name with a comma stands in backquotes."""
    return [word for part in _LISTED.findall(text) if (word := part.strip())]


class Quantity(NamedTuple):
    """One value that every run may have.

    Attributes:
        spelling: What the user typed.
        kind: One of ``fact``, ``last``, ``best``, ``min``, ``max`` and ``config``.
        name: The fact, metric or setting.
        higher: Of ``best``: whether higher values are better.
    """

    spelling: str
    kind: str
    name: str
    higher: bool = False

    def value(self, run: Run) -> object:
        """The value of a run: number, text, date, tuple of tags, or JSON data; None if missing."""
        if self.kind == FACT:
            return FACTS[self.name](run)
        if self.kind == SETTING:
            found = run.settings.get(self.name)
            return found.value if found else None
        if self.kind == LAST:
            return run.metrics.latest().get(self.name)
        best = run.metrics.best(Metric(self.name, self.higher))
        return best.value if best else None

    @property
    def is_metric(self) -> bool:
        """Whether it is measured: its values are floats."""
        return self.kind not in (FACT, SETTING)

    @property
    def is_number(self) -> bool:
        """Whether every value of it is a number."""
        return self.is_metric or (self.kind == FACT and self.name in NUMBERS)

    @property
    def is_date(self) -> bool:
        """Whether every value of it is a date."""
        return self.kind == FACT and self.name in DATES


class Known:
    """The names that some runs know.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    @cached_property
    def metrics(self) -> dict[str, None]:
        """The metrics of all runs, in the order of their tables."""
        return dict.fromkeys(name for run in self._runs for name in run.metrics.names)

    @cached_property
    def settings(self) -> dict[str, None]:
        """The settings of all runs."""
        return dict.fromkeys(name for run in self._runs for name in run.settings)

    @cached_property
    def differing(self) -> list[str]:
        """The settings of which the runs have several values; those of the training first."""
        seen: dict[str, set[str]] = {}
        for run in self._runs:
            for name, one in run.settings.items():
                seen.setdefault(name, set()).add(repr(one.value))
        differing = [name for name, found in seen.items() if len(found) > 1]
        return sorted(differing, key=lambda name: name.rpartition(".")[2] in _OF_THE_START)

    def resolve(self, text: str) -> Quantity:
        """What a name means.

        Raises:
            UsageError: No run knows it, or it is both a metric and a setting.
        """
        text = unquoted(text)
        if text in FACTS:
            return Quantity(text, FACT, text)
        called = _FUNCTION.fullmatch(text)
        if called:
            kind = called[1]
            return Quantity(text, kind, self._metric(unquoted(called[2].strip())), kind == MOST)
        if text.startswith("last:"):
            return Quantity(text, LAST, self._metric(text.removeprefix("last:")))
        if text.startswith(BEST_OF):
            return self._best(text)
        if text.startswith("config."):
            return self._setting(text)
        both = text in self.metrics and text in self.settings
        if both and text not in _OWN:
            raise UsageError(
                f"`{text}` is both a metric and a setting",
                hint=f"write `last:{text}` or `config.{text}`",
            )
        if text in self.settings:
            return Quantity(text, SETTING, text)
        if text in self.metrics:
            return Quantity(text, LAST, text)
        raise unknown(text, "metric, setting or fact", [*self.metrics, *self.settings, *FACTS])

    def is_truth(self, quantity: Quantity) -> bool:
        """Whether a run has a value of it that is true or false."""
        return any(isinstance(quantity.value(run), bool) for run in self._runs)

    def _best(self, text: str) -> Quantity:
        metric = Metric.parse(text.removeprefix(BEST_OF))
        return Quantity(text, BEST, self._metric(metric.name), metric.higher)

    def _metric(self, name: str) -> str:
        if name not in self.metrics:
            raise unknown(name, "metric", self.metrics)
        return name

    def _setting(self, text: str) -> Quantity:
        name = text.removeprefix("config.")
        # A setting may itself be called config.lr.
        found = [one for one in (text, name) if one in self.settings]
        if not found:
            raise unknown(name, "setting", self.settings)
        return Quantity(text, SETTING, found[-1])


def unknown(name: str, what: str, names: Iterable[str]) -> UsageError:
    """The error that no run knows a name."""
    # A metric and a setting may have one name, such as `lr`.
    listed = list(dict.fromkeys(names))
    known = f"known are {', '.join(listed)}" if listed else f"the runs have no {what}"
    return UsageError(f"no run has the {what} `{name}`", hint=did_you_mean(name, listed, known))


_ORDERED: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)[:-](\d\d)(?:[:-](\d\d))?)?")


class Text(NamedTuple):
    """A constant as it was typed, and what it may mean.

    Attributes:
        text: The text itself.
        number: The number that it spells, in seconds for a time span; None for other text.
        start: Start of the day, minute or second that it spells; None for other text.
        end: The end of that span of time, exclusive.
    """

    text: str
    number: float | None = None
    start: datetime | None = None
    end: datetime | None = None

    @property
    def is_date(self) -> bool:
        """Whether it spells a date."""
        return self.start is not None


def constant(text: str, *, quoted: bool = False) -> Text:
    """Read a constant. A quoted one is text or a date, never a number."""
    date = _DATE.fullmatch(text)
    if date:
        try:
            start = datetime.fromisoformat(
                f"{date[1]}T{date[2] or '00'}:{date[3] or '00'}:{date[4] or '00'}"
            )
            part = timedelta(seconds=1) if date[4] else timedelta(minutes=1)
            # Added before the zone is known: a day on which the clock changes has 23 or 25 hours.
            end = start + (part if date[2] else timedelta(days=1))
            return Text(text, None, start.astimezone(), end.astimezone())
        except (ValueError, OverflowError, OSError):
            return Text(text)
    if quoted:
        return Text(text)
    seconds = span(text)
    return Text(text, _number(text) if seconds is None else seconds)


def span(text: str) -> float | None:
    """The seconds of a span of time such as ``30m`` or ``7d``; None for other text."""
    found = _SPAN.fullmatch(text)
    return float(found[1]) * _SECONDS[found[2]] if found else None


def compare(value: object, operator: str, other: object) -> bool | None:
    """Whether ``value OPERATOR other`` holds; None if a side is missing or they do not compare.

    Args:
        value: A value of a run.
        operator: ``<``, ``<=``, ``>``, ``>=``, ``=``, ``==`` or ``!=``.
        other: A :class:`Text`, or another value of a run.
    """
    if value is None or other is None:
        return None
    if operator in ("=", "=="):
        return _equal(value, other)
    if operator == "!=":
        equal = _equal(value, other)
        return None if equal is None else not equal
    if isinstance(value, datetime):
        return _ordered_dates(value, operator, other)
    left = _as_number(value)
    right = other.number if isinstance(other, Text) else _as_number(other)
    return None if left is None or right is None else _ORDERED[operator](left, right)


def found_in(value: object, wanted: Text | re.Pattern[str]) -> bool | None:
    """Whether a text, or one of several, equals a constant or contains an expression."""
    if value is None:
        return None
    texts = value if isinstance(value, tuple) else (plain(value),)
    if isinstance(wanted, Text):
        return wanted.text in texts
    return any(wanted.search(text) for text in texts)


def plain(value: object) -> str:
    """A value of a run as text: dates in ISO format, lists and mappings as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _equal(value: object, other: object) -> bool | None:
    if not isinstance(other, Text):
        left, right = _as_number(value), _as_number(other)
        return value == other if left is None or right is None else left == right
    if isinstance(value, datetime):
        if other.start is None or other.end is None:
            return None
        return other.start <= value < other.end
    if isinstance(value, tuple):
        return other.text in value
    number = _as_number(value)
    if number is not None and other.number is not None:
        return number == other.number
    return plain(value) == other.text


def _ordered_dates(value: datetime, operator: str, other: object) -> bool | None:
    """A day is one span: ``<= 2026-01-31`` includes all of that day."""
    if isinstance(other, datetime):
        return _ORDERED[operator](value.timestamp(), other.timestamp())
    if not isinstance(other, Text) or other.start is None or other.end is None:
        return None
    bound = other.start if operator in ("<", ">=") else other.end
    moment, limit = value.timestamp(), bound.timestamp()
    return moment < limit if operator in ("<", "<=") else moment >= limit


def _as_number(value: object) -> float | None:
    """A number, also one that a record keeps as text; a truth value is not a number."""
    if isinstance(value, bool) or value != value:  # nan is neither below nor above a number
        return None
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) or abs(value) < 1 << 1023 else None
    return _number(value) if isinstance(value, str) else None


def _number(text: str) -> float | None:
    number = as_number(text)
    return None if number != number else number


def sorted_by(text: str, runs: Sequence[Run]) -> list[Run]:
    """The runs in the order of a quantity; those without a value come last.

    Args:
        text: A quantity. ``NAME:max`` begins with the highest value, ``NAME:min`` with the lowest.
            Without a direction the best value of a metric comes first, and else the lowest. Metrics
            that are nan or infinite follow the others.
        runs: The runs. Among equal values their order stays.

    Raises:
        UsageError: No run knows the quantity.
    """
    quantity, higher = _parsed(text, Known(runs))
    valued = [(run, value) for run in runs if (value := quantity.value(run)) is not None]
    broken = [run for run, value in valued if quantity.is_metric and not _is_finite(value)]
    sound = [pair for pair in valued if pair[0] not in broken]
    ranked = sorted(sound, key=lambda pair: _key(pair[1]), reverse=higher)
    missing = [run for run in runs if quantity.value(run) is None]
    return [*(run for run, _ in ranked), *broken, *missing]


def _parsed(text: str, known: Known) -> tuple[Quantity, bool]:
    name, _, direction = text.rpartition(":")
    if name and direction in DIRECTIONS and not unquoted(text).startswith(BEST_OF):
        return known.resolve(name), direction == HIGHEST
    quantity = known.resolve(text)
    if quantity.kind == BEST:
        return quantity, quantity.higher
    return quantity, quantity.is_metric and Metric.parse(quantity.name).higher


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _key(value: object) -> tuple[int, float, str]:
    """Numbers before texts, so that a setting of both kinds can be sorted.

    Values of a sweep are texts in its records, also where they spell numbers.
    """
    if isinstance(value, datetime):
        return 0, value.timestamp(), ""
    if isinstance(value, bool | int | float):
        if abs(value) < 1 << 1023:
            return 0, float(value), ""
        return 0, -math.inf if value < 0 else math.inf, ""
    number = _as_number(value)
    return (1, 0.0, plain(value)) if number is None else (0, number, "")
