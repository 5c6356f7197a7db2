"""A manifest value that remembers where it was written.

Imported on the warm path: nothing here may import yaml, pydantic, json, re, typing or dataclasses.
"""

from __future__ import annotations

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
    """

    __slots__ = ("column", "file", "key_line", "line", "value")

    def __init__(
        self, value: Value, file: str, line: int, column: int, key_line: int | None = None
    ) -> None:
        self.value = value
        self.file = file
        self.line = line
        self.column = column
        self.key_line = line if key_line is None else key_line

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

    def leaves(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Every leaf with its path, in file order; a list and an empty mapping are one leaf each."""
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
