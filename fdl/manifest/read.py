"""Read the file of a manifest: JSON if its name says so, else YAML."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from fdl.manifest.node import Node
from fdl.manifest.source import (
    MAX_DEPTH,
    MAX_DIGITS,
    key_problem,
    position,
    read_text,
    refusal,
    refusal_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.base.errors import ManifestError
    from fdl.manifest.node import Scalar, Value

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
    if is_json(file):
        root = read_json(text, file)
    else:
        from fdl.manifest.read_yaml import read_yaml

        root = read_yaml(text, file)
    if root.value is None:
        return Node({}, file, root.line, root.column)
    if not isinstance(root.value, dict):
        problem = f"a manifest must be a mapping of keys, not {_KINDS[type(root.value)]}"
        hint = "begin with `commands:` and indent the commands below it"
        raise refusal_of(root, problem, hint)
    return root


TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(text: str, file: str) -> Node:
    """The document as a tree; an empty document is an empty mapping.

    Raises:
        ManifestError: Broken JSON, duplicate keys, nesting or size beyond the limits.
    """
    if not text.strip():
        return Node({}, file, 1, 1)
    builder = _Builder(text, file)
    builder.check_depth()
    try:
        json.loads(text, parse_int=str)
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg}"
        hint = "JSON has no comments, trailing commas or single quotes; fdl.yml may have them"
        raise refusal(file, error.lineno, error.colno, problem, hint) from None
    return builder.value(next(builder.tokens))


class _Builder:
    """Walks the tokens of a text that is known to be JSON."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.tokens: Iterator[re.Match[str]] = TOKEN.finditer(text)
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def check_depth(self) -> None:
        """Refuse too much depth before parsing: the standard parser recurses."""
        depth = 0
        for token in TOKEN.finditer(self.text):
            depth += (token[0] in "{[") - (token[0] in "}]")
            if depth > MAX_DEPTH:
                raise self.refusal(token, f"nested deeper than {MAX_DEPTH} levels", "flatten it")

    def value(self, token: re.Match[str]) -> Node:
        line, column = self.place(token)
        value: Value
        if token[0] == "{":
            value = self.mapping()
        elif token[0] == "[":
            value = self.sequence()
        else:
            value = self.scalar(token)
        return Node(value, self.file, line, column)

    def mapping(self) -> dict[str, Node]:
        children: dict[str, Node] = {}
        while (token := next(self.tokens))[0] != "}":
            if token[0] == ",":
                continue
            key = str(self.scalar(token))
            line, column = self.place(token)
            if problem := key_problem(key):
                raise self.refusal(token, problem, "give it a short name")
            if key in children:
                problem = f"duplicate key `{key}`: line {children[key].key_line} already has it"
                raise self.refusal(token, problem, "keep one of the two")
            next(self.tokens)
            child = self.value(next(self.tokens))
            child.key_line, child.key_column = line, column
            children[key] = child
        return children

    def sequence(self) -> list[Node]:
        items: list[Node] = []
        while (token := next(self.tokens))[0] != "]":
            if token[0] != ",":
                items.append(self.value(token))
        return items

    def scalar(self, token: re.Match[str]) -> Scalar:
        text = token[0]
        if text in ("NaN", "Infinity", "-Infinity"):
            raise self.refusal(token, f"`{text}` is not valid JSON", "JSON numbers are finite")
        if len(text) > MAX_DIGITS and text[0] != '"':
            problem = f"a number of {len(text)} digits is too long"
            raise self.refusal(token, problem, "quote it if it is text")
        value: Scalar = json.loads(text)
        if isinstance(value, str):
            if "\0" in value:
                problem = "text cannot hold a NUL character: no program can receive one"
                raise self.refusal(token, problem, "remove the `\\u0000`")
            if _SURROGATE.search(value):
                hint = "a character beyond U+FFFF is written as two escapes, high then low"
                raise self.refusal(token, "half of a surrogate pair stands alone", hint)
        return value

    def place(self, token: re.Match[str]) -> tuple[int, int]:
        line = bisect_right(self.line_starts, token.start())
        return line, token.start() - self.line_starts[line - 1] + 1

    def refusal(self, token: re.Match[str], problem: str, hint: str) -> ManifestError:
        return refusal(self.file, *position(self.text, token.start()), problem, hint)
