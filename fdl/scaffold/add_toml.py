"""Find the positions of tables, keys and values in a TOML text, to change one in place.

It reads only text that ``tomllib`` has accepted, so it does not check whether text is valid.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field

Path = tuple[str, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_OTHER = re.compile(r"[^,\]}#\n]*")


@dataclass(slots=True)
class Value:
    """The text of one value.

    Attributes:
        kind: ``string``, ``array``, ``table`` (in braces) or ``other``.
        start: Offset of its first character.
        end: Offset after its last character.
        items: The values of an array.
        entries: The keys of a table in braces with their values.
    """

    kind: str
    start: int
    end: int
    items: list[Value] = field(default_factory=list)
    entries: list[tuple[Path, Value]] = field(default_factory=list)


@dataclass(slots=True)
class Table:
    """One header with its entries; the first table of a text has no header.

    Attributes:
        path: The name in the header, by its parts.
        is_item: Whether it is one of several (``[[name]]``).
        start: Offset of the header.
        end: Offset after the end of the table: after the header, or after the last value.
        entries: Keys as written, by their parts, with their values.
    """

    path: Path
    is_item: bool
    start: int
    end: int
    entries: list[tuple[Path, Value]] = field(default_factory=list)


def layout(text: str) -> list[Table]:
    """The tables of a text in file order.

    Args:
        text: A text that ``tomllib`` can read, with unchanged line ends.
    """
    walk = _Walk(text)
    tables = [Table((), False, 0, 0)]
    while walk.skip(_BLANK) < len(text):
        if text[walk.at] == "[":
            tables.append(walk.header())
            continue
        key = walk.key()
        walk.at += 1
        walk.skip(_SPACE)
        value = walk.value()
        tables[-1].entries.append((key, value))
        tables[-1].end = value.end
    return tables


def find(tables: list[Table], path: Path) -> Value | None:
    """The value at a path, in any notation of its keys; None if there is none."""
    for table in tables:
        if not table.is_item and path[: len(table.path)] == table.path:
            found = _below(table.entries, path[len(table.path) :])
            if found is not None:
                return found
    return None


def text_of(value: Value, text: str) -> str:
    """The content of a string."""
    said: str = tomllib.loads(f"x = {text[value.start : value.end]}")["x"]
    return said


def _below(entries: list[tuple[Path, Value]], path: Path) -> Value | None:
    for key, value in entries:
        if key == path:
            return value
        if value.kind == "table" and path[: len(key)] == key:
            return _below(value.entries, path[len(key) :])
    return None


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self, what: re.Pattern[str]) -> int:
        found = what.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def header(self) -> Table:
        start = self.at
        is_item = self.text.startswith("[[", start)
        self.at += 1 + is_item
        path = self.key()
        self.at += 1 + is_item
        return Table(path, is_item, start, self.at)

    def key(self) -> Path:
        """A key with its dots and the blanks around them."""
        parts = []
        while True:
            start = self.skip(_SPACE)
            if self.text[start] in "\"'":
                self.skip(_STRING)
                parts.append(text_of(Value("string", start, self.at), self.text))
            else:
                parts.append(self.text[start : self.skip(_BARE_KEY)])
            if not self.text.startswith(".", self.skip(_SPACE)):
                return tuple(parts)
            self.at += 1

    def value(self) -> Value:
        start = self.at
        first = self.text[start]
        if first in "\"'":
            return Value("string", start, self.skip(_STRING))
        if first == "[":
            return self.array()
        if first == "{":
            return self.braces()
        self.skip(_OTHER)
        self.at = start + len(self.text[start : self.at].rstrip())
        return Value("other", start, self.at)

    def array(self) -> Value:
        made = Value("array", self.at, self.at)
        self.at += 1
        while self.text[self.skip(_BLANK)] != "]":
            if self.text[self.at] == ",":
                self.at += 1
            else:
                made.items.append(self.value())
        self.at += 1
        made.end = self.at
        return made

    def braces(self) -> Value:
        made = Value("table", self.at, self.at)
        self.at += 1
        while self.text[self.skip(_BLANK)] != "}":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            key = self.key()
            self.at += 1
            self.skip(_SPACE)
            made.entries.append((key, self.value()))
        self.at += 1
        made.end = self.at
        return made
