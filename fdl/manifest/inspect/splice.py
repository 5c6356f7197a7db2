"""The position of every value in a manifest's text, and candidate texts with one value changed.

Whether a text is allowed in a place depends on its host (brackets, tags, quotes). Instead
of checking that beforehand, this module writes candidates, best first, and the caller keeps the
first correct one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from fdl.base.errors import FdlError
from fdl.manifest.inspect.document import json_value
from fdl.manifest.node import Node, dotted
from fdl.manifest.read import is_json, json_events
from fdl.manifest.read_yaml import translated
from fdl.manifest.show import flow, quoted

_PROPERTIES = re.compile(r"(?:[&!]\S*(?:\s+|\Z))*")


class Span:
    """The text of one value.

    Attributes:
        kind: ``scalar``, ``mapping``, ``list`` or ``alias``.
        start: Offset of its first character, tag and anchor included.
        body: Offset of its first character after tag and anchor.
        end: Offset after its last character.
        key_start: Offset of the key that names it; equal to ``start`` if it has no key.
        key_end: Offset after that key.
        in_blocks: Whether a mapping or list is written with indentation, not with brackets.
        style: How a scalar is quoted: ``'``, ``"``, ``|``, ``>``, or None.
        anchor: The name by which an alias may refer to it.
        entries: The children of a mapping, in file order, without ``<<``.
        items: The items of a list.
    """

    def __init__(self, kind: str, start: int, body: int) -> None:
        self.kind = kind
        self.start = self.key_start = self.key_end = start
        self.body = self.end = body
        self.in_blocks = False
        self.style: str | None = None
        self.anchor: str | None = None
        self.entries: dict[str, Span] = {}
        self.items: list[Span] = []


@dataclass
class Layout:
    """The spans of one text.

    Attributes:
        root: The document; None for an empty one.
        aliases: The anchors that aliases refer to.
        comments: The comments, in file order.
    """

    root: Span | None
    aliases: set[str]
    comments: list[str]


def layout_of(text: str, file: str) -> Layout:
    """The layout of a text that is known to be a manifest; the name of its file tells its format.

    Raises:
        ManifestError: It is YAML that only some readers accept, such as ``{a: 0?}``.
    """
    try:
        walk = _Walk(text, file)
        first = next(walk.events, None)
        root = None if first is None else walk.span(first)
        return Layout(root, walk.aliases, [] if is_json(file) else _comments(text))
    except yaml.YAMLError as problem:
        raise translated(problem, text, file) from None


class _Walk:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        # The pure Python parser: its marks count characters, as slices do.
        parsed = yaml.parse(text, Loader=yaml.SafeLoader)
        events = json_events(text, file) if is_json(file) else parsed
        self.events: Iterator[Any] = (one for one in events if isinstance(one, _CONTENT))
        self.aliases: set[str] = set()

    def span(self, event: Any) -> Span:
        start, end, anchor = event.start_mark.index, event.end_mark.index, event.anchor
        if isinstance(event, AliasEvent):
            made = Span("alias", start, start)
            made.end = end
            self.aliases.add(anchor)
            return made
        has_properties = anchor is not None or event.tag is not None
        properties = _PROPERTIES.match(self.text, start) if has_properties else None
        body = properties.end() if properties else start
        build = self.scalar if isinstance(event, ScalarEvent) else self.collection
        made = build(event, start, body)
        made.anchor = anchor
        return made

    def scalar(self, event: Any, start: int, body: int) -> Span:
        made = Span("scalar", start, body)
        made.style = event.style
        end = event.end_mark.index
        # The blank lines after a block scalar do not belong to its value.
        made.end = len(self.text[:end].rstrip()) if event.style in ("|", ">") else end
        made.body = min(body, made.end)
        return made

    def collection(self, event: Any, start: int, body: int) -> Span:
        is_mapping = isinstance(event, MappingStartEvent)
        made = Span("mapping" if is_mapping else "list", start, body)
        made.in_blocks = not event.flow_style
        while not isinstance(inner := next(self.events), CollectionEndEvent):
            if not is_mapping:
                made.items.append(self.span(inner))
                made.end = made.items[-1].end
                continue
            child = self.span(next(self.events))
            child.key_start, child.key_end = inner.start_mark.index, inner.end_mark.index
            made.end = max(child.end, child.key_end + 1)
            if not (inner.value == "<<" and inner.implicit[0]):
                made.entries[inner.value] = child
        if not made.in_blocks:
            closing: Any = inner.end_mark
            made.end = closing.index
        return made


# All events but those of streams and documents.
_CONTENT = (NodeEvent, CollectionEndEvent)


def _comments(text: str) -> list[str]:
    """The comments: every text after a ``#`` between tokens."""
    found, end = [], 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        start = token.start_mark.index
        gap = text[end:start]
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            gap += "\n" + text[start:].partition("\n")[0]
        found += [line[line.index("#") :].rstrip() for line in gap.splitlines() if "#" in line]
        end = max(end, token.end_mark.index)
    return found


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
    text: str, file: str, layout: Layout, path: Sequence[str], new: NewValue
) -> Iterator[str]:
    """Texts in which the value at ``path`` is replaced or added, best layout first.

    Raises:
        FdlError: A value on the path cannot hold keys, or an anchor makes it part of several
            places.
    """
    write = _Json(text) if is_json(file) else _Yaml(text)
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
        column = self._column(span.body)
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
