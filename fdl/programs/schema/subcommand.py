"""The subcommand of a program that a command line selects, and what that subcommand takes."""

from __future__ import annotations

from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter


class _Selected(Record):
    """A program with its subcommands chosen.

    Attributes:
        schema: What the innermost subcommand takes, and the options that go before its name.
        words: Names of the subcommands, outermost first.
        before: Option -> how many of ``words`` precede it; only for options that stand before the
            innermost subcommand.
    """

    schema: Schema
    words: Sequence[str] = ()
    before: Mapping[str, int] = {}


def select(schema: Schema, words: Sequence[str]) -> _Selected:
    """Follow the names of subcommands among ``words``; other words are skipped."""
    chosen: list[str] = []
    above: list[Parameter] = []
    before: dict[str, int] = {}
    for word in words:
        if word not in schema.commands:
            continue
        outer = [one for one in schema.parameters if one.kind == "option"]
        before.update((one.name, len(chosen)) for one in outer)
        above += outer
        chosen.append(word)
        schema = schema.commands[word]
    if not chosen:
        return _Selected(schema)
    return _Selected(_with_options(schema, above), chosen, _still_before(before, schema))


def _still_before(before: dict[str, int], inner: Schema) -> dict[str, int]:
    return {name: place for name, place in before.items() if name not in inner.options}


def _with_options(schema: Schema, above: Sequence[Parameter]) -> Schema:
    """A subcommand that also knows the options of the commands around it."""
    outer = {one.name: one for one in above}
    own = {one.name for one in schema.parameters}
    added = (one for name, one in outer.items() if name not in own)
    return schema.replaced(parameters=(*schema.parameters, *added))
