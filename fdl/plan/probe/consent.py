"""Whether fdl may start a program only to learn its arguments.

A program that does not know ``--fdl-schema`` might start a training instead of answering. So fdl
asks by itself only if the program's own text shows that it knows the flag. ``compile: true`` of a
manifest is not enough in a fresh clone: the user consents once per project by typing
``fdl self schema refresh CMD`` or ``fdl CMD --refresh-schema``.
"""

# The paths of a Level are strings.
# ruff: noqa: PTH110, PTH118, PTH119
from __future__ import annotations

import os

from fdl.manifest.select.level import Level
from fdl.programs.parameters.contract import PROBE_VARIABLE
from fdl.programs.schema.program import content, named_files, script, words

MARKS = (b"FdlArgs", b"DdpArgs", b"--fdl-schema", b"fdl.programs.args")
"""Texts in a program's source that show that it can describe itself."""

SLOW = frozenset(("cargo", "uv", "poetry", "pdm", "hatch", "torchrun", "accelerate"))
"""First words of entries that may build, resolve or start something before they answer."""


_CONSENT = b"fdl may ask the programs of this project for their arguments.\n"


def may_ask(level: Level) -> bool:
    """Whether a page that only shows the options may start the program."""
    # A program that is being asked must not start further requests.
    if os.environ.get(PROBE_VARIABLE):
        return False
    if _declared(level) and os.path.exists(_consent(level)):
        return True
    file = script(level)
    return not is_slow(level) and file is not None and _mentions(file)


def invites(level: Level) -> bool:
    """Whether the program is expected to answer, at any speed."""
    return _declared(level) or any(_mentions(file) for file in named_files(level))


def agree(level: Level) -> None:
    """Remember that the user lets fdl ask the programs of this project."""
    from contextlib import suppress

    from fdl.base.files import put_own
    from fdl.manifest.cache import make_folder

    with suppress(OSError):
        make_folder(os.path.join(level.root, ".fdl"))
        put_own(level.root, _consent(level), _CONSENT)


def _consent(level: Level) -> str:
    return os.path.join(level.root, ".fdl", "may-ask-programs")


def is_slow(level: Level) -> bool:
    """Whether the entry starts a tool that may be slow."""
    return os.path.basename(next(iter(words(level)), "")) in SLOW


def _declared(level: Level) -> bool:
    node = level.manifest.node.get("compile")
    return node is not None and node.value is True


def _mentions(file: str) -> bool:
    text = content(file)
    return any(mark in text for mark in MARKS)
