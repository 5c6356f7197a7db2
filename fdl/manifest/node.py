"""A manifest value that remembers where it was written.

Imported on the warm path: nothing here may import yaml, pydantic, json, re, typing or dataclasses.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Scalar = str | int | float | bool | None
    Value = dict[str, "Node"] | list["Node"] | Scalar


class Node:
    """One value of a manifest with its origin.

    Attributes:
        value: A mapping of nodes, a list of nodes, or a scalar.
        file: Absolute path of the file that holds the value.
        line: Line of the value, from 1.
        column: Column of the value, from 1.
        key_line: Line of the key that names the value; equal to ``line`` for list items.
        key_column: Column of that key; equal to ``column`` for list items.
        losers: What stood here in weaker layers, strongest first; each holds its own value alone.
        merge: How a list joins the weaker one: ``append``, ``prepend`` or ``merge-by:KEY``; None
            for replacing it. A merged list keeps the word: its first loser is part of it.
        secret: Whether the value was marked ``!secret``, in this or a weaker layer.
    """

    __slots__ = (
        "column", "file", "key_column", "key_line", "line", "losers", "merge", "secret", "value",
    )  # fmt: skip

    def __init__(
        self,
        value: Value,
        file: str,
        line: int,
        column: int,
        key_line: int | None = None,
        key_column: int | None = None,
    ) -> None:
        self.value = value
        self.file = file
        self.line = line
        self.column = column
        self.key_line = line if key_line is None else key_line
        self.key_column = column if key_column is None else key_column
        self.losers: tuple[Node, ...] = ()
        self.merge: str | None = None
        self.secret = False

    @property
    def mapping(self) -> dict[str, Node]:
        """The children of a mapping; empty for null and for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    def get(self, key: str) -> Node | None:
        """The child under ``key``, or None when it is absent or null."""
        child = self.mapping.get(key)
        return None if child is None or child.value is None else child

    def text(self, key: str) -> str | None:
        """The string under ``key``, or None; validation has refused other types before."""
        child = self.get(key)
        return None if child is None else str(child.value)

    def at(self, value: Value) -> Node:
        """Another value with this one's place, losers and marks."""
        made = Node(value, self.file, self.line, self.column, self.key_line, self.key_column)
        made.losers, made.merge, made.secret = self.losers, self.merge, self.secret
        return made

    def leaves(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Every leaf with its path, in file order; a list, or an empty mapping, is one leaf."""
        if isinstance(self.value, dict) and self.value:
            for key, child in self.value.items():
                yield from child.leaves((*prefix, key))
        else:
            yield prefix, self

    def plain(self) -> object:
        """The value without origins: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


class Removed:
    """A key that a layer deleted.

    Attributes:
        path: The keys that lead to it.
        by: The null that deleted it; its ``losers`` are what it deleted, strongest first.
    """

    __slots__ = ("by", "path")

    def __init__(self, path: tuple[str, ...], by: Node) -> None:
        self.path = path
        self.by = by


def origin(node: Node, root: str) -> str:
    """``train/fdl.yml:9:13``: where a value stands, its file relative to the project root."""
    return f"{relative(node.file, root)}:{node.line}:{node.column}"


def relative(file: str, directory: str) -> str:
    """``file`` as seen from ``directory``; unchanged where no relative path leads there."""
    try:
        return os.path.relpath(file, directory)
    except (OSError, ValueError):
        # A vanished working directory, or another drive on Windows.
        return file


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as people write it: ``training.epochs``, ``commands."a.b".run``, ``args[0]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        if not all(char.isalnum() or char in "-_" for char in step):
            escaped = step.replace("\\", "\\\\").replace('"', '\\"')
            step = f'"{escaped}"'  # noqa: PLW2901
        text += f".{step}" if text else step
    return text
