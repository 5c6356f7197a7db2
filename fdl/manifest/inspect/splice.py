"""Candidate texts for a manifest with one value changed; the caller keeps the first correct one.

Whether a text is allowed in a place depends on its host (brackets, tags, quotes). Instead
of checking that beforehand, this module writes candidates, best first, and the caller reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fdl.base.errors import FdlError
from fdl.manifest.inspect.document import json_value
from fdl.manifest.inspect.spans import Layout, Span
from fdl.manifest.node import Node, dotted
from fdl.manifest.show import flow, quoted

_STEP = 2


class NewValue:
    """The value to write.

    Attributes:
        node: The value.
        typed: The text as it was given.
        tagged: Whether that text has a tag of its own.
    """

    def __init__(self, node: Node, typed: str) -> None:
        self.node = node
        self.typed = typed
        self.tagged = bool(node.merge or node.secret)

    def under(self, keys: Sequence[str]) -> NewValue:
        """The value inside of new mappings, for a path that does not exist yet."""
        if not keys:
            return self
        node = self.node
        for key in reversed(keys):
            node = Node({key: node}, node.file, node.line, node.column)
        path = ": {".join(quoted(key, inside=True) for key in keys)
        return NewValue(node, f"{{{path}: {self.typed}{'}' * len(keys)}")


def candidates(
    text: str, layout: Layout, path: Sequence[str], new: NewValue, *, is_json: bool
) -> Iterator[str]:
    """Texts in which the value at ``path`` is replaced or added, best layout first.

    Raises:
        FdlError: A value on the path cannot hold keys, or an anchor makes it part of several
            places.
    """
    write = _Json(text) if is_json else _Yaml(text)
    span = layout.root
    if span is None or (span.kind == "scalar" and span.start == span.end):
        yield from write.document(path, new)
        return
    for depth, key in enumerate(path):
        _refuse_shared(span, layout, path[:depth])
        if span.kind == "list":
            raise FdlError(f"`{dotted(tuple(path[:depth]))}` is a list, not a mapping of keys")
        if span.kind == "scalar":
            yield from write.replaced(span, new.under(path[depth:]))
            return
        if key not in span.entries:
            yield from write.added(span, path[depth:], new)
            return
        span = span.entries[key]
    _refuse_shared(span, layout, path)
    yield from write.replaced(span, new)


def _refuse_shared(span: Span, layout: Layout, path: Sequence[str]) -> None:
    if span.kind == "alias" or span.anchor in layout.aliases:
        name = dotted(tuple(path)) if path else "the document"
        raise FdlError(
            f"`{name}` is shared through an anchor, so a change there would change other values",
            hint="replace the alias by a value of its own, then try again",
        )


class _Json:
    def __init__(self, text: str) -> None:
        self.text = text

    def document(self, path: Sequence[str], new: NewValue) -> Iterator[str]:
        yield self._dumped(new.under(path)) + "\n"

    def replaced(self, span: Span, new: NewValue) -> Iterator[str]:
        yield self.text[: span.start] + self._dumped(new) + self.text[span.end :]

    def added(self, span: Span, keys: Sequence[str], new: NewValue) -> Iterator[str]:
        value = self._dumped(new.under(keys[1:]))
        name = json.dumps(keys[0], ensure_ascii=False)
        yield _into_brackets(self.text, span, name, value, '"')

    def _dumped(self, new: NewValue) -> str:
        return json.dumps(json_value(new.node.plain()), ensure_ascii=False)


class _Yaml:
    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"

    def document(self, path: Sequence[str], new: NewValue) -> Iterator[str]:
        gap = "" if not self.text or self.text.endswith("\n") else self.newline
        for value in _spellings(new):
            yield self.text + gap + self._block(path, value, "", _STEP) + self.newline

    def replaced(self, span: Span, new: NewValue) -> Iterator[str]:
        text = self.text
        tags = "" if new.tagged else text[span.start : span.body]
        for kept in dict.fromkeys((tags, "")):
            if span.kind == "list" and span.in_blocks and isinstance(new.node.value, list):
                yield from self._items(span, new, kept)
            for value in _spellings(new, span.style):
                start, lead = self._beginning(span)
                mark = f"{kept.strip()} " if kept.strip() else ""
                yield f"{text[:start]}{lead}{mark}{value}{text[span.end :]}"

    def added(self, span: Span, keys: Sequence[str], new: NewValue) -> Iterator[str]:
        if not span.in_blocks:
            for value in _spellings(new.under(keys[1:])):
                yield _into_brackets(self.text, span, quoted(keys[0], inside=True), value, "")
            return
        column = self._column(next(iter(span.entries.values())).key_start) if span.entries else 0
        end = self.text.find("\n", span.end)
        end = len(self.text) if end < 0 else end - self.text[:end].endswith("\r")
        for value in _spellings(new):
            line = self._block(keys, value, " " * column, self._step())
            yield f"{self.text[:end]}{self.newline}{line}{self.text[end:]}"

    def _items(self, span: Span, new: NewValue, tags: str) -> Iterator[str]:
        """A list with one item per line, like the old one."""
        items = new.node.value if isinstance(new.node.value, list) else []
        if not items:
            return
        indent = " " * self._column(span.body)
        lines = f"{self.newline}{indent}".join(f"- {flow(item)}" for item in items)
        yield f"{self.text[: span.start]}{tags}{lines}{self.text[span.end :]}"

    def _beginning(self, span: Span) -> tuple[int, str]:
        """Where the new value starts, and the blanks between the colon and the value."""
        colon = self.text.find(":", span.key_end) + 1
        between = self.text[colon : span.start]
        if span.key_end > span.key_start and not between.strip(" \r\n"):
            # After the colon, even if the old value began on a line of its own.
            return colon, " " if "\n" in between or not between else between
        return span.start, ""

    def _block(self, keys: Sequence[str], value: str, indent: str, step: int) -> str:
        lines = []
        for depth, key in enumerate(keys):
            lines.append(f"{indent}{' ' * (step * depth)}{quoted(key)}:")
        return self.newline.join(lines) + f" {value}"

    def _column(self, offset: int) -> int:
        return offset - (self.text.rfind("\n", 0, offset) + 1)

    def _step(self) -> int:
        """The indentation step of the file: that of its first indented line."""
        for line in self.text.splitlines():
            indent = len(line) - len(line.lstrip(" "))
            if indent and line.strip() and line.strip()[0] not in "#-":
                return indent
        return _STEP


def _into_brackets(text: str, span: Span, name: str, value: str, quote: str) -> str:
    """A mapping in braces with one more entry, spaced like the last one."""
    if not span.entries:
        return f"{text[: span.body]}{{{name}: {value}}}{text[span.end :]}"
    last = max(span.entries.values(), key=lambda one: one.key_start)
    before = text[: last.key_start]
    gap = before[len(before.rstrip()) :]
    alone = len(span.entries) == 1 and "\n" not in gap
    colon = text[last.key_end : last.start] if quote else ": "
    return f"{text[: last.end]},{' ' if alone else gap}{name}{colon}{value}{text[last.end :]}"


def _spellings(new: NewValue, style: str | None = None) -> Iterator[str]:
    """The value as YAML on one line, as it was typed if possible."""
    value = new.node.value
    if isinstance(value, str) and style == "'" and value.isprintable():
        doubled = value.replace("'", "''")
        yield f"'{doubled}'"
    if isinstance(value, str) and style == '"':
        spelled = quoted(value)
        yield spelled if spelled.startswith('"') else f'"{spelled}"'
    typed = new.typed.strip()
    if "\n" not in typed and "#" not in typed:
        yield typed
    yield flow(new.node)
    yield flow(new.node, inside=True)
