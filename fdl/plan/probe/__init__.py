"""Asking a program for its arguments, with its consent and within limits."""

# pathlib would add to the start of a command.
# ruff: noqa: PTH110, PTH118, PTH119
from __future__ import annotations

import os
from contextlib import suppress

from fdl.base.errors import FdlError
from fdl.base.own_files import put_own
from fdl.base.venv import content
from fdl.manifest.cache import make_folder
from fdl.manifest.select.level import RUN, Level
from fdl.programs.parameters.contract import PROBE_VARIABLE
from fdl.programs.schema import from_source, inline
from fdl.programs.schema.cache import fetch
from fdl.programs.schema.program import named_files, script, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.select.command import Selection
    from fdl.plan.planner import Host
    from fdl.programs.parameters.contract import Schema


def learn_about(selected: Selection, host: Host | None = None) -> None:
    """Learn the schema of a program whose first argument is a word, before its plan is made.

    Only the schema says whether the program takes this word, or whether it is a preset with a slip.
    """
    words = selected.words
    if selected.kind != RUN and words and not words[0].startswith("-"):
        learn(selected.level, host)


def learn(level: Level, host: Host | None = None) -> Schema | None:
    """The schema of a level's entry. Asks the program, in ``host``, if that is allowed.

    It is not asked if its source says all that it could answer.

    A program that cannot answer is not an error: the manifest's own ``schema:`` is used instead.

    Raises:
        ManifestError: The manifest's own ``schema:`` is invalid.
    """
    if level.entry is None:
        return None
    record = fetch(level)
    if record and record.schema:
        return record.schema
    is_written = level.manifest.node.get("schema") is not None
    read = None if is_written else from_source(level, keep=False)
    if record is None and not (read and read.whole) and may_ask(level):
        from fdl.plan.probe.question import refresh

        with suppress(FdlError):
            return refresh(level, host)
    return inline(level) or read


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
    return not _is_slow(level) and file is not None and _mentions(file)


def invites(level: Level) -> bool:
    """Whether the program is expected to answer, at any speed."""
    return _declared(level) or any(_mentions(file) for file in named_files(level))


def agree(level: Level) -> None:
    """Remember that the user lets fdl ask the programs of this project."""
    with suppress(OSError):
        make_folder(os.path.join(level.root, ".fdl"))
        put_own(level.root, _consent(level), _CONSENT)


def _consent(level: Level) -> str:
    return os.path.join(level.root, ".fdl", "may-ask-programs")


def _is_slow(level: Level) -> bool:
    """Whether the entry starts a tool that may be slow."""
    return os.path.basename(next(iter(words(level)), "")) in SLOW


def _declared(level: Level) -> bool:
    node = level.manifest.node.get("compile")
    return node is not None and node.value is True


def _mentions(file: str) -> bool:
    text = content(file)
    return any(mark in text for mark in MARKS)
