"""Node tree -> nothing, or an error that lists everything wrong with the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fdl.errors import ManifestError
from fdl.manifest.node import Node, dotted
from fdl.manifest.schema import SECTIONS, Command, Root, SpeedHint, keys_of
from fdl.manifest.show import scalar
from fdl.manifest.source import shown
from fdl.suggest import nearest

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    Path = tuple[str | int, ...]

_ROOT_HINTS = {
    "model": "it is reserved; remove it",
    "scripts": "scripts have moved into `commands`: write `commands: {NAME: {run: …}}`",
}

# pydantic's error type -> what the value must be.
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_type": "text",
}


def check(root: Node) -> None:
    """Validate one manifest file.

    Raises:
        ManifestError: One line per mistake, in file order.
    """
    try:
        Root.model_validate(root.plain())
    except ValidationError as error:
        found = sorted(_mistake(root, details) for details in error.errors(include_url=False))
        file = shown(root.file)
        lines = (f"{file}:{line}:{column}: {problem}" for line, column, problem in found)
        raise ManifestError("\n".join(lines)) from None


def _mistake(root: Node, details: ErrorDetails) -> tuple[int, int, str]:
    """Line, column and words for one of pydantic's errors."""
    path: Path = details["loc"]
    kind = details["type"]
    if kind == "extra_forbidden":
        node = _at(root, path)
        return node.key_line, node.key_column, _unknown_key(path)
    if kind == "missing":
        parent = _at(root, path[:-1])
        return parent.line, parent.column, f"`{dotted(path[:-1])}` needs `{path[-1]}`"
    node = _at(root, path)
    context = details.get("ctx", {})
    if kind == "refused":
        problem = context["problem"]
    else:
        remedy = context.get("remedy") or _remedy(kind, node)
        problem = f"{_demand(kind, context, details['msg'])}, not {_described(node)}{remedy}"
    return node.line, node.column, f"`{dotted(path)}` {problem}"


def _demand(kind: str, context: dict[str, Any], message: str) -> str:
    match kind:
        case "unsuitable":
            return str(context["demand"])
        case "literal_error":
            return "must be " + str(context["expected"]).replace("'", "`")
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "greater_than":
            return f"must be greater than {context['gt']:g}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case _:
            return f"must be {_EXPECTED[kind]}" if kind in _EXPECTED else f"is wrong: {message}"


def _described(node: Node) -> str:
    value = node.value
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = value if isinstance(value, str) else scalar(value)
    short = text if len(text) <= 40 else f"{text[:39]}…"
    return f'the text "{short}"' if isinstance(value, str) else short


def _remedy(kind: str, node: Node) -> str:
    value = node.value
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "; put it between quotes"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return "; remove the quotes"
    return ""


def _unknown_key(path: Path) -> str:
    key = str(path[-1])
    problem = f"unknown key `{dotted(path)}`"
    if len(path) == 1 and key in _ROOT_HINTS:
        return f"{problem}: {_ROOT_HINTS[key]}"
    known = keys_of(_model_at(path[:-1]))
    if close := nearest(key, known):
        return f"{problem}; did you mean `{close}`?"
    homes = [name for name, section in SECTIONS.items() if key in keys_of(section)]
    if homes:
        return f"{problem}; `{key}` belongs in `{homes[0]}`"
    return f"{problem}; known here: {', '.join(known)}"


def _model_at(path: Path) -> type[BaseModel]:
    """The model of the mapping at ``path``."""
    match path:
        case ():
            return Root
        case ("commands", _):
            return Command
        case (*_, "speed_hint"):
            return SpeedHint
        case _:
            return SECTIONS[str(path[-1])]


def _at(root: Node, path: Path) -> Node:
    """The node under ``path``; its nearest ancestor where the path leads nowhere."""
    node = root
    for step in path:
        children = node.value
        if isinstance(children, list) and isinstance(step, int) and step < len(children):
            node = children[step]
        elif isinstance(children, dict) and step in children:
            node = children[str(step)]
        else:
            break
    return node
