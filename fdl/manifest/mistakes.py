"""The kinds of mistakes in a manifest; :mod:`fdl.manifest.check` words the messages."""

from __future__ import annotations

from fdl.base.suggest import nearest
from fdl.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.node import Node

    Path = tuple[str | int, ...]


class Mistake(Record):
    """A value or a key that is wrong.

    Attributes:
        node: The value; for an absent key, the mapping that lacks it.
        path: The path of the value or of the absent key.
    """

    node: Node
    path: Path

    @property
    def place(self) -> tuple[str, int, int]:
        """File, line and column to print."""
        return self.node.file, self.node.line, self.node.column


class Missing(Mistake):
    """A key is absent. In one layer of several this is allowed: another layer may have it."""


class Unknown(Mistake):
    """A key that the mapping cannot hold.

    Attributes:
        known: The keys it can hold.
    """

    known: Sequence[str]

    @property
    def place(self) -> tuple[str, int, int]:
        """The key, not its value."""
        return self.node.file, self.node.key_line, self.node.key_column


class Refused(Mistake):
    """The key, or its value, is not allowed here at all.

    Attributes:
        problem: Why, as the rest of a sentence that begins with the path.
    """

    problem: str


class Misplaced(Refused):
    """The key itself is not allowed here."""

    @property
    def place(self) -> tuple[str, int, int]:
        """The key, not its value."""
        return self.node.file, self.node.key_line, self.node.key_column


class Empty(Mistake):
    """Nothing stands behind a key.

    Attributes:
        known: Keys that the user may have meant.
    """

    known: Sequence[str] = ()

    @property
    def place(self) -> tuple[str, int, int]:
        """The key: behind it is nothing to point at."""
        return self.node.file, self.node.key_line, self.node.key_column


class Unsuitable(Mistake):
    """The value does not meet the demand of its key.

    Attributes:
        demand: The demand: ``must be …``.
        remedy: What to do about this value; empty if the demand says it all.
        near: Values that the user may have meant; the nearest is suggested.
    """

    demand: str
    remedy: str = ""
    near: Sequence[str] = ()


def empty(key: str, known: Sequence[str] = ()) -> str:
    """What to do about a key without a value.

    Args:
        key: The key.
        known: The keys that there are.
    """
    for mark, end in ((":", ", with a space after the colon"), ("=", "")):
        name, _, value = key.partition(mark)
        if name and value:
            return f"write `{name}: {value}`{end}"
    close = nearest(key, [name for name in known if name != key])
    meant = f"did you mean `{close}`? " if close else ""
    return f"{meant}write a value; `null` removes an inherited one"
