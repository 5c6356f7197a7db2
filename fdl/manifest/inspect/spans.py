"""The position of every value in a manifest's text, so that one can be replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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

from fdl.manifest.read_json import TOKEN

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


def yaml_layout(text: str) -> Layout:
    """The layout of a text that is known to be a YAML manifest."""
    # The pure Python parser: its marks count characters, as slices do.
    walk = _YamlWalk(text)
    first = next(walk.events, None)
    root = None if first is None else walk.span(first)
    return Layout(root, walk.aliases, _comments(text))


def json_layout(text: str) -> Layout:
    """The layout of a text that is known to be a JSON manifest."""
    tokens = TOKEN.finditer(text)
    first = next(tokens, None)
    return Layout(_json_span(first, tokens) if first else None, set(), [])


class _YamlWalk:
    def __init__(self, text: str) -> None:
        self.text = text
        events = yaml.parse(text, Loader=yaml.SafeLoader)
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
        made.entries[json.loads(inner[0])] = child
    made.end = inner.end()
    return made
