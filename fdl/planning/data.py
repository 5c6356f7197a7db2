"""Values that a program reads as JSON, or evaluates as an expression of Python.

Imported only for an option of such a program.
"""

from __future__ import annotations

from ast import literal_eval
from json import dumps, loads

from fdl.node import Node, Null

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.planning.generate import Section
    from fdl.planning.spelling import Spelling


def as_text(value: object, literal: str) -> str:
    """A value as one word. Text that is such data already is passed unchanged."""
    write, read = (dumps, loads) if literal == "json" else (repr, literal_eval)
    plain = _plain(value)
    if isinstance(plain, str):
        try:
            read(plain)
        except (ValueError, SyntaxError):
            return write(plain)
        return plain
    return write(plain)


def _plain(value: object) -> object:
    if isinstance(value, Node):
        return _plain(value.value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, Null) else value


def gathered(options: Section, spelling: Spelling) -> Iterator[tuple[str, str, Node]]:
    """Key, name of the option and value; a mapping of data is one value under its first key."""
    wholes: dict[str, Node] = {}
    keys: dict[str, tuple[str, Node]] = {}
    for key, node in sorted(options.items()):
        head = "" if spelling.declared(key) else _head(key, spelling)
        if not head:
            keys[key] = key, node
            continue
        if head not in wholes:
            wholes[head] = node.at({})
            keys[key] = head, wholes[head]
        inner = wholes[head].mapping
        *above, last = key.removeprefix(f"{head}.").split(".")
        for word in above:
            inner = inner.setdefault(word, node.at({})).mapping
        inner[last] = node
    return ((key, name, node) for key, (name, node) in keys.items())


def is_part(key: str, spelling: Spelling) -> bool:
    """Whether a dotted key belongs to an option of data."""
    return bool(_head(key, spelling))


def _head(key: str, spelling: Spelling) -> str:
    """The option of data that a dotted key belongs to."""
    words = key.split(".")
    for count in range(1, len(words)):
        head = ".".join(words[:count])
        one = spelling.declared(head)
        if one is not None and one.holds_data:
            return head
    return ""
