"""The arguments that a ``run:`` command declares under ``args:``.

    deploy:
      run: ./deploy.sh --replicas "$replicas" "$@"
      args:
        replicas: 2
        target: {positional: true, choices: [staging, production]}

The script gets each value as a variable. ``"$@"`` holds the positional arguments.
Loaded only for commands with ``args:``.
"""

from __future__ import annotations

from fdl.base.errors import ManifestError, UsageError
from fdl.base.secrets import is_secret
from fdl.manifest.node import Variable, dotted, origin
from fdl.programs.parameters.contract import ContractError, Schema, parse
from fdl.programs.parameters.parameter import Parameter, choice_text
from fdl.programs.parameters.parser import RefusedError, read_words, slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level

# fdl sets these itself. The others would change which programs the script finds.
_TAKEN = ("PATH", "FDL_PROJECT_ROOT", "FDL_PLAN")


def declared(level: Level, name: str) -> Schema | None:
    """The arguments of a run command; None without ``args:``.

    Raises:
        ManifestError: An argument is declared wrongly.
    """
    rows = level.commands[name].get("args")
    if rows is None:
        return None
    positional = [key for key, row in rows.mapping.items() if _is_positional(row)]
    document = {
        "args": [{"name": key, **_row(rows.mapping[key], level)} for key in positional],
        "options": {
            key.replace("_", "-"): _row(row, level)
            for key, row in rows.mapping.items()
            if key not in positional
        },
        "strict": True,
    }
    for key, row in rows.mapping.items():
        if not key.replace("-", "_").isidentifier() or not key.isascii() or key in _TAKEN:
            raise _refusal(row, level, key, "cannot be the name of a variable of the script")
    try:
        return parse(document, closed=True, source="manifest")
    except ContractError as problem:
        _, place, *rest = problem.path
        options = {key.replace("_", "-"): key for key in rows.mapping}
        key = positional[place] if isinstance(place, int) else options[str(place)]
        row = rows.mapping[key]
        for step in rest:
            row = row.mapping.get(str(step), row)
        raise _refusal(row, level, dotted((key, *rest)), problem.problem) from None


def _refusal(node: Node, level: Level, name: str, problem: str) -> ManifestError:
    return ManifestError(f"{origin(node, level.root)}: in `args`: `{name}` {problem}")


def _is_positional(row: Node) -> bool:
    mark = row.get("positional")
    return mark is not None and mark.value is True


def _row(row: Node, level: Level) -> dict[str, Any]:
    """The row of the contract for one argument; a value alone is its default."""
    written: Any = row.plain()
    if not isinstance(written, dict):
        written = {} if written is None else {"default": written}
    made = {key: value for key, value in written.items() if key != "positional"}
    if "type" not in made:
        default, choices = made.get("default"), made.get("choices")
        example = choices if default is None else default
        of_list = isinstance(default, list)
        made["type"] = f"list[{_type_of(example)}]" if of_list else _type_of(example)
    if made["type"] == "bool" and made.pop("default", False):
        raise _refusal(row, level, "default", "of a switch is false; name the opposite")
    return made


def _type_of(example: object) -> str:
    """The type of a default, or of the first of several values; text without any."""
    if isinstance(example, list):
        return _type_of(example[0]) if example else "string"
    kinds = {bool: "bool", int: "int", float: "float"}
    return kinds.get(type(example), "string")


class _Word(Parameter):
    """An argument that stays as it was typed: ``3.10`` is not ``3.1``, and ``./a`` is not ``a``."""

    def convert(self, text: str) -> str:
        """The word itself, if it is of the type and among the choices."""
        super().convert(text)
        return text


def given(
    level: Level, name: str, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[list[Variable], list[str]]:
    """The values of one call: a variable for each argument, and the positional ones for ``"$@"``.

    Raises:
        UsageError: The words do not fit what is declared.
    """
    schema = declared(level, name)
    parameters = [
        _Word(**{key: getattr(one, key) for key in one.field_names})
        for one in (schema.parameters if schema else ())
    ]
    try:
        stacks = read_words(parameters, words, environ)
    except RefusedError as problem:
        typed = level.typed(name)
        usage = " ".join([typed, "[OPTIONS]", *slots(parameters)])
        raise UsageError(f"`{typed}`: {problem}", see=(usage, typed)) from None
    rows = level.commands[name].mapping["args"].mapping
    nodes = {key.replace("-", "_"): row for key, row in rows.items()}
    variables: list[Variable] = []
    arguments: list[str] = []
    for one in parameters:
        value, where = stacks[one.field][0]
        texts = [_text(item) for item in value] if isinstance(value, list) else [_text(value)]
        place = origin(nodes[one.field], level.root)
        if where is not None:
            place = where if isinstance(where, str) else "command line"
        text = " ".join(texts)
        secret = is_secret(one.name, text)
        variables.append(Variable(one.field, text, place, secret=secret))
        if one.kind == "arg" and value is not None:
            arguments += texts
    return variables, arguments


def _text(value: object) -> str:
    """A value for the script: a switch is ``true`` or empty, what is not given is empty."""
    if value is None or value is False:
        return ""
    return "true" if value is True else choice_text(value)
