"""The variables that manifests give to a command: ``env:`` and ``env_file:``.

Later wins: ``env:`` of the project, of the parent folders and of the command < env files in the
same order < fdl's own environment < global flags.
Loaded only for commands that have such keys.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH118, PTH120, PTH123
from __future__ import annotations

import os

from fdl.base.errors import ManifestError
from fdl.base.secrets import is_secret
from fdl.manifest.node import Variable, origin, relative, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fdl.manifest.node import Node

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
        for item in _files(scope):
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
        from fdl.manifest.variables.expand import Variables

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


def _files(scope: Node) -> list[Node]:
    given = scope.get("env_file")
    if given is None:
        return []
    return given.value if isinstance(given.value, list) else [given]


def _from_file(
    item: Node, root: str, weaker: Mapping[str, str], shell: Mapping[str, str]
) -> Iterator[Variable]:
    """The variables of one env file, which may refer to weaker ones and to the shell's."""
    written = item.get("path") or item
    if "$" in str(written.value):
        from fdl.manifest.variables.expand import Variables, expanded

        written = expanded(written, Variables({}, root, shell, weaker).find, root)
    file = os.path.join(os.path.dirname(item.file), str(written.value))
    required = item.get("required")
    if required is not None and required.value is False and not os.path.lexists(file):
        return
    from fdl.manifest.variables.dotenv import parse

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
    for name, value, line in parse(content, shown, dict(weaker), shell):
        _refuse_fixed(name, f"{shown}:{line}")
        yield Variable(name, value, f"{shown}:{line}", secret=True)
