"""Read the file of a manifest: JSON if its name says so, else YAML."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from yaml.error import Mark
from yaml.events import (
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from fdl.manifest.node import Node
from fdl.manifest.read_yaml import read_yaml, tree
from fdl.manifest.source import (
    MAX_DEPTH,
    MAX_DIGITS,
    position,
    read_text,
    refusal,
    refusal_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_KINDS = {list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}


def read(file: str) -> Node:
    """Read ``file`` into a tree whose root is always a mapping.

    Raises:
        ManifestError: The file cannot be read, is broken, or is not a mapping.
    """
    return parse(read_text(file), file)


def is_json(file: str) -> bool:
    """Whether the name of a manifest says that it is JSON."""
    return file.removesuffix(".example").removesuffix(".dist").endswith(".json")


def parse(text: str, file: str) -> Node:
    """Parse a text that is, or would be, the content of ``file``.

    The text is JSON if the name says so (before ``.example`` or ``.dist``), else YAML. An empty
    document, or one that is only ``null``, is an empty mapping.

    Raises:
        ManifestError: The text is broken, or is not a mapping.
    """
    root = read_json(text, file) if is_json(file) else read_yaml(text, file)
    if root.value is None:
        return Node({}, file, root.line, root.column)
    if not isinstance(root.value, dict):
        problem = f"a manifest must be a mapping of keys, not {_KINDS[type(root.value)]}"
        hint = "begin with `commands:` and indent the commands below it"
        raise refusal_of(root, problem, hint)
    return root


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENDS = {"}": MappingEndEvent, "]": SequenceEndEvent}
_STARTS = {"{": MappingStartEvent, "[": SequenceStartEvent}


def read_json(text: str, file: str) -> Node:
    """The document as a tree; an empty document is an empty mapping.

    Raises:
        ManifestError: Broken JSON, duplicate keys, nesting or size beyond the limits.
    """
    if not text.strip():
        return Node({}, file, 1, 1)
    _refuse_depth(text, file)
    try:
        json.loads(text, parse_int=str)
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg}"
        hint = "JSON has no comments, trailing commas or single quotes; fdl.yml may have them"
        raise refusal(file, error.lineno, error.colno, problem, hint) from None
    return tree(json_events(text, file), file)


def _refuse_depth(text: str, file: str) -> None:
    """Refuse too much depth before parsing: the standard parser recurses."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "{[") - (token[0] in "}]")
        if depth > MAX_DEPTH:
            place = position(text, token.start())
            raise refusal(file, *place, f"nested deeper than {MAX_DEPTH} levels", "flatten it")


def json_events(text: str, file: str) -> Iterator[Any]:
    """The values of a text that is known to be JSON, as a parser of YAML tells them.

    Raises:
        ManifestError: A value that a manifest cannot hold.
    """
    lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def mark(index: int) -> Mark:
        line = bisect_right(lines, index) - 1
        return Mark(file, index, line, index - lines[line], None, 0)

    for token in _TOKEN.finditer(text):
        word, start, end = token[0], mark(token.start()), mark(token.end())
        if word in _STARTS:
            yield _STARTS[word](None, None, True, start, end, flow_style=True)
        elif word in _ENDS:
            yield _ENDS[word](start, end)
        elif word not in ",:":
            if refused := _problem(word):
                raise refusal(file, start.line + 1, start.column + 1, *refused)
            quoted = word[0] == '"'
            value = json.loads(word) if quoted else word
            style = '"' if quoted else None
            yield ScalarEvent(None, None, (not quoted, quoted), value, start, end, style)


def _problem(word: str) -> tuple[str, str] | None:
    """Why a manifest cannot hold a scalar of JSON, and what to do; None if it can."""
    if word in ("NaN", "Infinity", "-Infinity"):
        return f"`{word}` is not valid JSON", "JSON numbers are finite"
    if word[0] != '"':
        is_long = len(word) > MAX_DIGITS
        problem = f"a number of {len(word)} digits is too long"
        return (problem, "quote it if it is text") if is_long else None
    text = json.loads(word)
    if "\0" in text:
        problem = "text cannot hold a NUL character: no program can receive one"
        return problem, "remove the `\\u0000`"
    if _SURROGATE.search(text):
        hint = "a character beyond U+FFFF is written as two escapes, high then low"
        return "half of a surrogate pair stands alone", hint
    return None
