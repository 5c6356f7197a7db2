"""``include:``: the commands of other files, as if they were written in the manifest itself.

Only commands are taken, and their relative paths count from the folder of the manifest that
includes them. Each value keeps its own file and line.
"""

# pathlib would add to the start of every first command.
# ruff: noqa: PTH113, PTH118, PTH120
from __future__ import annotations

import os

from fdl.manifest.node import Node
from fdl.manifest.source import refusal, refusal_of, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ALLOWED = ("commands", "description", "include")


def with_included(top: Node, read: Callable[[str], Node], absent: Callable[[str], None]) -> Node:
    """A manifest with the commands of the files that it includes, and without ``include``.

    Args:
        top: The root mapping of the manifest.
        read: Reads and checks one file.
        absent: Is called with each file that may be missing, and is.

    Raises:
        ManifestError: A file is missing or includes itself, holds more than commands, or defines a
            command that another file defines.
    """
    commands: dict[str, Node] = {}
    seen: set[str] = set()

    def take(node: Node, chain: list[str]) -> None:
        for name, spec in _commands(node).items():
            if name in commands:
                raise _conflict(name, commands[name], spec)
            commands[name] = spec
        for item, file in _files(node, absent):
            canonical = os.path.realpath(file)
            if canonical in chain:
                circle = " -> ".join(map(shown, [*chain[chain.index(canonical) :], canonical]))
                raise refusal_of(
                    item, f"`include` leads in a circle: {circle}", "remove one of the links"
                )
            # A file that two others include counts once.
            if canonical not in seen:
                seen.add(canonical)
                take(_only_commands(read(file)), [*chain, canonical])

    take(top, [os.path.realpath(top.file)])
    kept = {key: child for key, child in top.mapping.items() if key != "include"}
    place = top.get("commands") or top.mapping["include"]
    kept["commands"] = Node(commands, place.file, place.line, place.column)
    return top.at(kept)


def _commands(node: Node) -> dict[str, Node]:
    commands = node.get("commands")
    return commands.mapping if commands else {}


def _files(node: Node, absent: Callable[[str], None]) -> Iterator[tuple[Node, str]]:
    """The existing files that a manifest includes, each with the value that names it."""
    given = node.get("include")
    value = given.value if given else []
    for item in value if isinstance(value, list) else [given]:
        written = item and (item.get("path") or item)
        if not item or not written:
            continue
        folder = os.path.dirname(node.file)
        file = os.path.normpath(os.path.join(folder, str(written.value)))
        if os.path.isfile(file):
            yield written, file
            continue
        required = item.get("required")
        if required is None or required.value is not False:
            raise refusal_of(
                written,
                f"`include: {written.value}`: there is no such file in {folder}",
                f"create it, or let it be absent with `{{path: {written.value}, required: false}}`",
            )
        absent(file)


def _only_commands(node: Node) -> Node:
    for key, child in node.mapping.items():
        if key not in _ALLOWED:
            problem = f"`{key}` cannot be in an included file, which gives commands only"
            hint = f"move it to the fdl.yml, or give {shown(node.file)} to `inherit-from`"
            raise refusal(child.file, child.key_line, child.key_column, problem, hint)
    return node


def _conflict(name: str, first: Node, second: Node) -> Exception:
    place = f"{shown(first.file)}:{first.key_line}:{first.key_column}"
    problem = f"command `{name}` is also defined at {place}"
    return refusal(
        second.file, second.key_line, second.key_column, problem, "rename or remove one of them"
    )
