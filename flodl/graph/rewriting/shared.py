"""Nodes that compute the same as another node: its value is used instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

from torch import nn

from flodl.graph.rewriting.hoisting import only_reads, writes_nothing
from flodl.graph.rewriting.known import impurity, shares_memory, unusual
from flodl.graph.rewriting.node_rewrite import NodeRewrite
from flodl.graph.topology import Call, Node, Topology

Registry = Mapping[str, "nn.Module | None"]
Nodes = tuple[Node, ...]


@final
class SharedOnce(NodeRewrite):
    """A node with the module and the input of an earlier one.

    Args:
        same: The number of the earlier node.
        pair: The prefixes of both nodes.
        readers: The nodes that read one of the two values.
        between: The nodes that run after the earlier node and before this one.
    """

    what: ClassVar[str] = "a node that computes the same as an earlier one, once"

    def __init__(self, same: int, pair: tuple[str, str], readers: Nodes, between: Nodes) -> None:
        super().__init__()
        self.same = same
        self._pair = pair
        self._readers = readers
        self._between = between

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedOnce, (self.same, self._pair, self._readers, self._between)

    def refusal(self, module: nn.Module) -> str:
        """Return why the node runs; empty if the value of the earlier node is used."""
        return impurity(module)

    def __call__(self, module: Any, *_: Any) -> bool:
        """Whether the earlier value can be used; ``module`` is the registry of the graph."""
        registry: Registry = module
        one, other = (registry[prefix] for prefix in self._pair)
        if unusual() or one is None or one is not other or not _is_pure(one):
            return False
        return _is_quiet(registry, self._readers, self._between)


def shared_nodes(topology: Topology, registry: Registry) -> dict[int, SharedOnce]:
    """The nodes that compute the same as an earlier one.

    Both values are then one tensor. So only nodes of the graph may read it that do not write into
    it, and it is neither the output nor tagged.
    """
    first: dict[tuple[object, ...], Node] = {}
    alike: dict[int, int] = {}
    found: dict[int, SharedOnce] = {}
    tagged = {topology.tagged_nodes[tag] for tag in (*topology.kept_tags, *topology.state_tags)}
    kept = {topology.output, *tagged}
    order = [node for level in topology.levels for node in level]
    for node in order:
        if not isinstance(node.operation, Call) or len(node.wires) != 1:
            continue
        source = node.wires[0].source
        key = (id(registry[node.prefix]), alike.get(source, source))
        earlier = first.setdefault(key, node)
        pair = (earlier.number, node.number)
        module = registry[node.prefix]
        if earlier is node or not kept.isdisjoint(pair) or module is None or not _is_pure(module):
            continue
        readers = tuple(n for n in topology.nodes if any(w.source in pair for w in n.wires))
        between = tuple(order[order.index(earlier) + 1 : order.index(node)])
        if _is_quiet(registry, readers, between):
            alike[node.number] = earlier.number
            prefixes = (earlier.prefix, node.prefix)
            found[node.number] = SharedOnce(earlier.number, prefixes, readers, between)
    return found


def _is_quiet(registry: Registry, readers: Nodes, between: Nodes) -> bool:
    """Whether nothing writes into the two values, nor into what they are computed from."""
    return all(only_reads(node, registry.get(node.prefix)) for node in readers) and all(
        writes_nothing(node, registry.get(node.prefix)) for node in between
    )


def _is_pure(module: nn.Module) -> bool:
    return not impurity(module) and not shares_memory(module)
