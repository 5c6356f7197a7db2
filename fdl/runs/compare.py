"""Comparing a value of a run with a constant or with another value."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timedelta
from typing import NamedTuple

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
            ).astimezone()
            span = timedelta(seconds=1) if date[4] else timedelta(minutes=1)
            return Text(text, None, start, start + (span if date[2] else timedelta(days=1)))
        except (ValueError, OverflowError, OSError):
            return Text(text)
    if quoted:
        return Text(text)
    span_of_time = _SPAN.fullmatch(text)
    if span_of_time:
        return Text(text, float(span_of_time[1]) * _SECONDS[span_of_time[2]])
    return Text(text, _number(text))


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
    return None if left is None or right is None else _ordered(left, operator, right)


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
        return value == other
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
        return _ordered(value.timestamp(), operator, other.timestamp())
    if not isinstance(other, Text) or other.start is None or other.end is None:
        return None
    bound = other.start if operator in ("<", ">=") else other.end
    moment, limit = value.timestamp(), bound.timestamp()
    return moment < limit if operator in ("<", "<=") else moment >= limit


def _ordered(left: float, operator: str, right: float) -> bool:
    if operator == "<":
        return left < right
    if operator == "<=":
        return left <= right
    return left > right if operator == ">" else left >= right


def _as_number(value: object) -> float | None:
    """A number, also one that a record keeps as text; a truth value is not a number."""
    if isinstance(value, bool) or value != value:  # nan is neither below nor above a number
        return None
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) or abs(value) < 1 << 1023 else None
    return _number(value) if isinstance(value, str) else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number
