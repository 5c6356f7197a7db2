"""A manifest value that remembers where it was written.

Imported on the warm path: nothing here may import yaml, pydantic, json, re, typing or dataclasses.
"""

from __future__ import annotations

import os

from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Scalar = str | int | float | bool | None
    Value = dict[str, "Node"] | list["Node"] | Scalar
    # The text of a value that lost, and where it stands.
    Loser = tuple[str, str]


class Node:
    """One value of a manifest with its origin.

    Attributes:
        value: A mapping of nodes, a list of nodes, or a scalar.
        file: Absolute path of the file that holds the value.
        line: Line of the value, from 1.
        column: Column of the value, from 1.
        key_line: Line of the key that names the value; equal to ``line`` for list items.
        key_column: Column of that key; equal to ``column`` for list items.
        losers: Values of weaker layers that this one replaced, strongest first. Each holds its
            own value alone.
        merge: How a list joins the weaker one: ``append``, ``prepend`` or ``merge-by:KEY``;
            None to replace it. A merged list keeps the word: its first loser is part of it.
        secret: Whether the value was marked ``!secret``, in this or a weaker layer; None for one
            marked ``!public``, which no name makes secret.
        empty: Whether nothing stands behind the key, and so no ``null`` either.
        reference: The variables that the value was made from, ``${A} ${B}``; empty without any.
    """

    __slots__ = (
        "column", "empty", "file", "key_column", "key_line", "line", "losers", "merge",
        "reference", "secret", "value",
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
        self.secret: bool | None = False
        self.empty = False
        self.reference = ""

    @property
    def mapping(self) -> dict[str, Node]:
        """The children of a mapping; empty for null and for every other value."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def listed(self) -> list[Node]:
        """The items of a list; any other value is the only one."""
        return self.value if isinstance(self.value, list) else [self]

    def get(self, key: str) -> Node | None:
        """The child under ``key``, or None when it is absent or null."""
        child = self.mapping.get(key)
        return None if child is None or child.value is None else child

    def find(self, *path: str | int) -> Node | None:
        """The node at a path, also a null; None if the path leads to nothing."""
        node: Node | None = self
        for step in path:
            value = node.value if node else None
            if isinstance(step, str):
                node = value.get(step) if isinstance(value, dict) else None
            else:
                node = value[step] if isinstance(value, list) and step < len(value) else None
        return node

    def text(self, key: str) -> str | None:
        """The string under ``key``, or None. Validation has already refused other types."""
        child = self.get(key)
        return None if child is None else str(child.value)

    def at(self, value: Value) -> Node:
        """Another value with the place, losers and marks of this one."""
        made = Node(value, self.file, self.line, self.column, self.key_line, self.key_column)
        made.losers, made.merge, made.secret = self.losers, self.merge, self.secret
        made.empty, made.reference = self.empty and value is None, self.reference
        return made

    def leaves(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Every leaf with its path, in file order. A list, or an empty mapping, is one leaf."""
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


class Null(str):
    """The program's own null, written ``!null``: a value to pass, and not a key to remove."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "!null"


class Removed(Record):
    """A key that a layer deleted.

    Attributes:
        path: The keys that lead to it.
        by: The null that deleted it; its ``losers`` are what it deleted, strongest first.
    """

    path: tuple[str, ...]
    by: Node


def texts(spec: Node, key: str) -> list[str]:
    """The texts under a key that holds one text or a list of them; empty without the key."""
    node = spec.get(key)
    return [str(one.value) for one in node.listed] if node else []


def text(value: object) -> str:
    """A scalar as a program's parser expects it: ``true`` instead of Python's ``True``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def origin(node: Node, root: str) -> str:
    """Return where a value is, relative to the project root: ``train/fdl.yml:9:13``."""
    return f"{relative(node.file, root)}:{node.line}:{node.column}"


def relative(file: str, directory: str) -> str:
    """``file`` relative to ``directory``; unchanged if no relative path exists."""
    try:
        return os.path.relpath(file, directory)
    except (OSError, ValueError):
        # The working directory was deleted, or the file is on another drive (Windows).
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


class Variable(Record):
    """One environment variable of the child and the place it came from.

    Attributes:
        name: Its name.
        value: What the child sees.
        origin: ``file:line:column`` or ``file:line``; ``shell`` for one that fdl's own
            environment has, ``command line`` for a global flag, ``fdl`` for fdl's own.
        secret: Whether the value is kept from print; None for one marked ``!public``.
        losers: Values it has replaced, strongest first.
    """

    name: str
    value: str
    origin: str
    secret: bool | None = False
    losers: Sequence[Loser] = ()
