"""The variables of a manifest: ``env:``, ``env_file:``, and ``${VAR:-default}`` in values.

Later wins: ``env:`` of the project, of the parent folders and of the command < env files in the
same order < fdl's own environment < global flags. ``$$`` is a plain ``$``. Commands are planned
with the values; the manifest and its cache keep the text as it is written. Loaded only for commands
that have such keys or values.
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH118, PTH120, PTH123
from __future__ import annotations

import copy
import io
import os
import re

from dotenv.parser import parse_stream
from dotenv.variables import parse_variables

from fdl.base.errors import FdlError, ManifestError
from fdl.base.secrets import is_secret
from fdl.manifest.node import Node, Variable, origin, relative, text
from fdl.manifest.source import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dotenv.parser import Binding

    from fdl.manifest.select.level import Level

    Find = Callable[[str], tuple[str, bool] | None]
    """Name -> the value of the variable, and whether it is secret; None if it is not set."""


_REFERENCE = r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?"


def expanded(node: Node, find: Find, root: str, *, numbers: bool = False) -> Node:
    """A value with the variables in place of the references.

    A value that is one reference alone becomes a number or a boolean if that prints as the same
    text; with ``numbers``, also if it prints differently (``1e-3``).

    Raises:
        ManifestError: A reference is broken, or its variable is not set.
    """
    value = node.value
    if isinstance(value, list):
        return node.at([expanded(item, find, root, numbers=numbers) for item in value])
    if isinstance(value, dict):
        return node.at({k: expanded(one, find, root, numbers=numbers) for k, one in value.items()})
    if not isinstance(value, str) or "$" not in value:
        return node
    made, secret = node.at(value), node.secret
    names: dict[str, None] = {}

    def instead(match: re.Match[str]) -> str:
        nonlocal secret
        found, is_hidden = _value(match, node, find, root)
        secret = secret or is_hidden
        if match[1]:
            names[f"${{{match[1]}}}"] = None
        return found

    made.value = re.sub(_REFERENCE, instead, value)
    made.secret, made.reference = secret, " ".join(names)
    whole = re.fullmatch(_REFERENCE, value)
    if whole and whole[1] and made.value:
        typed = resolve(made.value)
        if typed is not None and (numbers or text(typed) == made.value):
            made.value = typed
    return made


def _value(match: re.Match[str], node: Node, find: Find, root: str) -> tuple[str, bool]:
    name, default = match[1], match[2]
    if match[0] == "$$":
        return "$", False
    if not name:
        raise ManifestError(
            f"{origin(node, root)}: `${{` does not begin a `${{VAR}}` or a `${{VAR:-default}}`",
            hint="write `$${` for the text itself",
        )
    known = find(name)
    if known is not None and (known[0] or default is None):
        return known
    if default is None:
        raise ManifestError(
            f"{origin(node, root)}: the variable {name} is not set",
            hint=f"set {name}, or give it a default: ${{{name}:-default}}",
        )
    return default, False


class Variables:
    """The variables that values of ``env:`` may refer to: the shell's, and each other.

    Args:
        nodes: Name -> the strongest value under ``env:``.
        root: Directory of the project. Places in messages are relative to it.
        stronger: Mappings that win over ``env:``, strongest first.
    """

    def __init__(self, nodes: Mapping[str, Node], root: str, *stronger: Mapping[str, str]) -> None:
        self._nodes = nodes
        self._root = root
        self._stronger = stronger
        self._open: list[str] = []

    def find(self, name: str) -> tuple[str, bool] | None:
        """The value of a variable, and whether it is secret; None if it is not set.

        Raises:
            ManifestError: The values refer to each other in a circle.
        """
        for source in self._stronger:
            if name in source:
                return source[name], is_secret(name, source[name])
        node = self._nodes.get(name)
        if node is None:
            return None
        if name in self._open:
            circle = " -> ".join([*self._open[self._open.index(name) :], name])
            raise ManifestError(
                f"{origin(node, self._root)}: variables refer to each other: {circle}",
                hint="write one of the values without `${…}`",
            )
        self._open.append(name)
        made = expanded(node, self.find, self._root)
        self._open.pop()
        value = text(made.value)
        return value, bool(made.secret) or is_secret(name, value)


_FIXED = ("PATH", "FDL_PROJECT_ROOT", "FDL_PLAN")


def variables(
    scopes: Sequence[Node], root: str, shell: Mapping[str, str], typed: Mapping[str, str]
) -> list[Variable]:
    """Settle every variable that the manifests name.

    Args:
        scopes: Mappings that may hold ``env`` and ``env_file``, weakest first.
        root: Directory of the project. Origins are relative to it.
        shell: fdl's own environment.
        typed: The variables that global flags set.

    Raises:
        ManifestError: An env file is missing or broken, or a manifest must not set the variable.
            The message never repeats a value.
    """
    held = _written(scopes, root, shell, typed)
    known = {name: found[0].value for name, found in held.items()}
    for scope in scopes:
        given = scope.get("env_file")
        for item in given.listed if given else ():
            for one in _from_file(item, root, known, {**shell, **typed}):
                held.setdefault(one.name, []).insert(0, one)
                known[one.name] = one.value
    return [_settled(found, shell, typed) for found in held.values()]


def _settled(found: list[Variable], shell: Mapping[str, str], typed: Mapping[str, str]) -> Variable:
    """The strongest of several values for one name. The others become its losers."""
    name = found[0].name
    for origin_, source in (("shell", shell), ("command line", typed)):
        if name in source:
            found = [Variable(name, source[name], origin_), *found]
    return Variable(
        name,
        found[0].value,
        found[0].origin,
        # A value that replaces a secret is also a secret.
        secret=_secrecy(name, found),
        losers=[(one.value, one.origin) for one in found[1:]],
    )


def _secrecy(name: str, found: list[Variable]) -> bool | None:
    if any(one.secret for one in found):
        return True
    return None if found[0].secret is None else is_secret(name, found[0].value)


def _written(
    scopes: Sequence[Node], root: str, shell: Mapping[str, str], typed: Mapping[str, str]
) -> dict[str, list[Variable]]:
    """Name -> the values under ``env:``, strongest first. A null drops the weaker ones."""
    held: dict[str, list[Variable]] = {}
    nodes: dict[str, Node] = {}
    for scope in scopes:
        env = scope.get("env")
        for name, node in env.mapping.items() if env else ():
            _refuse_fixed(name, origin(node, root))
            if node.value is None:
                held.pop(name, None)
                nodes.pop(name, None)
                continue
            nodes[name] = node
            mine = [
                Variable(name, text(one.value), origin(one, root), secret=node.secret)
                for one in (node, *node.losers)
                if one.value is not None
            ]
            held[name] = [*mine, *held.get(name, [])]
    used = [name for name in held if "$" in held[name][0].value and name not in {**shell, **typed}]
    if used:
        known = Variables(nodes, root, typed, shell)
        for name in used:
            found = known.find(name)
            if found:
                held[name][0].value, held[name][0].secret = found
    return held


def _refuse_fixed(name: str, place: str) -> None:
    if name in _FIXED:
        raise ManifestError(
            f"{place}: {name} cannot be set in a manifest",
            hint="programs of the project belong in its .venv, whose `bin` comes first on PATH"
            if name == "PATH"
            else "fdl sets it for every command; choose another name",
        )


def _from_file(
    item: Node, root: str, weaker: Mapping[str, str], shell: Mapping[str, str]
) -> Iterator[Variable]:
    """The variables of one env file, which may refer to weaker ones and to the shell's."""
    written = item.get("path") or item
    if "$" in str(written.value):
        written = expanded(written, Variables({}, root, shell, weaker).find, root)
    file = os.path.join(os.path.dirname(item.file), str(written.value))
    required = item.get("required")
    if required is not None and required.value is False and not os.path.lexists(file):
        return

    place = f"{origin(written, root)}: env_file `{written.value}`"
    try:
        with open(file, encoding="utf-8") as stream:
            content = stream.read()
    except FileNotFoundError:
        raise ManifestError(
            f"{place} does not exist",
            hint=f"create {relative(file, root)}, or let it be absent with "
            f"`{{path: {written.value}, required: false}}`",
        ) from None
    except OSError as problem:
        raise ManifestError(f"{place} cannot be read: {problem.strerror}") from None
    except ValueError:
        raise ManifestError(f"{place} is not UTF-8 text", hint="save it as UTF-8") from None
    shown = relative(file, root)
    for name, value, line in _parse_env(content, shown, dict(weaker), shell):
        _refuse_fixed(name, f"{shown}:{line}")
        yield Variable(name, value, f"{shown}:{line}", secret=True)


