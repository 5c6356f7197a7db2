"""What fdl itself prints: messages on stderr as plain text, everything else drawn by rich.

Imported on the warm path: nothing beyond ``os`` and ``sys``. rich is imported when something is
drawn for the first time, and never for a message.
"""

from __future__ import annotations

import os
import sys

from fdl.base.masking import KNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TextIO

    from rich.console import Console, RenderableType

_color: bool | None = None
_quiet = False
_consoles: dict[bool, Console] = {}

# A pipe has no edge: whatever reads from it gets every value whole.
_ENDLESS = 100_000

# Reset, bold, dim, italic, underlined, and the sixteen colours of text.
_STYLES = frozenset(map(str, (0, 1, 2, 3, 4, *range(30, 38), 39, *range(90, 98))))
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t\x1b"
}


def configure(color: bool | None, quiet: bool) -> None:
    """Apply the global flags.

    Args:
        color: True and False force, None lets the environment and the stream decide.
        quiet: Mute ``note``; errors are never muted.
    """
    global _color, _quiet
    _color = color
    _quiet = quiet
    _consoles.clear()


def is_quiet() -> bool:
    """Whether ``-q`` mutes what is only informational."""
    return _quiet


def is_screen(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that can move its cursor: not a pipe, not TERM=dumb."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def color_on(stream: TextIO) -> bool:
    """Whether ``stream`` gets colour: flag, FLODL_COLOR, NO_COLOR, FORCE_COLOR, terminal."""
    if _color is not None:
        return _color
    inherited = os.environ.get("FLODL_COLOR")
    if inherited in ("always", "never"):
        return inherited == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_screen(stream)


def columns(stream: TextIO) -> int | None:
    """Columns of the terminal behind ``stream``; None without one, unless COLUMNS says so."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def console(*, stderr: bool = False) -> Console:
    """The console that draws on stdout or on stderr; made at its first use."""
    if stderr not in _consoles:
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        # Everything is decided here, so that rich does not read the same variables differently.
        _consoles[stderr] = Console(
            stderr=stderr,
            color_system="standard" if color_on(stream) else None,
            no_color=False,
            force_terminal=stream.isatty(),
            force_interactive=is_screen(stream),
            width=(columns(stream) or 80) if stream.isatty() else _ENDLESS,
            markup=False,
            emoji=False,
            highlight=False,
        )
    return _consoles[stderr]


def drawn(*parts: RenderableType, width: int | None = None) -> str:
    """The text of what rich draws for stdout.

    Args:
        parts: What to draw, one below the other.
        width: Columns to fill at most; those of the console when omitted.
    """
    from rich.console import Group

    pen = console()
    # Text on its own would be joined to one text that forgets which lines may be wrapped.
    with pen.capture() as captured:
        pen.print(Group(*parts), width=width, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().split("\n"))


def show(*parts: RenderableType) -> None:
    """Draw on stdout."""
    write(sys.stdout, drawn(*parts))


def json_text(document: object) -> str:
    """A document as indented JSON, ending in a newline."""
    import json

    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    # A path in no encoding is half of a surrogate pair, which JSON can hold only as an escape.
    return text.encode("utf-8", "backslashreplace").decode()


def versioned(document: Mapping[str, object]) -> str:
    """A document as JSON, behind the version of its form: the first one, of all documents."""
    return json_text({"schema_version": 1, **document})


def print_json(document: object) -> None:
    """Print a document as JSON on stdout."""
    write(sys.stdout, json_text(document))


class Palette:
    """The few styles of text that rich does not draw; without ``on`` text stays as it is."""

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
    """Write text that may hold what the stream's encoding cannot say, escaping just that.

    Secrets are masked. Control characters are shown, not sent: a manifest or a record must not
    move the cursor or hide text. Only the styles that fdl itself uses pass.

    A message that standard error does not take is dropped: the exit code says what there was.
    """
    text = visible(KNOWN.text(text))
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    except OSError:
        if stream is not sys.stderr:
            raise
        from fdl.base.streams import drop_messages

        drop_messages()


def visible(text: str) -> str:
    """A text with its control characters written out, except newlines, tabs and fdl's styles."""
    if "\x1b" in text:
        first, *parts = text.split("\x1b")
        text = first + "".join(f"{_escape(part)}{part}" for part in parts)
    return text.translate(_CONTROLS)


def _escape(following: str) -> str:
    """The escape character if a style of fdl follows; else the same in visible characters."""
    codes, end, _ = following[1:].partition("m")
    is_style = following[:1] == "[" and end and _STYLES.issuperset(codes.split(";"))
    return "\x1b" if is_style else "\\x1b"


def error(text: str, hint: str = "") -> None:
    """Print ``error: TEXT`` on stderr, and the remedy below it."""
    _labelled(palette(sys.stderr).red("error"), text, hint)


def see(usage: str, command: str) -> None:
    """Print the usage line on stderr, and the command that prints the whole page.

    Args:
        usage: What to type: ``fdl train [<preset>] [OPTIONS]``.
        command: The command with the page: ``fdl train``.
    """
    title = palette(sys.stderr).bold("Usage:")
    write(sys.stderr, f"{title} {usage}\nsee {command} --help\n")


def warning(text: str, hint: str = "") -> None:
    """Print ``warning: TEXT`` on stderr; ``-q`` does not mute it."""
    _labelled(palette(sys.stderr).yellow("warning"), text, hint)


def warnings(texts: Iterable[str]) -> None:
    """Print several warnings."""
    for text in texts:
        warning(text)


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
