"""Asking a program for its arguments, with its consent and within limits."""

from __future__ import annotations

from fdl.schema import from_source, inline
from fdl.schema.cache import fetch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.parameters.contract import Schema
    from fdl.planning.planner import Host
    from fdl.select.level import Level


def learn(level: Level, host: Host | None = None) -> Schema | None:
    """The schema of a level's entry. Asks the program, in ``host``, if that is allowed.

    A program that cannot answer is not an error: the manifest's own ``schema:`` is used instead.

    Raises:
        ManifestError: The manifest's own ``schema:`` is invalid.
    """
    if level.entry is None:
        return None
    record = fetch(level)
    if record is None:
        from fdl.probe.consent import may_ask

        if may_ask(level):
            from contextlib import suppress

            from fdl.errors import FdlError
            from fdl.probe.question import refresh

            with suppress(FdlError):
                return refresh(level, host)
    if record and record.schema:
        return record.schema
    return inline(level) or from_source(level, keep=False)
