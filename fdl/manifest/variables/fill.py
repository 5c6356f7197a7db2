"""Settings and folder names of a command with values in place of ``${VAR}``.

Loaded only for values with a ``$``.
"""

from __future__ import annotations

import copy
import os

from fdl.base.errors import FdlError
from fdl.manifest.node import text
from fdl.manifest.variables.env import variables
from fdl.manifest.variables.expand import Variables, expanded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.manifest.variables.expand import Find


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
