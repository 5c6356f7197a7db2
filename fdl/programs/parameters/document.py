"""Parameters -> the JSON document of ``--fdl-schema``, and how a program answers that flag.

The reading side is :mod:`fdl.programs.parameters.contract`.
"""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from fdl.programs.parameters.parameter import UNSET, Parameter, choice_text

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
    :class:`~fdl.programs.parameters.contract.Schema`.
    """
    listed = list(parameters)
    made = {
        "description": description,
        "args": [_argument(one) for one in listed if one.kind == "arg"],
        "options": {one.name: _option(one) for one in listed if one.kind == "option"},
        "commands": dict(commands or {}),
        "style": style,
        "collapsed": dict(collapsed or {}),
    }
    return {**_filled(made), "strict": strict, **_filled({"origins": origins})}


def _argument(one: Parameter) -> dict[str, Any]:
    last = _filled({"variadic": one.variadic})
    return {"name": one.name, **_described(one), "required": one.required, **last}


def _option(one: Parameter) -> dict[str, Any]:
    made = {
        "short": one.short,
        "env": one.env,
        "group": one.group,
        "flags": list(one.flags),
        "negatives": list(one.negatives),
        "nargs": one.nargs,
        "separator": one.separator,
        "counted": one.counted,
        "required": one.required,
    }
    bare = _filled({"bare": one.shape == "optional" and one.default is not UNSET})
    commas = {"commas": False} if one.shape == "list" and not one.commas else {}
    return {**_described(one), **bare, **commas, **_filled(made)}


def _described(one: Parameter) -> dict[str, Any]:
    default = None if one.default is UNSET else plain(one.default)
    is_told = default is not None and default != [] and not one.hides(default)
    made = {
        "choices": [plain(choice) for choice in one.choices],
        "ignore_case": one.ignore_case,
        "once": one.once,
        "literal": one.literal,
        "mapping": one.mapping,
        "words": dict(one.words),
        "completer": one.completer,
        "place": one.place,
        "computed": list(one.computed),
    }
    head = {"type": one.type_name, **_filled({"description": one.help})}
    return {**head, **({"default": default} if is_told else {}), **_filled(made)}


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what is empty."""
    return {key: value for key, value in row.items() if value}


def plain(value: Any) -> Any:
    """A value as JSON can say it; what JSON cannot say becomes the text one would type."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = getattr(value, "value", value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float) or value is None else choice_text(value)
