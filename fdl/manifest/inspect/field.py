"""One final value with every place that sets it."""

from __future__ import annotations

from fdl.base.light_record import Record
from fdl.manifest.node import Node, dotted, relative

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.load import Manifest

    Path = tuple[str | int, ...]

WINS = "wins"
OVERRIDDEN = "overridden"
PART = "part of it"
REMOVED = "removed"


class Statement(Record):
    """What one place sets a value to.

    Attributes:
        role: ``wins``, ``overridden``, ``part of it`` (its items are among those of the value) or
            ``removed`` (it deletes the value).
        source: The kind of place: ``manifest``, ``overlay``, ``preset quick``, …
        value: The value there, as JSON data without secrets. Of a list that joins another one, only
            its own items.
        file: The file, relative to the project; None if the place is not in a file.
        line: Line from 1, or None.
        column: Column from 1, or None.
        merge: How a list joins the next weaker one: ``append``, …; None to replace it.
        reference: The variables that the value was made from, ``${A} ${B}``; empty without any.
    """

    role: str
    source: str
    value: object
    file: str | None = None
    line: int | None = None
    column: int | None = None
    merge: str | None = None
    reference: str = ""

    @property
    def place(self) -> str:
        """``train/fdl.yml:4:7``; empty if the place is not in a file."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)

    @property
    def line_place(self) -> str:
        """``train/fdl.yml:4``, or the source if the place is not in a file."""
        return f"{self.file}:{self.line}" if self.file else self.source


def stated(role: str, origin: str, value: object) -> Statement:
    """The statement of an origin as a plan writes it: ``fdl.yml:4:7``, ``.env:3``, ``shell``."""
    file, *numbers = origin.rsplit(":", 2)
    if len(numbers) == 2 and all(map(str.isdecimal, numbers)):
        return Statement(role, "manifest", value, file, int(numbers[0]), int(numbers[1]))
    file, _, line = origin.rpartition(":")
    if file and line.isdecimal():
        return Statement(role, "env file", value, file, int(line))
    return Statement(role, origin, value)


class Field(Record):
    """One value and its statements.

    Attributes:
        path: The keys that lead to it.
        value: The final value, as JSON data without secrets; None for a removed one.
        stack: Its statements, strongest first; never empty.
        flag: The flag that passes it to a program, or None.
    """

    path: Path
    value: object
    stack: Sequence[Statement]
    flag: str | None = None

    @property
    def name(self) -> str:
        """The path as text, as users write it."""
        return dotted(self.path)

    @property
    def plain_name(self) -> str:
        """The path without quotes around a key that has dots."""
        return ".".join(map(str, self.path))

    @property
    def top(self) -> Statement:
        """The strongest statement."""
        return self.stack[0]

    @property
    def removed(self) -> bool:
        """Whether a layer has deleted the value."""
        return self.top.role == REMOVED


class Origins:
    """Turns nodes of one manifest into statements, with files relative to ``root``."""

    def __init__(self, root: str, manifest: Manifest) -> None:
        self._root = root
        self._layers = manifest.layers
        base = manifest.found.path
        self._cut = self._layers.index(base) if base in self._layers else 0

    def field(self, path: Path, nodes: Sequence[Node], *, removed: bool = False) -> Field:
        """The field that several nodes make; see :meth:`statements`."""
        value = None if removed else nodes[0].plain()
        return Field(path, value, self.statements(nodes, removed=removed))

    def statements(self, nodes: Sequence[Node], *, removed: bool = False) -> list[Statement]:
        """The statements of a winner and the nodes that it has replaced or ``removed``."""
        made: list[Statement] = []
        joined = False
        for place, node in enumerate(nodes):
            role = PART if joined and node.value is not None else OVERRIDDEN
            if place == 0:
                role = REMOVED if removed else WINS
            made.append(self.statement(role, node))
            if node.merge and node.losers:
                made[-1].value = _own_items(node, node.losers[0])
            # A list with no weaker list to join has replaced everything weaker.
            joined = node.merge is not None and bool(node.losers) and (place == 0 or joined)
        return made

    def statement(self, role: str, node: Node) -> Statement:
        """The statement of one node."""
        # A block mapping begins at its first key. The name of the mapping is the better place.
        at_key = isinstance(node.value, dict) and bool(node.value)
        return Statement(
            role,
            self._source_of(node.file),
            node.plain(),
            relative(node.file, self._root),
            node.key_line if at_key else node.line,
            node.key_column if at_key else node.column,
            node.merge,
            node.reference,
        )

    def _source_of(self, file: str) -> str:
        layer = self._layers.index(file) if file in self._layers else self._cut
        if layer == self._cut:
            return "manifest"
        return "inherited" if layer < self._cut else "overlay"


def _own_items(node: Node, below: Node) -> object:
    """The items that a joined list adds itself. ``merge-by`` changes items, so all are given."""
    items = node.value if isinstance(node.value, list) else []
    others = len(below.value) if isinstance(below.value, list) else 0
    if node.merge == "append":
        items = items[others:]
    elif node.merge == "prepend":
        items = items[: len(items) - others]
    return [item.plain() for item in items]
