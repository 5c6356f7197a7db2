"""Node tree -> nothing, or an error that lists everything wrong with the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fdl.errors import ManifestError
from fdl.manifest.node import Node, dotted
from fdl.manifest.schema import SECTIONS, Command, Root, SpeedHint, keys_of
from fdl.manifest.show import scalar
from fdl.manifest.source import shown
from fdl.secrets import REDACTED, is_secret_name
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

# A file that is no manifest at all would be refused in thousands of lines.
_MOST_MISTAKES = 20


def check(root: Node, *, whole: bool) -> None:
    """Validate one manifest file, or the merge of several.

    Args:
        root: The root mapping.
        whole: False for one layer of several, which may leave to the others what is required.

    Raises:
        ManifestError: One line per mistake, in file order, of the first twenty.
    """
    try:
        Root.model_validate(root.plain())
    except ValidationError as error:
        found = sorted(
            (
                details
                for details in error.errors(include_url=False)
                if whole or details["type"] != "missing"
            ),
            key=lambda details: _place(root, details),
        )
        lines = [_mistake(root, details) for details in found[:_MOST_MISTAKES]]
        if len(found) > _MOST_MISTAKES:
            lines.append(f"and {len(found) - _MOST_MISTAKES} more mistakes")
        if lines:
            raise ManifestError("\n".join(lines)) from None


def _place(root: Node, details: ErrorDetails) -> tuple[str, int, int]:
    """File, line and column of one of pydantic's errors."""
    path: Path = details["loc"]
    if details["type"] == "missing":
        path = path[:-1]
    node = _at(root, path)
    if details["type"] == "extra_forbidden":
        return node.file, node.key_line, node.key_column
    return node.file, node.line, node.column


def _mistake(root: Node, details: ErrorDetails) -> str:
    """One of pydantic's errors with its place, in words."""
    file, line, column = _place(root, details)
    return f"{shown(file)}:{line}:{column}: {_problem(root, details)}"


def _problem(root: Node, details: ErrorDetails) -> str:
    path: Path = details["loc"]
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return f"`{dotted(path[:-1])}` needs `{path[-1]}`"
    context = details.get("ctx", {})
    if kind == "refused":
        return f"`{dotted(path)}` {context['problem']}"
    node = _at(root, path)
    remedy = context.get("remedy") or _remedy(kind, node)
    secret = node.secret or any(is_secret_name(str(step)) for step in path)
    described = REDACTED if secret else _described(node)
    return f"`{dotted(path)}` {_demand(kind, context, details['msg'])}, not {described}{remedy}"


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
