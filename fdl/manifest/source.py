"""The text of a manifest: from bytes on disk to characters, scalars and a tree.

Only ``true`` and ``false`` are booleans, ``1e-3`` is a number, dates and ``12:30`` are text: the
YAML 1.2 core schema, https://yaml.org/spec/1.2.2/#103-core-schema.
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH114, PTH115, PTH116, PTH123
from __future__ import annotations

import os
import re
import stat

from fdl.base.errors import ManifestError
from fdl.manifest.node import Node, relative

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.node import Scalar


_MAX_BYTES = 1 << 20
MAX_DEPTH = 100
MAX_VALUES = 20_000
# YAML allows 1024 characters for a key. This limit holds even if every character is escaped.
MAX_KEY = 100

# The characters that YAML forbids, without surrogates, which UTF-8 cannot hold. A pattern of all
# allowed characters would take longer to compile than the file takes to read.
_UNPRINTABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")

# Blanks that word processors and web pages put in place of a plain one.
_NO_BREAK = "\xa0"
_ODD = f"[{_NO_BREAK}\u1680\u2000-\u200b\u202f\u205f\u3000]"
_ODD_SPACE, _ODD_PLACE = re.compile(_ODD), re.compile(f"^-?{_ODD}|:{_ODD}")


def refusal(file: str, line: int, column: int, problem: str, hint: str = "") -> ManifestError:
    """The error for one place of a file. The path is relative to the working directory."""
    return ManifestError(f"{shown(file)}:{line}:{column}: {problem}", hint=hint)


def refusal_of(node: Node, problem: str, hint: str) -> ManifestError:
    """The error for one value."""
    return refusal(node.file, node.line, node.column, problem, hint)


def shown(file: str) -> str:
    """The path to print, so that the user can click or type it from the working directory."""
    return relative(file, ".")


def read_text(file: str) -> str:
    """The characters of a manifest, without a byte order mark.

    Raises:
        ManifestError: The file is missing, unreadable, not a regular file, too long, not UTF-8,
            or holds control characters.
    """
    data = _read_bytes(file).removeprefix(b"\xef\xbb\xbf")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise refusal(file, 1, 1, "the file is UTF-16, not UTF-8", "save it as UTF-8")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        head = data[: error.start].decode(errors="replace")
        line, column = position(head, len(head))
        problem = f"byte 0x{data[error.start]:02x} is not valid UTF-8"
        raise refusal(file, line, column, problem, "save the file as UTF-8") from None
    if bad := _UNPRINTABLE.search(text):
        line, column = position(text, bad.start())
        problem = f"control character U+{ord(bad[0]):04X} is not allowed"
        hint = "remove it, or write it as an escape between double quotes"
        raise refusal(file, line, column, problem, hint)
    return text


def position(text: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def key_problem(key: str) -> str | None:
    """Why a key cannot be a name, or None."""
    if not key:
        return "an empty key names nothing"
    if "\0" in key:
        return "a key cannot hold a NUL character"
    if len(key) > MAX_KEY:
        return f"a key of {len(key)} characters is too long (at most {MAX_KEY})"
    return None


def odd_space(text: str, *, key: bool) -> str:
    """A blank that YAML takes for a letter, in words; empty without one.

    In a value only one counts that would end a key or begin an item, were it a plain one.
    """
    found = (_ODD_SPACE if key else _ODD_PLACE).search(text)
    if found is None:
        return ""
    odd = found[0][-1]
    return f"a {'non-breaking ' if odd == _NO_BREAK else ''}space (U+{ord(odd):04X})"


def _read_bytes(file: str) -> bytes:
    name = shown(file)
    try:
        mode = os.stat(file).st_mode
        if stat.S_ISDIR(mode):
            hint = (
                "remove or rename it; Docker makes such a directory when it mounts a missing file"
            )
            raise ManifestError(f"{name}: is a directory, not a file", hint=hint)
        if not stat.S_ISREG(mode):
            # Opening a pipe would wait for a writer, maybe forever.
            raise ManifestError(f"{name}: is not a regular file", hint="put a plain file there")
        with open(file, "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        if os.path.islink(file):
            problem = f"{name}: is a link to {os.readlink(file)}, which does not exist"
            raise ManifestError(problem, hint="repair or remove the link") from None
        raise ManifestError(f"{name}: does not exist any more", hint="restore it") from None
    except OSError as error:
        problem = f"{name}: cannot be read: {error.strerror}"
        raise ManifestError(problem, hint=f"check its permissions: ls -l {name}") from None
    if len(data) > _MAX_BYTES:
        problem = f"{name}: is larger than {_MAX_BYTES >> 20} MiB, too large for a manifest"
        raise ManifestError(problem, hint="check that it is the file you mean")
    return data


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
