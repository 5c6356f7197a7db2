"""One final value with every place that sets it, and all of a manifest."""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.light_record import Record
from fdl.manifest import secrecy
from fdl.manifest.node import Node, dotted, relative

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.load import Manifest

    Path = tuple[str | int, ...]
    from collections.abc import Iterator

    from fdl.manifest.node import Removed


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


def parse(text: str) -> Path:
    """The keys and indices of a path. Reverses :func:`fdl.manifest.node.dotted`.

    Raises:
        UsageError: The text is not a path.
    """
    steps: list[str | int] = []
    rest = text
    while True:
        key, rest = _quoted(rest, text) if rest.startswith('"') else _plain(rest)
        if not key:
            raise _refused(text)
        steps.append(key)
        while rest.startswith("["):
            digits, closing, rest = rest[1:].partition("]")
            if not closing or not digits.isdecimal():
                raise _refused(text)
            steps.append(int(digits))
        if not rest:
            return tuple(steps)
        if not rest.startswith("."):
            raise _refused(text)
        rest = rest[1:]


def _plain(text: str) -> tuple[str, str]:
    end = min((text.index(char) for char in ".[" if char in text), default=len(text))
    return text[:end], text[end:]


def _quoted(text: str, whole: str) -> tuple[str, str]:
    """The key between double quotes, where a backslash keeps the next character."""
    key, place = "", 1
    while place < len(text):
        if text[place] == '"':
            return key, text[place + 1 :]
        place += text[place] == "\\"
        key += text[place : place + 1]
        place += 1
    raise _refused(whole)


def _refused(text: str) -> UsageError:
    return UsageError(
        f"`{text}` is not a path of a manifest",
        hint='write `training.lr`, or `commands."a.b".run` for a key that holds a dot',
    )


class Report:
    """The tree and the fields of one manifest, without secrets.

    Args:
        manifest: The manifest.
        root: Directory that places are relative to; the manifest's own when omitted.

    Attributes:
        tree: The merged tree, to print.
        fields: One per leaf in the tree's order, then one per removed key.
    """

    def __init__(self, manifest: Manifest, root: str = "") -> None:
        self._origins = Origins(root or manifest.directory, manifest)
        self._removed = secrecy.removed(manifest)
        self.tree = secrecy.tree(manifest.node)
        self.fields = [
            self._origins.field(path, nodes) for path, nodes in stacks(self.tree) if path
        ]
        self.fields += [self._gone(one.path, one, said(one.by.losers)) for one in self._removed]

    def explain(self, path: Path) -> list[Field]:
        """The fields at a path and below it; empty if no layer ever set one."""
        found = [one for one in self.fields if one.path[: len(path)] == path]
        return found or self._removed_with_its_mapping(path) or self._item(path)

    def _removed_with_its_mapping(self, path: Path) -> list[Field]:
        for removed in self._removed:
            depth = len(removed.path)
            if path[:depth] != removed.path:
                continue
            nodes = said(removed.by.losers)
            for key in path[depth:]:
                mappings = [one for one in nodes if isinstance(one.value, dict)]
                nodes = [below for one in mappings for below in _descended(one, str(key))]
            if nodes:
                return [self._gone(path, removed, nodes)]
        return []

    def _item(self, path: Path) -> list[Field]:
        """One item of a list."""
        node = self.tree.find(*path)
        if node is None or not path:
            return []
        return [self._origins.field(path, [node, *node.losers])]

    def _gone(self, path: Path, removed: Removed, nodes: Sequence[Node]) -> Field:
        return self._origins.field(path, (removed.by, *nodes), removed=True)


def stacks(
    node: Node, path: tuple[str, ...] = (), above: Sequence[Node] = ()
) -> Iterator[tuple[tuple[str, ...], list[Node]]]:
    """Every leaf with its path, followed by the values it has replaced, strongest first.

    ``above`` are the values it replaced when a mapping around it was replaced as a whole.
    """
    if not isinstance(node.value, dict) or not node.value:
        yield path, [node, *node.losers, *above]
        return
    replaced = [*said(node.losers), *above]
    for key, child in node.value.items():
        below = [found for one in replaced for found in _descended(one, key)]
        yield from stacks(child, (*path, key), below)


def _descended(node: Node, key: str) -> list[Node]:
    """The values of a mapping's key, strongest first. A node that is not a mapping gives itself."""
    if not isinstance(node.value, dict):
        return [node]
    child = node.value.get(key)
    return [] if child is None else [child, *child.losers]


def said(nodes: Sequence[Node]) -> list[Node]:
    """The nodes without the nulls. A null that was overridden set nothing."""
    return [node for node in nodes if node.value is not None]
