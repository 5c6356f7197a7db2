"""What fdl knows about the arguments of a program.

A schema comes from the program itself (``--fdl-schema``, kept in a cache beside the manifest) or
from the manifest's ``schema:``. Imported on the warm path.
"""

from __future__ import annotations

from fdl.schema.cache import fetch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.dispatch.planner import Surroundings
    from fdl.dispatch.walk import Level
    from fdl.schema.contract import Schema

__all__ = ["failure", "known", "learn"]


def known(level: Level) -> Schema | None:
    """The schema of a level's entry, if it is already known. Starts nothing.

    Raises:
        ManifestError: The manifest's own ``schema:`` is invalid.
    """
    if level.entry is None:
        return None
    record = fetch(level)
    return record.schema if record and record.schema else _inline(level)


def learn(level: Level, surroundings: Surroundings | None = None) -> Schema | None:
    """The schema of a level's entry. Asks the program, in ``surroundings``, if that is allowed.

    A program that cannot answer is not an error: the manifest's own ``schema:`` is used instead.

    Raises:
        ManifestError: The manifest's own ``schema:`` is invalid.
    """
    if level.entry is None:
        return None
    record = fetch(level)
    if record is None:
        from fdl.schema.consent import may_ask

        if may_ask(level):
            from contextlib import suppress

            from fdl.errors import FdlError
            from fdl.schema.probe import refresh

            with suppress(FdlError):
                return refresh(level, surroundings)
    return record.schema if record and record.schema else _inline(level)


def failure(level: Level) -> str:
    """Why the last request to the program of a level failed; empty if it did not fail."""
    record = fetch(level) if level.entry else None
    return record.problem if record else ""


def _inline(level: Level) -> Schema | None:
    """The manifest's ``schema:``."""
    node = level.manifest.node.get("schema")
    if node is None:
        return None
    from fdl.schema.contract import ContractError, parse

    try:
        return parse(node.plain(), closed=True)
    except ContractError as problem:
        from fdl.errors import ManifestError
        from fdl.manifest import origin

        place = origin(problem.find(node), level.root)
        raise ManifestError(
            f"{place}: in `schema`: {problem}", hint="correct it, or remove `schema`"
        ) from None