def _parse_env(
    text: str, file: str, weaker: Mapping[str, str], stronger: Mapping[str, str]
) -> Iterator[tuple[str, str, int]]:
    """Name, value and line of every variable, in file order.

    Args:
        text: The file's text, in the syntax of python-dotenv.
        file: The name of the file in messages.
        weaker: Values for ``${NAME}`` if the file has not set the name yet.
        stronger: Values for ``${NAME}`` that win over the file.

    Raises:
        ManifestError: A line does not set a variable. The message does not repeat the line,
            because it may hold a secret.
    """
    own: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        line = _line(binding)
        if binding.error or (binding.key is not None and binding.value is None):
            raise ManifestError(
                f"{file}:{line}: this is not `NAME=value`",
                hint="quote a value of several lines; a comment begins with `#`",
            )
        if binding.key is None or binding.value is None:
            continue
        meaning = {**weaker, **own, **stronger}
        value = "".join(atom.resolve(meaning) for atom in parse_variables(binding.value))
        if "\0" in value:
            raise ManifestError(f"{file}:{line}: a variable cannot hold a NUL character")
        own[binding.key] = value
        yield binding.key, value, line


def _line(binding: Binding) -> int:
    """The first line of the statement. The parser's number includes the blank lines above it."""
    string = binding.original.string
    return binding.original.line + string[: len(string) - len(string.lstrip())].count("\n")


