"""The scalars of the YAML 1.2 core schema: what unquoted text means.

Only ``true`` and ``false`` are booleans, ``1e-3`` is a number, dates and ``12:30`` are text. See
https://yaml.org/spec/1.2.2/#103-core-schema.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.node import Scalar

# Python converts numbers of at most 4300 digits. A number beyond this limit is a mistake.
MAX_DIGITS = 1000

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")


def resolve(text: str) -> Scalar:
    """The value of an unquoted scalar.

    Raises:
        ValueError: A whole number of more than ``MAX_DIGITS`` digits.
    """
    if text in _WORDS:
        return _WORDS[text]
    for pattern, base in ((_INTEGER, 10), (_OCTAL, 8), (_HEXADECIMAL, 16)):
        if pattern.fullmatch(text):
            if len(text) > MAX_DIGITS:
                raise ValueError(f"a number of {len(text)} digits is too long")
            return int(text if base == 10 else text[2:], base)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY.fullmatch(text):
        return float(text.replace(".", ""))
    if _NAN.fullmatch(text):
        return float("nan")
    return text
