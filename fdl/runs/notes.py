"""Tags and the note of a run: ``notes.json`` in its directory.

They have a file of their own, so that no program that writes the run is disturbed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base.errors import FdlError, UsageError
from fdl.base.masking import KNOWN
from fdl.base.own_files import open_own, put_own
from fdl.runs.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable

NOTES = "notes.json"

_TAG = re.compile(r"[^\W_][\w.+-]*")
_TIME = re.compile(r"\d{4}-\d\d")


class Notes(NamedTuple):
    """What people wrote about a run."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read(folder: Path) -> Notes:
    """The notes of a run; empty without a readable file."""
    content = read_json(folder / NOTES) or {}
    tags, note = content.get("tags"), content.get("note")
    listed = tags if isinstance(tags, list) else []
    return Notes(
        tuple(dict.fromkeys(tag for tag in listed if isinstance(tag, str))),
        note if isinstance(note, str) else "",
    )


def require_tag(word: str) -> str:
    """Return ``word`` if it can be a tag.

    Raises:
        UsageError: It has other characters, or looks like a run.
    """
    if not _TAG.fullmatch(word) or word == "last" or _TIME.match(word):
        raise UsageError(
            f"`{word}` is neither a run nor a tag",
            hint="a tag has letters, digits and . _ + - only, and is not a time or `last`",
        )
    return word


def change(
    folder: Path,
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    note: str | None = None,
) -> Notes:
    """Change the notes of a run in one step.

    Args:
        folder: The run.
        add: Tags to add behind the others.
        remove: Tags to remove; those that it does not have are ignored.
        note: The new note; empty removes it, None keeps it.

    Returns:
        The notes of the run from now on.

    Raises:
        FdlError: The file is damaged, has changed meanwhile or cannot be written.
    """
    from fdl.base.rewrite import rewrite

    file = folder / NOTES
    old, content = _content(file)
    before = read(folder)
    gone = set(remove)
    after = Notes(
        tuple(tag for tag in dict.fromkeys((*before.tags, *add)) if tag not in gone),
        before.note if note is None else note,
    )
    if after == before:
        return after
    content.update(tags=KNOWN.texts(list(after.tags)), note=KNOWN.text(after.note))
    new = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    if old is not None:
        rewrite(file, old, new, name=str(file))
        return after
    try:
        put_own(folder, file, new)
    except OSError as problem:
        raise FdlError(
            f"{file} cannot be written: {problem.strerror}",
            hint=f"check the permissions of {folder}",
        ) from None
    return after


def _content(file: Path) -> tuple[bytes | None, dict[str, Any]]:
    """The bytes of the file and its object, whose unknown keys are kept."""
    try:
        with open_own(file) as stream:
            old = stream.read()
    except FileNotFoundError:
        return None, {}
    except OSError as problem:
        raise FdlError(f"{file} cannot be read: {problem.strerror}") from None
    content = read_json(file)
    if content is None:
        raise FdlError(
            f"{file} is damaged: it is not a JSON object",
            hint="restore it from a copy, or remove the file",
        )
    return old, content
