"""``${VAR}`` and ``${VAR:-default}`` in the values of a manifest; ``$$`` is a plain ``$``.

The values come from global flags, the shell, ``env:`` and ``env_file:``, strongest first. Commands
are planned with the values; the manifest and its cache keep the text as it is written.
Loaded only for values with a ``$``.
"""

from __future__ import annotations

import re

from fdl.base.errors import ManifestError
from fdl.base.secrets import is_secret
from fdl.manifest.node import Node, origin, text
from fdl.manifest.scalars import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    names: dict[str, None] = {}

    def instead(match: re.Match[str]) -> str:
        nonlocal secret
        found, is_hidden = _value(match, node, find, root)
        secret = secret or is_hidden
        if match[1]:
            names[f"${{{match[1]}}}"] = None
        return found

    made.value = _REFERENCE.sub(instead, value)
    made.secret, made.reference = secret, " ".join(names)
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
