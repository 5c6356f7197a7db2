"""Fields as the text and the JSON of ``fdl config show`` and ``fdl why``."""

from __future__ import annotations

import sys

from fdl.base.layout import cells, wrap
from fdl.base.light_record import Record
from fdl.base.output import columns
from fdl.manifest.inspect.field import PART
from fdl.manifest.node import Node, dotted, relative
from fdl.manifest.show import flow, lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fdl.base.output import Palette
    from fdl.manifest.inspect.field import Field, Statement


SCHEMA_VERSION = 1

_OWN = ("manifest", "inherited", "overlay")
_INFINITY = float("inf")

# Origins begin here if all values are short.
_YAML_COLUMN = 14


def listing(
    tree: Node, fields: Sequence[Field], directory: str, palette: Palette, width: int | None = None
) -> str:
    """YAML that reads back to the tree. Each leaf has its origin and what it overrides.

    The fields are those of the leaves and of removed keys. A pipe has no width.
    """
    known = {one.path: _printable(_origin(one)) for one in fields if not one.removed}
    rows = [
        Row(head, value, _origin_of(leaf, known.get(path), directory), _printable(dotted(path)))
        for head, value, path, leaf in lines(tree)
    ]
    for field in fields:
        if field.removed:
            by, *gone = field.stack
            places = ", ".join(one.line_place for one in gone)
            removed = _printable(f"removed: {field.name} ({places}) by {_place(by)}")
            rows.append(Row("", "", removed, _printable(field.name)))
    return Layout(palette, width, "# ", _YAML_COLUMN).text(rows)


def records(fields: Sequence[Field]) -> list[dict[str, object]]:
    """Fields as JSON data: value, origin, and what each overrides.

    A value that is not from the manifest itself has a ``source``: ``preset quick``,
    ``command line``, … A removed key has a null value, the place that removed it, and
    ``"removed": true``.
    """
    return [
        {
            "path": field.name,
            "value": json_value(field.value),
            **({"removed": True} if field.removed else {}),
            **_position(field.top),
            "overrides": [
                {**_position(one), "value": json_value(one.value), "role": one.role}
                for one in field.stack[1:]
            ],
        }
        for field in fields
    ]


def explanation(fields: Sequence[Field], palette: Palette, width: int | None = None) -> str:
    """The statements about some values: one line each, strongest first. A pipe has no width."""
    layout = Layout(palette, width)
    blocks = []
    for field in fields:
        ending = "is removed" if field.removed else f"= {_inline(field.value)}"
        name = _printable(field.name)
        rows = [Row(name, ending, name=name, styled=palette.bold(name))]
        roles = max(len(one.role) for one in field.stack)
        places = max(len(one.place) for one in field.stack)
        for one in field.stack:
            head = f"  {one.role:<{roles}}"
            styled = head if rows[1:] else palette.cyan(head)
            where = f"{one.place:<{places}}  {one.source}" if places else one.source
            where += f", {one.reference}" if one.reference else ""
            value = _inline(one.value)
            rows.append(Row(f"{head} ", value, _printable(where), name, f"{styled} "))
        blocks.append(layout.text(rows))
    return "\n".join(blocks)


def explanation_json(fields: Sequence[Field]) -> dict[str, object]:
    """The statements about some values as JSON data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "fields": [
            {
                "path": field.name,
                "value": json_value(field.value),
                "removed": field.removed,
                "stack": [
                    {
                        "role": one.role,
                        "value": json_value(one.value),
                        **_position(one),
                        "source": one.source,
                    }
                    for one in field.stack
                ],
            }
            for field in fields
        ],
    }


def node_of(value: Any) -> Node:
    """JSON data as nodes without an origin, to print as YAML."""
    if isinstance(value, dict):
        value = {str(key): node_of(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [node_of(item) for item in value]
    return Node(value, "", 0, 0)


def json_value(value: Any) -> Any:
    """A value for JSON, which has no infinities: they become the text that YAML writes for them."""
    if isinstance(value, float) and not -_INFINITY < value < _INFINITY:
        return _inline(value)
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    return value


def _inline(value: object) -> str:
    return flow(node_of(value))


def _position(statement: Statement) -> dict[str, object]:
    source = {} if statement.source in _OWN else {"source": statement.source}
    place = {name: getattr(statement, name) for name in ("file", "line", "column")}
    behind = {"reference": statement.reference} if statement.reference else {}
    return {**place, **source, **behind}


def _origin(field: Field) -> str:
    """``fdl.ci.yml:4 (append to fdl.gpu.yml:2; overrides fdl.yml:8)``."""
    joined, replaced = [], []
    for above, one in zip(field.stack, field.stack[1:], strict=False):
        if one.role == PART:
            word = (above.merge or "joined").replace(":", " ")
            joined.append(f"{word} to {_place(one)}")
        else:
            replaced.append(_place(one))
    notes = [*joined, *([f"overrides {', '.join(replaced)}"] if replaced else [])]
    return _place(field.top) + (f" ({'; '.join(notes)})" if notes else "")


def _origin_of(leaf: Node | None, known: str | None, directory: str) -> str:
    return (known or f"{relative(leaf.file, directory)}:{leaf.line}") if leaf else ""


def _place(statement: Statement) -> str:
    """``fdl.yml:4``, with its source if that is not the manifest itself."""
    if not statement.file:
        return statement.source
    where = statement.line_place
    return where if statement.source in _OWN else f"{where}, {statement.source}"


def _printable(text: str) -> str:
    """Text for a comment, kept on one line also if a key or a file name has line breaks."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


