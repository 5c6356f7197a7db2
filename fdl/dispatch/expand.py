"""``${VAR}`` and ``${VAR:-default}`` in the values of a manifest; ``$$`` is a plain ``$``.

The values come from global flags, the shell, ``env:`` and ``env_file:``, strongest first. Commands
are planned with the values; the manifest and its cache keep the text as it is written.
Loaded only for values with a ``$``.
"""

from __future__ import annotations

import copy
import os
import re

from fdl.dispatch.spelling import text
from fdl.errors import FdlError, ManifestError
from fdl.manifest import origin
from fdl.manifest.node import Node
from fdl.manifest.scalars import resolve
from fdl.secrets import is_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fdl.dispatch.walk import Level

    Find = Callable[[str], tuple[str, bool] | None]
    """Name -> the value of the variable, and whether it is secret; None if it is not set."""

_REFERENCE = re.compile(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")


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

    def instead(match: re.Match[str]) -> str:
        nonlocal secret
        found, is_hidden = _value(match, node, find, root)
        secret = secret or is_hidden
        return found

    made.value = _REFERENCE.sub(instead, value)
    made.secret = secret
    whole = _REFERENCE.fullmatch(value)
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


def finder(
    scopes: Sequence[Node], root: str, shell: Mapping[str, str], typed: Mapping[str, str]
) -> Find:
    """Where the values outside of ``env:`` find their variables, ``env_file:`` included."""
    from fdl.dispatch.environment import variables

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
    from fdl.manifest.check import check

    made = copy.copy(level)
    made.manifest = copy.copy(level.manifest)
    node = _settings(level.manifest.node, find, level.root)
    if preset is not None:
        commands = node.mapping["commands"]
        spec = _settings(commands.mapping[preset], find, level.root)
        below = commands.at({**commands.mapping, preset: spec})
        node = node.at({**node.mapping, "commands": below})
    check(node, whole=True)
    made.manifest.node = node
    return made


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
