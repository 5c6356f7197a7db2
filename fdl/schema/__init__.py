"""What a program says about its own arguments, as fdl knows it.

A schema comes from the program itself (``--fdl-schema``, remembered in a cache beside the
manifest) or from the manifest's ``schema:``. Imported on the warm path.
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
    """The schema of a level's entry as far as it is known already; starts nothing.

    Raises:
        ManifestError: The manifest's own ``schema:`` makes no sense.
    """
    if level.entry is None:
        return None
    record = fetch(level)
    return record.schema if record and record.schema else _inline(level)


def learn(level: Level, surroundings: Surroundings | None = None) -> Schema | None:
    """The schema of a level's entry, asking the program when that is allowed.

    A program that cannot answer is no error: the manifest's own ``schema:`` stands in.

    Args:
        level: The command.
        surroundings: Where the program is taken to run; looked up when omitted.

    Raises:
        ManifestError: The manifest's own ``schema:`` makes no sense.
    """
    if level.entry is None:
        return None
    record = fetch(level)
    if record is None:
        from fdl.schema.consent import may_ask

        if may_ask(level):
            from fdl.errors import FdlError
            from fdl.schema.probe import refresh

            try:
                return refresh(level, surroundings)
            except FdlError:
                return _inline(level)
    return record.schema if record and record.schema else _inline(level)


def failure(level: Level) -> str:
    """Why the program of a level could not be asked last time; empty when nothing went wrong."""
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
