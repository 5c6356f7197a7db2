"""What fdl itself says: errors and informational lines on stderr, and their light styling.

Imported on the warm path: nothing beyond ``os`` and ``sys``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

_color: bool | None = None
_quiet = False


def configure(color: bool | None, quiet: bool) -> None:
    """Apply the global flags.

    Args:
        color: True and False force, None lets the environment and the stream decide.
        quiet: Mute ``note``; errors are never muted.
    """
    global _color, _quiet
    _color = color
    _quiet = quiet


def is_quiet() -> bool:
    """Whether ``-q`` mutes what is only informational."""
    return _quiet


def color_on(stream: TextIO) -> bool:
    """Whether ``stream`` gets colour: flag, FLODL_COLOR, NO_COLOR, FORCE_COLOR, terminal."""
    if _color is not None:
        return _color
    inherited = os.environ.get("FLODL_COLOR")
    if inherited in ("always", "never"):
        return inherited == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


class Palette:
    """The few styles fdl uses; every method returns its text unchanged when ``on`` is False."""

    __slots__ = ("on",)

    def __init__(self, on: bool) -> None:
        self.on = on

    def _sgr(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text

    def bold(self, text: str) -> str:
        """Titles and headings."""
        return self._sgr("1", text)

    def dim(self, text: str) -> str:
        """Origins, defaults and other asides."""
        return self._sgr("2", text)

    def red(self, text: str) -> str:
        """The word ``error``."""
        return self._sgr("1;31", text)

    def yellow(self, text: str) -> str:
        """The word ``warning``."""
        return self._sgr("1;33", text)

    def cyan(self, text: str) -> str:
        """What a user may type: commands, flags, hints."""
        return self._sgr("36", text)


def palette(stream: TextIO) -> Palette:
    """The styles to use on ``stream``."""
    return Palette(color_on(stream))


def write(stream: TextIO, text: str) -> None:
    """Write text that may hold what the stream's encoding cannot say, escaping just that."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def error(text: str, hint: str = "") -> None:
    """Print ``error: TEXT`` on stderr, and the remedy below it."""
    _labelled(palette(sys.stderr).red("error"), text, hint)


def warning(text: str, hint: str = "") -> None:
    """Print ``warning: TEXT`` on stderr; ``-q`` does not mute it."""
    _labelled(palette(sys.stderr).yellow("warning"), text, hint)


def note(text: str) -> None:
    """Print one of fdl's own informational lines on stderr unless muted by ``-q``."""
    if not _quiet:
        write(sys.stderr, f"{text}\n")


def hint(text: str) -> None:
    """Print ``hint: TEXT`` on stderr: the remedy for what stands above it."""
    write(sys.stderr, f"{palette(sys.stderr).cyan('hint')}: {text}\n")


def _labelled(label: str, text: str, remedy: str) -> None:
    # What the program has printed so far belongs above the message on a shared terminal.
    sys.stdout.flush()
    write(sys.stderr, f"{label}: {text}\n")
    if remedy:
        hint(remedy)
