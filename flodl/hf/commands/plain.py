"""Make text from checkpoints, which may come from anyone, safe to print on a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text with all invisible characters escaped, except newlines.

    Otherwise a key or label could move the cursor and overwrite earlier lines.
    """
    return "".join(
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )
