"""What can be wrong with a value of a manifest; :mod:`fdl.manifest.check` has the words for it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.node import Node

    Path = tuple[str | int, ...]


class Mistake:
    """Something that cannot stand where it stands.

    Attributes:
        node: The value; for a key that is absent, the mapping that lacks it.
        path: Where it stands, or should.
    """

    __slots__ = ("node", "path")

    def __init__(self, node: Node, path: Path) -> None:
        self.node = node
        self.path = path

    @property
    def place(self) -> tuple[str, int, int]:
        """File, line and column to look at."""
        return self.node.file, self.node.line, self.node.column


class Missing(Mistake):
    """A key is absent. In one layer of several that is none: another layer may have it."""

    __slots__ = ()


class Unknown(Mistake):
    """A key that the mapping cannot hold.

    Attributes:
        known: The keys it can hold.
    """

    __slots__ = ("known",)

    def __init__(self, node: Node, path: Path, known: Sequence[str]) -> None:
        super().__init__(node, path)
        self.known = known

    @property
    def place(self) -> tuple[str, int, int]:
        """The key, not its value."""
        return self.node.file, self.node.key_line, self.node.key_column


class Refused(Mistake):
    """The key, or what stands under it, cannot be there at all.

    Attributes:
        problem: Why, as the rest of a sentence that begins with the path.
    """

    __slots__ = ("problem",)

    def __init__(self, node: Node, path: Path, problem: str) -> None:
        super().__init__(node, path)
        self.problem = problem


class Unsuitable(Mistake):
    """The value is not what its key demands.

    Attributes:
        demand: What the key demands: ``must be …``.
        remedy: What to do about this very value; empty for nothing but to meet the demand.
        near: Values it may have been meant for; the nearest is proposed.
    """

    __slots__ = ("demand", "near", "remedy")

    def __init__(
        self, node: Node, path: Path, demand: str, remedy: str = "", near: Sequence[str] = ()
    ) -> None:
        super().__init__(node, path)
        self.demand = demand
        self.remedy = remedy
        self.near = near
