"""Text out of checkpoints, which may be anybody's, on a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text with everything that is not to be seen escaped, but for the ends of its lines.

    A key or label could otherwise move the cursor and rewrite what stands above it.
    """
    return "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )
