"""The option with which a program continues a run."""

from __future__ import annotations

from collections.abc import Sequence

RESUME = "--resume"


def without_resume(words: Sequence[str]) -> list[str]:
    """Words of a command line without the option and its value."""
    kept: list[str] = []
    follows = False
    for word in words:
        # A bare `--resume` has no value to leave out.
        is_value = follows and not word.startswith("-")
        follows = word == RESUME
        if not (is_value or follows or word.startswith(f"{RESUME}=")):
            kept.append(word)
    return kept
