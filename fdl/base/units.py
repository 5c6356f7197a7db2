"""Figures for people and for JSON: times, sizes, metrics; the same on terminals and pages."""

from __future__ import annotations

import math

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3


def counted(number: int, word: str) -> str:
    """``1 run``, ``2 runs``, ``2 batches``."""
    ending = "es" if word.endswith("tch") else "s"
    return f"{number} {word}{'' if number == 1 else ending}"


def format_eta(seconds: float) -> str:
    """Format a remaining time: ``42ms``, ``1.5s``, ``4m 32s``, ``3h 12m``; a dash if unknown.

    Decimals are cut, not rounded: a countdown must not show a minute when less is left.
    """
    return _time(seconds, " ").replace(".0s", "s")


def format_duration(seconds: float) -> str:
    """Format a duration: ``42ms``, ``1.2s``, ``2m05s``, ``3h12m``."""
    return _time(seconds, "")


def _time(seconds: float, gap: str) -> str:
    """A time, with a gap between two units."""
    if not math.isfinite(seconds) or seconds < 0:
        return "—"
    if seconds < 1:
        return f"{min(999, round(seconds * 1000))}ms"
    if seconds < 60:
        # The small addend undoes a loss of the multiplication: 1.1 * 10 may be less than 11.
        return f"{math.floor(seconds * 10 + 1e-9) / 10:.1f}s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m{gap}{int(seconds) % 60:02d}s"
    return f"{int(seconds) // 3600}h{gap}{int(seconds) % 3600 // 60:02d}m"


def format_bytes(count: float) -> str:
    """Format a size in powers of 1024: ``512 B``, ``500 KB``, ``100 MB``, ``2.1 GB``."""
    if count < _KIB:
        return f"{count:.0f} B"
    # Half a unit below the next unit already rounds up to it: 1023.7 KB becomes 1 MB.
    if count < _MIB - _KIB / 2:
        return f"{count / _KIB:.0f} KB"
    if count < _GIB - _MIB / 2:
        return f"{count / _MIB:.0f} MB"
    return f"{count / _GIB:.1f} GB"


def format_metric(value: float) -> str:
    """Format a metric with significant digits: ``0``, ``1.00e-4``, ``1.2345``, ``12345.67``.

    From 1e15 on, where decimals have no meaning, the exponent form is used again.
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(float(value))
    size = abs(value)
    if size < 1e-3 or size >= 1e15:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.4f}" if size < 100 else f"{value:.2f}"


def printable(name: str) -> str:
    """Escape line breaks and escape sequences in a name, so that the terminal shows them."""
    if name.isprintable():
        return name
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in name
    )


def duration(seconds: float | None) -> str:
    """A time in whole seconds: ``12s``, ``2m05s``, ``3h12m``; empty for None."""
    if seconds is None:
        return ""
    return f"{int(seconds)}s" if seconds < 60 else format_duration(seconds)


def size_text(count: float) -> str:
    """A size in powers of 1000, as file managers and the Hub show it: ``999 bytes``, ``1.5 kB``."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:,.1f} TB"


def in_json(value: float) -> float | str:
    """A value for JSON, which has no nan and no infinity: ``"nan"``, ``"inf"``, ``"-inf"``."""
    return value if math.isfinite(value) else str(value)
