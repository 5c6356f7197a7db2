"""Asking a program for its arguments, with its consent and within limits."""

from __future__ import annotations

from fdl.manifest.select.classify import RUN
from fdl.programs.schema import from_source, inline
from fdl.programs.schema.cache import fetch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level
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
    if record is None and not (read and read.whole):
        from fdl.plan.probe.consent import may_ask

        if may_ask(level):
            from contextlib import suppress

            from fdl.base.errors import FdlError
            from fdl.plan.probe.question import refresh

            with suppress(FdlError):
                return refresh(level, host)
    return inline(level) or read
