"""What fdl knows about the arguments of a program, and the subcommand that a command line selects.

A schema comes from the program itself (``--fdl-schema``), else from the manifest's ``schema:``,
else from the program's source, which is read and not run. The first and the last are cached beside
the manifest. Imported on the warm path.
"""

from __future__ import annotations

from fdl.programs.parameters.contract import ContractError, parse
from fdl.programs.schema.cache import SOURCES, fetch, stamps, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.select.level import Level
    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter

__all__ = ["failure", "known", "select"]


def known(level: Level, *, keep: bool = False) -> Schema | None:
    """The schema of a level's entry, as far as it is known without starting the program.

    With ``keep``, what was read from the program's source is cached for the next call.

    Raises:
        ManifestError: The manifest's own ``schema:`` is invalid.
    """
    if level.entry is None:
        return None
    record = fetch(level)
    if record and record.schema:
        return record.schema
    return inline(level) or from_source(level, keep=keep)


def failure(level: Level) -> str:
    """Why the last request to the program of a level failed; empty if it did not fail."""
    record = fetch(level) if level.entry else None
    return record.problem if record else ""


def from_source(level: Level, *, keep: bool) -> Schema | None:
    """What the source of the program declares."""
    record = fetch(level, SOURCES)
    if record is not None:
        return record.schema
    from fdl.programs.source import read

    document, files = read(level)
    try:
        schema = parse(document, source="source") if document is not None else None
    except ContractError:
        # The source declares what no schema can hold; the program itself knows better.
        document, schema = None, None
    # While an example is used in place of the manifest, nothing is written beside it.
    # A script that does not exist yet may appear; a command on the PATH declares nothing here.
    entry = str(level.entry.value) if level.entry else ""
    settled = files or not (".py" in entry or "-m " in entry)
    if keep and settled and not level.manifest.found.is_example:
        store(level, document, "" if schema else "nothing", stamps(level, files), SOURCES)
    return schema


def inline(level: Level) -> Schema | None:
    """The manifest's ``schema:``."""
    node = level.manifest.node.get("schema")
    if node is None:
        return None
    try:
        return parse(node.plain(), closed=True)
    except ContractError as problem:
        from fdl.base.errors import ManifestError
        from fdl.manifest.node import origin

        place = origin(problem.find(node), level.root)
        raise ManifestError(
            f"{place}: in `schema`: {problem}", hint="correct it, or remove `schema`"
        ) from None


def select(schema: Schema, words: Sequence[str]) -> tuple[Schema, dict[str, int]]:
    """What a program takes behind the names of subcommands among ``words``; others are skipped.

    Returns:
        What the innermost subcommand takes, with the options that go before its name. And those
        of these options that it does not take itself -> how many of the names precede them.
    """
    before: dict[str, int] = {}
    outer: dict[str, Parameter] = {}
    chosen = 0
    for word in words:
        if word in schema.commands:
            outer |= schema.options
            before |= dict.fromkeys(schema.options, chosen)
            chosen += 1
            schema = schema.commands[word]
    own = {one.name for one in schema.parameters}
    added = (one for name, one in outer.items() if name not in own)
    inner = schema.replaced(parameters=(*schema.parameters, *added))
    return inner, {name: place for name, place in before.items() if name not in schema.options}
