"""argparse parsers as schemas, subcommands included."""

from __future__ import annotations

import enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fdl.base.secrets import REDACTED, is_secret
from fdl.programs.args.adapters.draft import allowed, default_of
from fdl.programs.parameters.parameter import UNSET

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from fdl.programs.args.adapters.draft import Draft

# The constants of argparse: comparing texts imports nothing.
_SUPPRESS = "==SUPPRESS=="
_REMAINDER = "..."
_LISTING = ("_AppendAction", "_ExtendAction")
# The help of argparse's own actions ends like this; a schema says it in a field of its own.
_TOLD_TWICE = " (default: %(default)s)"


def draw_parser(draft: Draft, parser: argparse.ArgumentParser) -> None:
    """Put everything a parser takes into a draft."""
    draft.description = _words(parser.description, {"prog": parser.prog})
    # `--epo` is `--epochs` to such a parser, which no list of names can say.
    draft.strict = not parser.allow_abbrev and parser.prefix_chars == "-"
    if parser.fromfile_prefix_chars:
        draft.strict = draft.certain = False
    draft.foreign = frozenset(_of_subcommands(parser))
    own = (parser._positionals, parser._optionals)
    groups = {
        id(action): group.title or ""
        for group in parser._action_groups
        for action in group._group_actions
        if group not in own
    }
    plain = True
    for action in parser._actions:
        if action.option_strings:
            _option(draft, action, parser.prog, groups.get(id(action), ""))
        elif _name(action) == "_SubParsersAction":
            _subcommands(draft, action, opaque=not plain)
            plain = False
        else:
            _argument(draft, action, parser.prog)
            plain = plain and action.nargs is None


def _of_subcommands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The option strings of all subcommands, theirs included."""
    for action in parser._actions:
        if _name(action) == "_SubParsersAction" and isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from inner._option_string_actions
                yield from _of_subcommands(inner)


def _subcommands(draft: Draft, action: argparse.Action, *, opaque: bool) -> None:
    """The word that chooses a subcommand; an optional word before it may be meant instead."""
    draft.strict = False
    name = action.dest if action.dest not in (None, _SUPPRESS) else "command"
    draft.argument(
        name.replace("_", "-"),
        required=bool(action.required),
        opaque=opaque,
        choices=allowed(action.choices, "string"),
        help=_words(action.help, {}),
    )
    parsers: Any = action.choices
    for word, parser in parsers.items() if isinstance(parsers, dict) else ():
        draw_parser(draft.command(word), parser)


def _option(draft: Draft, action: argparse.Action, program: str, group: str) -> None:
    if action.help == _SUPPRESS:
        draft.leave_out(action.option_strings)
        return
    if action.nargs == 0:
        _flag(draft, action, program, group)
        return
    type_, choices = _type(action.type)
    many = _name(action) in _LISTING or action.nargs not in (None, "?")
    if action.nargs not in (None, "?", 1):
        draft.aligned = False
    if action.nargs == _REMAINDER:
        draft.strict = draft.certain = False
    draft.option(
        action.option_strings,
        type=type_,
        many=many,
        default=_default(action, type_, many=many),
        choices=_choices(action, type_, choices, many=many),
        help=_help(action, program),
        group=group,
        nargs=action.nargs if action.nargs in ("*", "+", "?") or _several(action.nargs) else None,
        required=action.required,
        words=_words_of(action),
    )


def _words_of(action: argparse.Action) -> dict[str, str]:
    """How true and false are written: ``bool`` makes True of every word but the empty one."""
    words = {"false": ""} if action.type is bool else {}
    if action.nargs == "?" and action.const is None:
        words["true"] = "true"
    return words


def _several(nargs: int | str | None) -> bool:
    return isinstance(nargs, int) and nargs > 1


def _flag(draft: Draft, action: argparse.Action, program: str, group: str) -> None:
    strings, negative = list(action.option_strings), []
    if _name(action) == "BooleanOptionalAction":
        negative = [one for one in strings if one[:5] == "--no-" and f"--{one[5:]}" in strings]
        strings = [one for one in strings if one not in negative]
    draft.flag(
        strings,
        negative,
        action.default,
        help=_help(action, program),
        group=group,
        counted=_name(action) == "_CountAction",
        required=action.required,
    )


def _argument(draft: Draft, action: argparse.Action, program: str) -> None:
    type_, choices = _type(action.type)
    variadic = action.nargs in ("*", "+", _REMAINDER)
    if action.nargs == _REMAINDER:
        # Flags of this program behind its first word are no flags any more.
        draft.strict = draft.certain = False
    draft.argument(
        action.dest.replace("_", "-"),
        type=type_,
        required=action.nargs in (None, "+"),
        variadic=variadic,
        opaque=action.help == _SUPPRESS or action.nargs not in (None, "?", "*", "+", _REMAINDER),
        default=_default(action, type_, many=variadic),
        choices=_choices(action, type_, choices, many=variadic),
        help=_help(action, program),
    )


def _type(converter: Any) -> tuple[str, list[Any] | None]:
    """The schema's word for what a converter makes of a word, and the values it accepts.

    The second is None for a converter of the program's own, which may accept anything.
    """
    if converter in (None, str):
        return "string", []
    if converter in (int, float):
        return converter.__name__, []
    if isinstance(converter, type) and issubclass(converter, enum.Enum):
        values = [member.value for member in converter]
        return "string", values if all(isinstance(value, str) for value in values) else None
    if (isinstance(converter, type) and issubclass(converter, PurePath)) or (
        type(converter).__name__ == "FileType"
    ):
        return "path", None
    return "string", None


def _choices(
    action: argparse.Action, type_: str, own: list[Any] | None, *, many: bool
) -> list[Any]:
    """What may be typed; nothing for a converter whose words are not known."""
    if own is None or action.nargs == _REMAINDER:
        return []
    choices: Any = action.choices
    if own:
        choices = own if choices is None else [getattr(one, "value", one) for one in choices]
    return allowed(choices, type_, many=many)


def _default(action: argparse.Action, type_: str, *, many: bool) -> Any:
    if action.default is None or action.default == _SUPPRESS:
        return UNSET
    return default_of(action.default, type_, many=many)


def _help(action: argparse.Action, program: str) -> str:
    """The help of an argument with its ``%(…)s`` filled in, without a secret default."""
    facts = {**vars(action), "prog": program}
    if is_secret(action.dest, action.default):
        facts["default"] = REDACTED
    if action.type is not None:
        facts["type"] = getattr(action.type, "__name__", str(action.type))
    return _words((action.help or "").removesuffix(_TOLD_TWICE), facts)


def _words(text: str | None, facts: dict[str, Any]) -> str:
    try:
        filled = (text or "") % facts
    except (KeyError, TypeError, ValueError):
        filled = text or ""
    return " ".join(filled.split())


def _name(action: argparse.Action) -> str:
    """The class of an action; a class of the program's own counts as what it derives from."""
    known = (base for base in type(action).__mro__ if base.__module__ == "argparse")
    return next(known).__name__
