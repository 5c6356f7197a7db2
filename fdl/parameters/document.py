"""Parameters -> the JSON document of ``--fdl-schema``, and how a program answers that flag.

The reading side is :mod:`fdl.parameters.contract`.
"""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from fdl.parameters.parameter import UNSET, Parameter, choice_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FLAG = "--fdl-schema"
"""Asks a program for its document."""


def is_asked(argv: Sequence[str]) -> bool:
    """Whether the flag stands in an argument vector, before any ``--``."""
    return FLAG in (argv[: argv.index("--")] if "--" in argv else argv)


def answer(document: dict[str, Any]) -> NoReturn:
    """Print a document as the program's whole answer and exit 0."""
    # ASCII reads the same in every encoding a terminal or pipe may have.
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    sys.stdout.flush()
    sys.exit(0)


def document(
    description: str,
    parameters: Iterable[Parameter],
    *,
    collapsed: Mapping[str, str] | None = None,
    commands: Mapping[str, dict[str, Any]] | None = None,
    style: str = "",
    strict: bool = True,
    origins: bool = False,
) -> dict[str, Any]:
    """The document for some parameters; nothing empty is in it, and no secret.

    ``commands`` holds the documents of subcommands. The other arguments are those of
    :class:`~fdl.parameters.contract.Schema`.
    """
    made: dict[str, Any] = {"description": description} if description else {}
    listed = list(parameters)
    arguments = [
        {
            "name": one.name,
            **_described(one),
            "required": one.required,
            **({"variadic": True} if one.variadic else {}),
        }
        for one in listed
        if one.kind == "arg"
    ]
    options = {
        one.name: {
            **_described(one),
            **({"bare": True} if one.shape == "optional" and one.default is not UNSET else {}),
            **({"commas": False} if one.shape == "list" and not one.commas else {}),
            **({"short": one.short} if one.short else {}),
            **({"env": one.env} if one.env else {}),
            **({"group": one.group} if one.group else {}),
            **({"flags": list(one.flags)} if one.flags else {}),
            **({"negatives": list(one.negatives)} if one.negatives else {}),
            **({} if one.nargs is None else {"nargs": one.nargs}),
            **({"counted": True} if one.counted else {}),
            **({"required": True} if one.required else {}),
        }
        for one in listed
        if one.kind == "option"
    }
    if arguments:
        made["args"] = arguments
    if options:
        made["options"] = options
    if commands:
        made["commands"] = dict(commands)
    if style:
        made["style"] = style
    if collapsed:
        made["collapsed"] = dict(collapsed)
    made["strict"] = strict
    if origins:
        made["origins"] = True
    return made


def _described(one: Parameter) -> dict[str, Any]:
    row: dict[str, Any] = {"type": one.type_name}
    if one.help:
        row["description"] = one.help
    default = None if one.default is UNSET else plain(one.default)
    if default is not None and default != [] and not one.hides(default):
        row["default"] = default
    if one.choices:
        row["choices"] = [plain(choice) for choice in one.choices]
    if one.completer:
        row["completer"] = one.completer
    if one.place:
        row["place"] = one.place
    if one.computed:
        row["computed"] = list(one.computed)
    return row


def plain(value: Any) -> Any:
    """A value as JSON can say it; what JSON cannot say becomes the text one would type."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = getattr(value, "value", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float) or value is None else choice_text(value)
