"""Values that a program reads as JSON, or evaluates as an expression of Python.

Imported only for an option of such a program.
"""

from __future__ import annotations

from ast import literal_eval
from json import dumps, loads

from fdl.manifest.node import Node, Null


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
