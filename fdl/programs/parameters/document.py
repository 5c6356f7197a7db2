"""Parameters -> the JSON document of ``--fdl-schema``, and how a program answers that flag.

The reading side is :mod:`fdl.programs.parameters.contract`.
"""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from fdl.manifest.words import ARGUMENT_KEYS, OPTION_KEYS
from fdl.programs.parameters.contract import FLAG
from fdl.programs.parameters.parameter import UNSET, Parameter, choice_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
        "args": [_described(one) for one in listed if one.kind == "arg"],
        "options": {one.name: _described(one) for one in listed if one.kind == "option"},
        "commands": dict(commands or {}),
        "style": style,
        "collapsed": dict(collapsed or {}),
    }
    return {**_filled(made), "strict": strict, **_filled({"origins": origins})}


def _described(one: Parameter) -> dict[str, Any]:
    """What a parameter says, key by key; nothing empty but what means something."""
    default = None if one.default is UNSET else plain(one.default)
    told: dict[str, Any] = {}
    if default is not None and default != [] and not one.hides(default):
        told["default"] = default
    if one.kind == "arg":
        told["required"] = one.required
    elif one.shape == "list" and not one.commas:
        told["commas"] = False
    said = {
        "type": one.type_name,
        "description": one.help,
        "default": None,
        "words": dict(one.words),
        "bare": one.shape == "optional" and one.default is not UNSET,
        "commas": None,
        **told,
    }
    keys = ARGUMENT_KEYS if one.kind == "arg" else OPTION_KEYS
    made = {key: said[key] if key in said else plain(getattr(one, key)) for key in keys}
    return {key: value for key, value in made.items() if value or key in told}


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
