"""The fields of a manifest: every leaf of the merged tree, and every removed key."""

from __future__ import annotations

from fdl.manifest import secrecy
from fdl.manifest.inspect.field import Origins
from fdl.manifest.node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fdl.manifest.inspect.field import Field, Path
    from fdl.manifest.load import Manifest
    from fdl.manifest.node import Removed


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
                nodes = [below for one in mappings for below in descended(one, str(key))]
            if nodes:
                return [self._gone(path, removed, nodes)]
        return []

    def _item(self, path: Path) -> list[Field]:
        """One item of a list."""
        node: Node | None = self.tree
        for step in path:
            value = node.value if node else None
            if isinstance(step, str):
                node = value.get(step) if isinstance(value, dict) else None
            else:
                node = value[step] if isinstance(value, list) and step < len(value) else None
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
        below = [found for one in replaced for found in descended(one, key)]
        yield from stacks(child, (*path, key), below)


def descended(node: Node, key: str) -> list[Node]:
    """The values of a mapping's key, strongest first. A node that is not a mapping gives itself."""
    if not isinstance(node.value, dict):
        return [node]
    child = node.value.get(key)
    return [] if child is None else [child, *child.losers]


def said(nodes: Sequence[Node]) -> list[Node]:
    """The nodes without the nulls. A null that was overridden set nothing."""
    return [node for node in nodes if node.value is not None]
