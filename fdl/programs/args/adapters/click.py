"""click commands and typer apps as schemas, the commands of groups included.

typer brings a click of its own, whose parameters carry annotations instead of types; both are read
here.
"""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Any

from fdl.programs.args.adapters.draft import allowed, default_of
from fdl.programs.args.annotations import completers
from fdl.programs.parameters.parameter import UNSET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.programs.args.adapters.draft import Draft

_TYPES = {
    "IntParamType": "int",
    "FloatParamType": "float",
    "IntRange": "int",
    "FloatRange": "float",
    "Path": "path",
    "File": "path",
    "TyperPath": "path",
}
_HELP_NAMES = frozenset(("-h", "--help"))


def typer_command(target: Any) -> Any:
    """The command behind a typer app, or behind a function that typer runs."""
    typer = sys.modules["typer"]
    app = target
    if not hasattr(app, "registered_commands"):
        app = typer.Typer(add_completion=False)
        app.command()(target)
    return typer.main.get_command(app)


def draw_command(draft: Draft, command: Any) -> None:
    """Put everything a command takes into a draft."""
    settings = command.context_settings or {}
    draft.description = " ".join((command.help or "").partition("\f")[0].split())
    draft.strict = not any(
        settings.get(name, getattr(command, name, False))
        for name in ("ignore_unknown_options", "allow_extra_args")
    ) and _HELP_NAMES.issuperset(settings.get("help_option_names", ()))
    group = hasattr(command, "list_commands")
    renames = settings.get("token_normalize_func") is not None
    if renames or not (group or settings.get("allow_interspersed_args", True)):
        # Any name may be spelled otherwise; or flags behind the first word are plain words.
        draft.strict = draft.certain = False
    if group:
        draft.strict = False
        draft.foreign = frozenset(_of_subcommands(command))
    marks = completers(getattr(command.callback, "__wrapped__", command.callback))
    for one in command.params:
        if one.param_type_name == "option":
            _option(draft, one, marks.get(one.name))
        else:
            _argument(draft, one, marks.get(one.name))
    if group:
        _subcommands(draft, command, renames=renames)


def _of_subcommands(group: Any) -> Iterator[str]:
    """The option strings of all commands of a group, those of groups inside included."""
    for command in group.commands.values():
        for one in command.params:
            yield from (*one.opts, *one.secondary_opts)
        if hasattr(command, "commands"):
            yield from _of_subcommands(command)


def _subcommands(draft: Draft, group: Any, *, renames: bool) -> None:
    # A group that looks its commands up in a way of its own may know more names than it lists.
    lookup = type(group).get_command.__module__.partition(".")[0]
    resolve = type(group).resolve_command.__module__.partition(".")[0]
    known = {lookup, resolve} <= {"click", "typer"} and not renames
    shown = [name for name, command in group.commands.items() if not command.hidden]
    if not known:
        draft.certain = False
    hidden = len(shown) < len(group.commands)
    draft.argument(
        "command",
        required=not group.invoke_without_command,
        choices=shown if known and not hidden else (),
    )
    for name in shown:
        draw_command(draft.command(name), group.commands[name])


def _option(draft: Draft, one: Any, completer: str | None) -> None:
    if one.hidden:
        draft.leave_out((*one.opts, *one.secondary_opts))
        return
    group = getattr(one, "rich_help_panel", None) or ""
    if one.is_flag or one.count:
        said = {
            "env": None if one.count else _env(one),
            "help": _help(one),
            "group": group,
            "counted": bool(one.count),
            "required": bool(one.required),
        }
        draft.flag(one.opts, one.secondary_opts, one.default, **said)
        return
    type_, choices, exact = _type(one)
    many = one.multiple or one.nargs != 1
    if one.nargs != 1:
        draft.aligned = False
    draft.option(
        one.opts,
        type=type_,
        many=many,
        default=_default(one, type_, many=many),
        choices=allowed(choices, type_, many=many),
        ignore_case=not exact,
        env=_env(one),
        completer=completer,
        help=_help(one),
        group=group,
        nargs=one.nargs if one.nargs > 1 else None,
        required=bool(one.required) and not one.envvar,
    )


def _argument(draft: Draft, one: Any, completer: str | None) -> None:
    type_, choices, exact = _type(one)
    variadic = one.nargs == -1
    # What stands in the environment fills an argument as well, and shifts nothing.
    draft.argument(
        one.name.replace("_", "-"),
        type=type_,
        required=bool(one.required) and not one.envvar,
        variadic=variadic,
        opaque=one.nargs not in (1, -1) or bool(getattr(one, "hidden", False)),
        default=_default(one, type_, many=variadic),
        choices=allowed(choices, type_, many=variadic),
        ignore_case=not exact,
        completer=completer,
        help=_help(one),
    )


def _type(one: Any) -> tuple[str, list[Any], bool]:
    """The schema's word for one value, the choices as typed, and whether case counts."""
    if not hasattr(one, "type"):
        return _annotated(one)
    bases = [base.__name__ for base in type(one.type).__mro__]
    if "Choice" in bases or "TyperChoice" in bases:
        texts = [
            choice.name if isinstance(choice, enum.Enum) else str(choice)
            for choice in one.type.choices
        ]
        return "string", texts, bool(one.type.case_sensitive)
    return next((_TYPES[base] for base in bases if base in _TYPES), "string"), [], True


def _annotated(one: Any) -> tuple[str, list[Any], bool]:
    """The same for a parameter of typer, which keeps the annotation of the function."""
    from fdl.programs.args.annotations import describe

    info = one.type_descriptor.parameter_info
    if getattr(info, "parser", None) or getattr(info, "click_type", None):
        return "string", [], True
    try:
        found = describe(one.type_descriptor.annotation)
    except TypeError:
        return "string", [], True
    if found.choices:
        texts = [str(getattr(choice, "value", choice)) for choice in found.choices]
        return "string", texts, bool(getattr(info, "case_sensitive", True))
    # A bool that takes a value understands many words.
    return "string" if found.type == "bool" else found.type, [], True


def _default(one: Any, type_: str, *, many: bool) -> Any:
    """The declared default; one that is computed at each start is not the schema's to say."""
    default = one.default
    if (
        isinstance(default, enum.Enum)
        and type(getattr(one, "type", None)).__name__ == "TyperChoice"
    ):
        default = default.value
    if isinstance(default, enum.Enum):
        shown = getattr(getattr(one, "type", None), "choices", None)
        if hasattr(one, "type") and (shown is None or default not in tuple(shown)):
            return UNSET
        default = default.name if hasattr(one, "type") else default.value
    return default_of(default, type_, many=many)


def _env(one: Any) -> str | None:
    """The variable that stands in for an option: the first of several."""
    names = [one.envvar] if isinstance(one.envvar, str) else list(one.envvar or ())
    return names[0] if names else None


def _help(one: Any) -> str:
    return " ".join((getattr(one, "help", None) or "").split())
