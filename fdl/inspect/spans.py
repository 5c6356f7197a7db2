"""The position of every value in a manifest's text, so that one can be replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

_PROPERTIES = re.compile(r"(?:[&!]\S*(?:\s+|\Z))*")
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')


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

    __slots__ = (
        "anchor", "body", "end", "entries", "in_blocks", "items", "key_end", "key_start", "kind",
        "start", "style",
    )  # fmt: skip

    def __init__(self, kind: str, start: int, body: int) -> None:
        self.kind = kind
        self.start = self.key_start = self.key_end = start
        self.body = self.end = body
        self.in_blocks = False
        self.style: str | None = None
        self.anchor: str | None = None
        self.entries: dict[str, Span] = {}
        self.items: list[Span] = []


class Layout:
    """The spans of one text.

    Attributes:
        root: The document; None for an empty one.
        aliases: The anchors that aliases refer to.
        comments: The comments, in file order.
    """

    __slots__ = ("aliases", "comments", "root")

    def __init__(self, root: Span | None, aliases: set[str], comments: list[str]) -> None:
        self.root = root
        self.aliases = aliases
        self.comments = comments


def yaml_layout(text: str) -> Layout:
    """The layout of a text that is known to be a YAML manifest."""
    # The pure Python parser: its marks count characters, as slices do.
    walk = _YamlWalk(text, yaml.parse(text, Loader=yaml.SafeLoader))
    root = walk.document()
    return Layout(root, walk.aliases, _comments(text))


def json_layout(text: str) -> Layout:
    """The layout of a text that is known to be a JSON manifest."""
    tokens = _JSON_TOKEN.finditer(text)
    first = next(tokens, None)
    return Layout(_json_span(first, tokens) if first else None, set(), [])


class _YamlWalk:
    def __init__(self, text: str, events: Iterator[Any]) -> None:
        self.text = text
        self.events = events
        self.aliases: set[str] = set()

    def document(self) -> Span | None:
        events = (event for event in self.events if isinstance(event, _CONTENT))
        self.events = events
        first = next(events, None)
        return None if first is None else self.span(first)

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
        if isinstance(event, ScalarEvent):
            made = self.scalar(event, start, body)
        else:
            made = self.collection(event, start, body)
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
        ending = MappingEndEvent if is_mapping else SequenceEndEvent
        while not isinstance(inner := next(self.events), ending):
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


_CONTENT = (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)


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


def _json_span(token: re.Match[str], tokens: Iterator[re.Match[str]]) -> Span:
    kind = {"{": "mapping", "[": "list"}.get(token[0], "scalar")
    made = Span(kind, token.start(), token.start())
    made.end = token.end()
    if kind == "scalar":
        made.style = '"' if token[0].startswith('"') else None
        return made
    while (inner := next(tokens))[0] not in "}]":
        if inner[0] == ",":
            continue
        if kind == "list":
            made.items.append(_json_span(inner, tokens))
            continue
        next(tokens)
        child = _json_span(next(tokens), tokens)
        child.key_start, child.key_end = inner.start(), inner.end()
        made.entries[_text(inner[0])] = child
    made.end = inner.end()
    return made


def _text(quoted: str) -> str:
    import json

    return str(json.loads(quoted))
