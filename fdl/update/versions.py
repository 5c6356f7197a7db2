"""Comparing versions by their numbers.

Imported when a command ends on a terminal: no ``re``, no ``packaging``.
"""

from __future__ import annotations

# More digits than any version has; int() on hostile text stays cheap.
_MAX_LENGTH = 64


def is_stable(version: str) -> bool:
    """Whether a version has only numbers and dots: no pre-release, no development build."""
    parts = version.split(".")
    return len(version) <= _MAX_LENGTH and all(part.isascii() and part.isdigit() for part in parts)


def is_newer(candidate: str, installed: str) -> bool:
    """Whether a stable version has higher numbers than the installed one.

    ``0.2.0.dev3`` counts as 0.2.0, so a development version is never sent back to an older one.
    """
    return is_stable(candidate) and release(candidate) > release(installed)


def newest_stable(versions: list[str]) -> str | None:
    """The stable version with the highest numbers."""
    return max(filter(is_stable, versions), key=release, default=None)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers, without trailing zeros: ``1.2.0rc1`` -> (1, 2)."""
    numbers: list[int] = []
    for part in version[:_MAX_LENGTH].split("."):
        digits = ""
        for char in part:
            if not (char.isascii() and char.isdigit()):
                break
            digits += char
        if digits:
            numbers.append(int(digits))
        if digits != part:
            break
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
