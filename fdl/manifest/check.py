"""Node tree -> nothing, or an error that lists all mistakes of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from fdl.base.errors import ManifestError
from fdl.base.secrets import REDACTED, is_secret_name, typed
from fdl.base.suggest import nearest
from fdl.manifest.kinds import EMPTY, Mapping
from fdl.manifest.models import SECTIONS, Root, Training, keys
from fdl.manifest.node import Node, dotted
from fdl.manifest.show import scalar
from fdl.manifest.slips import empty
from fdl.manifest.source import shown

Path = tuple[str | int, ...]
Place = tuple[str, int, int]
_Mistake = tuple[Place, str]

_CALLED_HERE = {
    "cmd": "run", "command": "run", "exec": "run", "script": "run",
    "depends": "needs", "depends_on": "needs", "deps": "needs",
    "dir": "cwd", "workdir": "cwd", "desc": "description", "environment": "env",
}  # fmt: skip
"""Keys of commands in other tools -> those of fdl."""

_ROOT_HINTS = {
    "model": "it is reserved; remove it",
    "scripts": "scripts have moved into `commands`: write `commands: {NAME: {run: …}}`",
}

# More would scroll the first ones off the screen.
_MOST_MISTAKES = 5

_DEMANDS = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "unsuitable": "{demand}",
}
"""Type of an error of pydantic -> the demand that the value does not meet."""


def check(root: Node, *, whole: bool) -> None:
    """Check one manifest file, or the merge of several.

    Args:
        root: The root mapping.
        whole: False for one layer of several. Other layers may then hold the required keys.

    Raises:
        ManifestError: One line per mistake, in file order, for the first five.
    """
    found = [*_of_models(root, whole=whole), *_of_settings(root)]
    if not found:
        return
    found.sort(key=lambda mistake: mistake[0])
    lines = [
        f"{shown(file)}:{line}:{column}: {problem}"
        for (file, line, column), problem in found[:_MOST_MISTAKES]
    ]
    if len(found) > _MOST_MISTAKES:
        lines.append(f"and {len(found) - _MOST_MISTAKES} more mistakes")
    raise ManifestError("\n".join(lines))


def _plain(node: Node) -> object:
    """The value for pydantic."""
    if isinstance(node.value, dict):
        return {key: _plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child) for child in node.value]
    return EMPTY if node.empty else node.value


def _of_models(root: Node, *, whole: bool) -> Iterator[_Mistake]:
    try:
        Root.model_validate(_plain(root))
    except ValidationError as refusal:
        for error in refusal.errors(include_url=False, include_input=False):
            if whole or error["type"] != "missing":
                yield _mistake(root, error["type"], error["loc"], error.get("ctx", {}))


def _mistake(root: Node, kind: str, path: Path, details: dict[str, Any]) -> _Mistake:
    """An error of pydantic with the words of fdl and its place in the file."""
    if kind == "missing":
        return _place([*_steps(root, path[:-1])][-1]), f"`{dotted(path[:-1])}` needs `{path[-1]}`"
    if kind == "refused_name":
        # The error is about the key, for which pydantic adds a step to the path.
        path = path[:-1]
    *_, node = _steps(root, path)
    if kind == "extra_forbidden":
        return _key_place(node), _unknown_key(path, node)
    if kind == "empty":
        return _key_place(node), f"`{dotted(path)}` has no value; {empty(str(path[-1]))}"
    if kind.startswith("refused"):
        return _place(node), f"`{dotted(path)}` {details['problem']}"
    if "expected" in details:
        details = {"expected": details["expected"].replace("'", "`")}
    demand = _DEMANDS[kind].format_map(details)
    described, remedy = REDACTED, _remedy(kind, node.value, details)
    if not _is_secret(root, path):
        described = _described(node) + (f" (from {node.reference})" if node.reference else "")
    if path[:-1] == ("commands",) and isinstance(node.value, str):
        remedy = f"; write `{path[1]}: {{run: …}}`"
    return _place(node), f"`{dotted(path)}` {demand}, not {described}{remedy}"


def _remedy(kind: str, value: object, details: dict[str, Any]) -> str:
    """What to do about an unsuitable value."""
    if isinstance(value, str) and (close := nearest(value, details.get("near", ()))):
        return f"; did you mean `{close}`?"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "; put it between quotes"
    is_quoted = isinstance(value, str) and isinstance(typed(value), float)
    if kind in ("int_type", "float_type") and is_quoted:
        return "; remove the quotes"
    return str(details.get("remedy", ""))


def _of_settings(root: Node) -> Iterator[_Mistake]:
    """What is wrong with the options of programs, whose names stand at any depth."""
    commands = root.mapping.get("commands")
    presets = commands.mapping if commands else {}
    scopes: list[tuple[Path, Node]] = [(("commands", name), one) for name, one in presets.items()]
    for path, scope in [((), root), *scopes]:
        if options := scope.mapping.get("options"):
            yield from _of_children(options, (*path, "options"))
        training = scope.mapping.get("training")
        for name, child in training.mapping.items() if training else ():
            if name not in Training.model_fields:
                yield from _of_mapping(child, (*path, "training", name))


def _of_mapping(node: Node, path: Path) -> Iterator[_Mistake]:
    if path[-1] == "options" and path[-2] in ("options", "training") and _is_mapping(node):
        problem = f"is in the wrong place: `options` stands beside `{path[-2]}`"
        yield _key_place(node), f"`{dotted(path)}` {problem}"
    else:
        yield from _of_children(node, path)


def _of_children(node: Node, path: Path) -> Iterator[_Mistake]:
    for name, child in node.mapping.items():
        below = (*path, name)
        if any(char.isspace() for char in name):
            problem = "has blanks, so it names no option; remove them"
            yield _key_place(child), f"`{dotted(below)}` {problem}"
        elif child.empty and any(mark in name for mark in ":="):
            # Any other name may be a flag, which only the program knows.
            yield _key_place(child), f"`{dotted(below)}` has no value; {empty(name)}"
        elif _is_mapping(child):
            yield from _of_mapping(child, below)
        elif isinstance(child.value, list) and _lists_null(child):
            yield _place(child), f"`{dotted(below)}` may not list a null"


def _lists_null(node: Node) -> bool:
    """Whether a list holds a null at any depth. There it removes nothing."""
    if isinstance(node.value, list):
        return any(one.value is None or _lists_null(one) for one in node.value)
    return any(map(_lists_null, node.mapping.values()))


def _is_mapping(node: Node) -> bool:
    return isinstance(node.value, dict)


def _place(node: Node) -> Place:
    return node.file, node.line, node.column


def _key_place(node: Node) -> Place:
    return node.file, node.key_line, node.key_column


def _steps(root: Node, path: Path) -> Iterator[Node]:
    """The nodes from the root to the end of a path."""
    yield root
    for step in path:
        children: Any = root.value
        root = children[step]
        yield root


def _is_secret(root: Node, path: Path) -> bool:
    """Whether a name on the path, or a mark on any value from the root down, makes it secret."""
    marked = any(node.secret for node in _steps(root, path))
    return marked or any(is_secret_name(str(step)) for step in path)


def _described(node: Node) -> str:
    value = node.value
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = value if isinstance(value, str) else scalar(value)
    short = text if len(text) <= 40 else f"{text[:39]}…"
    return f'the text "{short}"' if isinstance(value, str) else short


def _unknown_key(path: Path, node: Node) -> str:
    known = keys(_model(path[:-1]))
    key = str(path[-1])
    problem = f"unknown key `{dotted(path)}`"
    if len(path) == 1 and key in _ROOT_HINTS:
        return f"{problem}: {_ROOT_HINTS[key]}"
    if len(path) == 3 and path[0] == key == "commands":
        name = path[1]
        return (
            f"{problem}; a command holds no commands: write them into {name}/fdl.yml, "
            f"or beside `{name}` with `path: .`"
        )
    if len(path) == 1 and {"run", "path", "entry"} & {*node.mapping}:
        return f"{problem}; commands stand below `commands:`"
    if len(path) == 3 and path[0] == "commands" and key in _CALLED_HERE:
        return f"{problem}; it is called `{_CALLED_HERE[key]}` here"
    if close := nearest(key, known):
        return f"{problem}; did you mean `{close}`?"
    homes = [name for name, section in SECTIONS.items() if key in keys(section)]
    if homes:
        return f"{problem}; `{key}` belongs in `{homes[0]}`"
    if path[-2:-1] == ("training",):
        return f"{problem}; an option of the program's own belongs in `options`, beside `training`"
    return f"{problem}; known here: {', '.join(known)}"


def _model(path: Path) -> type[Mapping]:
    """The model of the mapping at a path."""
    model: type[Mapping] = Root
    steps = iter(path)
    for step in steps:
        kind = next(
            one.annotation
            for one, key in zip(model.model_fields.values(), keys(model), strict=True)
            if key == step
        )
        model = next(_models(kind))
        if any(get_origin(one) in (dict, list) for one in (kind, *get_args(kind))):
            # The name of a command, a sweep or a metric; the place in a list.
            next(steps, None)
    return model


def _models(kind: Any) -> Iterator[type[Mapping]]:
    """The models inside the type of a key."""
    if isinstance(kind, type) and issubclass(kind, Mapping):
        yield kind
    for one in get_args(kind):
        yield from _models(one)
