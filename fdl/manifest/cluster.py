"""The values of ``slurm:``."""

from __future__ import annotations


def minutes(value: object) -> float | None:
    """The minutes that SLURM reads in a time: ``90``, ``1:30:00``, ``2-12``; None if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if value >= 1 else None
    if not isinstance(value, str) or len(value) > 20:
        return None
    days, dash, rest = value.rpartition("-")
    parts = rest.split(":")
    if not all(one.isascii() and one.isdigit() for one in (*parts, *([days] if dash else []))):
        return None
    if len(parts) > 3:
        return None
    numbers = [int(one) for one in parts]
    if dash:
        hours, mins, seconds = [*numbers, 0, 0][:3]
        found = int(days) * 1440 + hours * 60 + mins + seconds / 60
    elif len(numbers) == 3:
        found = numbers[0] * 60 + numbers[1] + numbers[2] / 60
    else:
        found = numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)
    return found or None
