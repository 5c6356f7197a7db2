"""The schema of a built-in command, from its Typer function."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from fdl.programs.args.annotations import Complete, describe
from fdl.programs.parameters.document import document, plain
from fdl.programs.parameters.parameter import UNSET, Parameter


def schema(command: Any) -> dict[str, Any]:
    """The document of a command, as ``--fdl-schema`` prints it; a group says only their names."""
    below = getattr(command, "commands", {})
    description = " ".join((command.help or "").split())
    if below:
        parameters = [Parameter("command", kind="arg", choices=list(below), required=True)]
        return document(description, parameters, strict=False)
    hints = get_type_hints(
        getattr(command.callback, "__wrapped__", command.callback), include_extras=True
    )
    parameters = [_parameter(one, hints[one.name]) for one in command.params if one.name in hints]
    return document(description, parameters, strict=not command.ignore_unknown_options)


def _parameter(one: Any, hint: Any) -> Parameter:
    is_option = one.param_type_name == "option"
    letters = [flag[1:] for flag in one.opts if flag[:2] != "--" and is_option]
    completers = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Complete)]
    type_, shape, choices = describe(_given(hint))
    variadic = shape == "list" and not is_option
    has_default = one.default is not None and (shape != "flag" or one.secondary_opts)
    if not is_option and not one.required and not variadic:
        shape = "optional"
    return Parameter(
        one.opts[0][2:] if is_option else one.name.replace("_", "-"),
        kind="option" if is_option else "arg",
        type=type_,
        shape=shape,
        default=plain(one.default) if has_default and not one.required else UNSET,
        short=letters[0] if letters else None,
        choices=[plain(choice) for choice in choices],
        commas=False,
        completer=completers[0].completer if completers else None,
        variadic=variadic,
        required=bool(one.required),
        help=" ".join((one.help or "").split()),
        group=getattr(one, "rich_help_panel", None) or "",
        negatives=one.secondary_opts if is_option else (),
    )


def _given(hint: Any) -> Any:
    """The type of a parameter that is given."""
    bare = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    parts = [part for part in get_args(bare) if part is not type(None)]
    return parts[0] if type(None) in get_args(bare) else bare