def names_in_env(text: str) -> set[str]:
    """The names in an env file, even if its lines are broken."""
    return {binding.key for binding in parse_stream(io.StringIO(text)) if binding.key}


def finder(
    scopes: Sequence[Node], root: str, shell: Mapping[str, str], typed: Mapping[str, str]
) -> Find:
    """Where the values outside of ``env:`` find their variables, ``env_file:`` included."""
    known = {
        one.name: (one.value, bool(one.secret)) for one in variables(scopes, root, shell, typed)
    }
    outside = Variables({}, root, typed, shell)
    return lambda name: known.get(name) or outside.find(name)


def folder_name(level: Level, node: Node, scope: Node | None = None) -> str:
    """The text of a ``path``, ``cwd`` or ``output.dir`` with the values of this process.

    Raises:
        ManifestError: A variable is not set.
    """
    if "$" not in str(node.value):
        return str(node.value)
    scopes = (*level.scopes, *((scope,) if scope else ()))
    return text(expanded(node, finder(scopes, level.root, os.environ, {}), level.root).value)


def with_values(level: Level, preset: str | None, find: Find) -> Level:
    """A level whose settings, and those of the preset, have values in place of references.

    Raises:
        ManifestError: A variable is not set, or its value is not allowed in that place.
    """
    made = copy.copy(level)
    made.manifest = copy.copy(level.manifest)
    node = _settings(level.manifest.node, find, level.root)
    if preset is not None:
        commands = node.mapping["commands"]
        spec = _settings(commands.mapping[preset], find, level.root)
        below = commands.at({**commands.mapping, preset: spec})
        node = node.at({**node.mapping, "commands": below})
    scopes = [node, *([] if preset is None else [node.mapping["commands"].mapping[preset]])]
    # Every text fits everywhere else.
    if any(one.reference for scope in scopes for one in _of_training(scope)):
        from fdl.manifest.check import check

        check(node, whole=True)
    made.manifest.node = node
    return made


def _of_training(scope: Node) -> Iterable[Node]:
    training = scope.get("training")
    return training.mapping.values() if training else ()


def _settings(scope: Node, find: Find, root: str) -> Node:
    """A manifest or preset with expanded ``training``, ``options`` and ``output.dir``."""
    made = dict(scope.mapping)
    for key, numbers in (("training", True), ("options", False)):
        if key in made:
            made[key] = expanded(made[key], find, root, numbers=numbers)
    output = scope.get("output")
    if output and "dir" in output.mapping:
        folder = expanded(output.mapping["dir"], find, root)
        made["output"] = output.at({**output.mapping, "dir": folder.at(text(folder.value))})
    return scope.at(made)


def known_folder(level: Level, node: Node, scope: Node) -> str:
    """The same as :func:`folder_name`, for a list; empty if a variable is not set."""
    try:
        return folder_name(level, node, scope)
    except FdlError:
        return ""
