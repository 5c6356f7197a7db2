"""The text of a manifest: bytes on disk -> checked characters, and the refusals on the way."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from fdl.errors import ManifestError
from fdl.manifest.node import relative

MAX_BYTES = 1 << 20
MAX_DEPTH = 100
MAX_VALUES = 20_000
# Shorter than the 1024 characters YAML grants a key even when every character is escaped.
MAX_KEY = 100

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def refusal(file: str, line: int, column: int, problem: str, hint: str = "") -> ManifestError:
    """The error for one place of a file, which is shown relative to the working directory."""
    return ManifestError(f"{shown(file)}:{line}:{column}: {problem}", hint=hint)


def shown(file: str) -> str:
    """A path the way the user can click or type it from where they stand."""
    return relative(file, ".")


def read_text(file: str) -> str:
    """The characters of a manifest, without a byte order mark.

    Raises:
        ManifestError: The file is missing, unreadable, no regular file, too long, not UTF-8, or
            holds control characters.
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
    """Why a key cannot name anything, or None."""
    if not key:
        return "an empty key names nothing"
    if "\0" in key:
        return "a key cannot hold a NUL character"
    if len(key) > MAX_KEY:
        return f"a key of {len(key)} characters is too long (at most {MAX_KEY})"
    return None


def _read_bytes(file: str) -> bytes:
    path = Path(file)
    name = shown(file)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            hint = (
                "remove or rename it; Docker makes such a directory when it mounts a missing file"
            )
            raise ManifestError(f"{name}: is a directory, not a file", hint=hint)
        if not stat.S_ISREG(mode):
            # Opening a pipe would wait for a writer that may never come.
            raise ManifestError(f"{name}: is not a regular file", hint="put a plain file there")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            problem = f"{name}: is a link to {path.readlink()}, which does not exist"
            raise ManifestError(problem, hint="repair or remove the link") from None
        raise ManifestError(f"{name}: does not exist any more", hint="restore it") from None
    except OSError as error:
        problem = f"{name}: cannot be read: {error.strerror}"
        raise ManifestError(problem, hint=f"check its permissions: ls -l {name}") from None
    if len(data) > MAX_BYTES:
        problem = f"{name}: is larger than {MAX_BYTES >> 20} MiB, too large for a manifest"
        raise ManifestError(problem, hint="check that it is the file you mean")
    return data
