"""Whether a program may be started just to learn about its arguments.

A program that has never heard of ``--fdl-schema`` might begin a training instead of answering, so
it is asked only when its own text or its manifest says that it knows the flag.
"""

# The paths of a Level are strings.
# ruff: noqa: PTH119
from __future__ import annotations

import os

from fdl.dispatch.walk import Level
from fdl.schema.contract import PROBE_VARIABLE
from fdl.schema.program import content, named_files, script, words

MARKS = (b"FdlArgs", b"DdpArgs", b"--fdl-schema", b"fdl.args")
"""What a program's text says when it can describe itself."""

SLOW = frozenset(("cargo", "uv", "poetry", "pdm", "hatch", "torchrun", "accelerate"))
"""First words of entries that may build, resolve or spawn before they answer."""


def may_ask(level: Level) -> bool:
    """Whether a page that merely wants to show the options may start the program."""
    # A program that is being asked itself must not set off further questions.
    if os.environ.get(PROBE_VARIABLE):
        return False
    if _declared(level):
        return True
    file = script(level)
    return not is_slow(level) and file is not None and _mentions(file)


def invites(level: Level) -> bool:
    """Whether the program can be expected to answer, however long it may take."""
    return _declared(level) or any(_mentions(file) for file in named_files(level))


def is_slow(level: Level) -> bool:
    """Whether the entry starts a tool that may take its time."""
    return os.path.basename(next(iter(words(level)), "")) in SLOW


def _declared(level: Level) -> bool:
    node = level.manifest.node.get("compile")
    return node is not None and node.value is True


def _mentions(file: str) -> bool:
    text = content(file)
    return any(mark in text for mark in MARKS)
