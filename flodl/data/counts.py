"""Checks of arguments that count something."""

from __future__ import annotations

from operator import index

from flodl.setting import Whole, fitting


def positive_integer(name: str, value: object) -> int:
    """Check a count of at least one.

    Raises:
        ValueError: It is not an integer of at least 1.
    """
    return count(name, value, least=1)


def seed_value(value: object) -> int:
    """Check a seed; torch's generators hold it in 64 bits.

    Raises:
        ValueError: It is not an integer, or it is too large.
    """
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"seed={value!r}: it must be an integer of at most 63 bits and a sign")
    return number


def count(name: str, value: object, *, least: int = 0) -> int:
    """Check a count.

    Raises:
        ValueError: It is not an integer of at least ``least``.
    """
    number: int = fitting(Whole(least), value, f"{name}={value!r}")
    return number
