"""Node tree -> the text of ``fdl config show``: YAML with the origin of every leaf."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from fdl.manifest.node import Node, dotted, relative
from fdl.manifest.scalars import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.manifest.node import Scalar

_INLINE_WIDTH = 80
_MIN_BODY = 12

# Words that other YAML readers take for something else than text.
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "=", "<<"))
_NUMERIC = re.compile(r"[-+.]*[0-9][0-9a-fA-FoOxX_.eE+-]*")
_INDICATORS = "-?:,[]{}#&*!|>'\"%@` \t"
# PyYAML ends a plain word inside brackets at the first of these.
_FLOW_INDICATORS = ",:?[]{}"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def show(root: Node, directory: str) -> str:
    """The manifest as YAML that reads back to the same values.

    Args:
        root: A manifest's root mapping.
        directory: The project root, to which the origins are relative.

    Returns:
        Lines ending in ``# file:line``, one comment per leaf, all in one column.
    """
    lines = list(_lines(root, "", None))
    width = max(_MIN_BODY, *(len(body) for body, leaf in lines if leaf))
    text = ""
    for body, leaf in lines:
        comment = f"  # {relative(leaf.file, directory)}:{leaf.line}" if leaf else ""
        text += f"{body.ljust(width) if leaf else body}{comment}\n"
    return text


def records(root: Node, directory: str) -> list[dict[str, object]]:
    """The leaves as JSON data: path, value, and where each was written."""
    return [
        {
            "path": dotted(path),
            "value": _json_value(leaf.plain()),
            "file": relative(leaf.file, directory),
            "line": leaf.line,
            "column": leaf.column,
            "overrides": [],
        }
        for path, leaf in root.leaves()
        if path
    ]


def _lines(node: Node, indent: str, name: str | None) -> Iterator[tuple[str, Node | None]]:
    """Body and leaf of every line below ``name``; the leaf is None where no origin is shown."""
    head = "" if name is None else f"{indent}{quoted(name)}:"
    value = node.value
    if isinstance(value, dict) and value:
        if name is not None:
            yield head, None
            indent += "  "
        for key, child in value.items():
            yield from _lines(child, indent, key)
        return
    body = f"{head} {_flow(node)}".lstrip() if name is None else f"{head} {_flow(node)}"
    scalars = isinstance(value, list) and not any(
        isinstance(item.value, dict | list) for item in value
    )
    if not isinstance(value, list) or not value or (scalars and len(body) <= _INLINE_WIDTH):
        yield body, node
        return
    yield head, node
    for item in value:
        yield f"{indent}  - {_flow(item, inside=not scalars)}", None


def _flow(node: Node, *, inside: bool = False) -> str:
    """A value on one line; ``inside`` a list or mapping, more characters need quotes."""
    value = node.value
    if isinstance(value, dict):
        entries = (f"{quoted(k, inside=True)}: {_flow(v, inside=True)}" for k, v in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_flow(item, inside=True) for item in value)}]"
    return scalar(value, inside=inside)


def scalar(value: Scalar, *, inside: bool = False) -> str:
    """A scalar as YAML 1.1 and 1.2 readers both understand it."""
    if isinstance(value, str):
        return quoted(value, inside=inside)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if math.isnan(value):
            return ".nan"
        if math.isinf(value):
            return ".inf" if value > 0 else "-.inf"
        digits, exponent, power = repr(value).partition("e")
        # Without a point YAML 1.1 reads `1e-05` as text.
        return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"
    return str(value)


def quoted(text: str, *, inside: bool = False) -> str:
    """Text, between double quotes only when it would not read back as the same text."""
    if not _ambiguous(text) and not (inside and any(char in _FLOW_INDICATORS for char in text)):
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _ambiguous(text: str) -> bool:
    return (
        not text
        or text[0] in _INDICATORS
        or text[-1].isspace()
        or text.startswith("...")
        or any(char in ":#'\"" or not char.isprintable() for char in text)
        or text.lower() in _WORDS
        or _NUMERIC.fullmatch(text) is not None
        or not isinstance(resolve(text), str)
    )


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_value(value: object) -> object:
    """JSON has no infinities: they appear as the text YAML writes for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return scalar(value)
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    return value
