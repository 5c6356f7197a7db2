"""The common part of a graph's interface: topology, tags, children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, cast

from torch import Tensor, nn

from fdl.base.suggest import nearest
from flodl.graph.topology import Topology

if TYPE_CHECKING:
    from flodl.graph.graph import Graph

Names: TypeAlias = str | Iterable[str]
"""A name, or several."""


class GraphBase(nn.Module):
    """The part of a graph that every mixin may use; ``Graph`` is the only concrete class.

    A mixin derives from this class and has no constructor. ``Graph`` makes its attributes.
    """

    @property
    def topology(self) -> Topology:
        """Nodes, wires and tags, as an immutable value."""
        raise NotImplementedError

    @property
    def has_run(self) -> bool:
        """Whether the values of a successful forward can be read."""
        raise NotImplementedError

    def structural_hash(self) -> str:
        """SHA-256 of the architecture in hex."""
        raise NotImplementedError

    def tagged(self, name: str) -> Tensor | None:
        """The value of a tag in the last forward, or None before the first."""
        raise NotImplementedError

    def _captured_tags(self) -> dict[str, Tensor]:
        """The values of all tags in the last forward; empty before the first."""
        raise NotImplementedError

    @property
    def label(self) -> str | None:
        """The name set with ``label()``, or None."""
        return self.topology.label

    def tag_names(self) -> list[str]:
        """All tags in the order of their declaration."""
        return list(self.topology.tagged_nodes)

    def tag_group(self, name: str) -> list[str] | None:
        """The tags of a group, or None if there is no such group."""
        members = dict(self.topology.groups).get(name)
        return None if members is None else list(members)

    def tree_children(self) -> dict[str, Graph]:
        """The labelled graphs that are nodes of this one, by label, in registration order."""
        children: dict[str, Graph] = {}
        for node in self.topology.nodes:
            module = self._modules[node.prefix] if node.prefix else None
            if isinstance(module, GraphBase) and module.label is not None:
                # Graph is the only concrete subclass; importing it here would be circular.
                children[module.label] = cast("Graph", module)
        return children

    def _tree(self) -> Iterator[tuple[str, Graph]]:
        """Yield this graph with an empty prefix, then every labelled graph below with its path."""
        yield "", cast("Graph", self)
        for label, child in self.tree_children().items():
            for prefix, graph in child._tree():
                yield f"{label}.{prefix}", graph

    def _owner(self, name: str) -> tuple[Graph, str]:
        """Split a dotted name into the labelled graph it names and the rest, a name in that graph.

        Leading segments count as long as they are labels; the rest belongs to the graph found.
        """
        label, dot, rest = name.partition(".")
        child = self.tree_children().get(label) if dot else None
        return (cast("Graph", self), name) if child is None else child._owner(rest)

    def _expanded(self, names: Iterable[Names]) -> list[str]:
        """The names without duplicates, with tag groups replaced by their members."""
        expanded: list[str] = []
        several = ([one] if isinstance(one, str) else one for one in names)
        for name in chain.from_iterable(several):
            graph, group = self._owner(name)
            prefix = name.removesuffix(group)
            expanded += [prefix + member for member in graph.tag_group(group) or [group]]
        return list(dict.fromkeys(expanded))

    def _no_such(self, what: str, name: str, known: list[str]) -> str:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"it has: {known or 'none'}"
        return f"the graph has no {what} {name!r}; {hint}"