_LAST_COLUMN = 59
"""Where origins begin at most, counted from 0."""

# Most origins are not longer: `train/fdl.yml:12, preset quick`.
_ORIGIN_WIDTH = 30
_NARROWEST = 20
_INDENT = 4


class Row(Record):
    """One value.

    Attributes:
        head: The beginning of its first line, which is never broken.
        text: The value. It is broken at single blanks.
        origin: Where it comes from; empty for a line without an origin.
        name: What messages call it.
        styled: The head with its styles; empty for a head without styles.
    """

    head: str
    text: str
    origin: str = ""
    name: str = ""
    styled: str = ""

    @property
    def line(self) -> str:
        """The value on one line, without its origin."""
        return f"{self.head} {self.text}" if self.head and self.text else self.head + self.text


class Layout(Record):
    """How rows are laid out.

    Attributes:
        palette: The styles.
        width: Columns of the terminal; None for a pipe.
        mark: What origins begin with: ``# `` in YAML.
        least: The column of origins behind short values.
    """

    palette: Palette
    width: int | None
    mark: str = ""
    least: int = 0

    def text(self, rows: Sequence[Row]) -> str:
        """All rows, one or more lines each. Names the rows in which a word is too long."""
        width = self.width
        measure = len if width is None else cells
        ends = [measure(row.line) + 2 for row in rows if row.origin and row.line]
        if width is None:
            column = max(self.least, *ends, 0)
            return "".join(f"{self._whole(row, column)}\n" for row in rows)
        limit = min(_LAST_COLUMN, max(width - _ORIGIN_WIDTH, _NARROWEST))
        column = max(self.least, *(end for end in ends if end <= limit), 0)
        too_wide: dict[str, None] = {}
        lines = [line for row in rows for line in self._fitted(row, column, width, too_wide)]
        if too_wide:
            names = f"wider than this terminal: {', '.join(too_wide)}"
            lines += self._fitted(Row("", "", names), 0, width, {})
        return "".join(f"{line}\n" for line in lines)

    def _whole(self, row: Row, column: int) -> str:
        """A row on one line."""
        gap = " " * (column - len(row.line)) if row.origin and row.line else ""
        return (row.styled or row.head) + row.line[len(row.head) :] + gap + self._dim(row.origin)

    def _fitted(self, row: Row, column: int, width: int, too_wide: dict[str, None]) -> list[str]:
        """A row on as many lines as it needs."""
        indent = len(row.head) - len(row.head.lstrip()) + _INDENT if row.line else 0
        body = _broken(row, indent, width) if row.line else []
        room = width - len(self.mark)
        if not body or column < indent or max(map(cells, row.origin.split(" "))) > room - column:
            column = indent
        fits = cells(row.origin) <= room - column
        origins = [row.origin] if fits else wrap(row.origin, room - column)
        if max(map(cells, [*body, *(" " * column + self.mark + one for one in origins)])) > width:
            too_wide[row.name] = None
        beside = len(body) == 1 and cells(body[0]) + 2 <= column
        head = row.styled or row.head
        shown = [head + body[0][len(row.head) :], *body[1:]] if body else []
        if row.origin and beside:
            shown[0] += " " * (column - cells(body[0])) + self._dim(origins.pop(0))
        return [*shown, *(" " * column + self._dim(one) for one in origins if one)]

    def _dim(self, origin: str) -> str:
        return self.palette.dim(self.mark + origin) if origin else ""


def terminal_columns() -> int | None:
    """Columns of the terminal on stdout; None in a pipe."""
    return (columns(sys.stdout) or 80) if sys.stdout.isatty() else None


def _broken(row: Row, indent: int, width: int) -> list[str]:
    """The value on as many lines as it needs; what is YAML reads back to the same value."""
    made = [row.head]
    for word in _words(row.text) if row.text else ():
        line = f"{made[-1]} {word}" if made[-1].strip() else made[-1] + word
        if made[-1].strip() and cells(line) > width:
            line = " " * indent + word
            made.append("")
        made[-1] = line
    return made


def _words(text: str) -> list[str]:
    """A text split at its single blanks: YAML reads a line break there as one blank."""
    words: list[str] = []
    for word in text.split(" "):
        if words and (not word or words[-1].endswith(" ")):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words
