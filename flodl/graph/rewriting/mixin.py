"""The part of a graph's interface for rewrites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, cast

from flodl.graph.base import GraphBase
from flodl.graph.codegen import Core
from flodl.graph.rewriting.experts import ExpertsAsOne
from flodl.graph.rewriting.loops import InvariantsOnce
from flodl.graph.rewriting.maps import PartsTogether
from flodl.graph.rewriting.node_rewrite import NodeRewrite
from flodl.graph.rewriting.shared import shared_nodes
from flodl.graph.topology import Gate, Loop, Map, Node


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A node that can be computed in a faster way, with the same result up to rounding.

    Attributes:
        node: The node's id; in a nested graph with the path of that graph.
        what: What is done differently.
        refusal: Why the node is computed in the plain way all the same; empty if it is not.
    """

    node: str
    what: str
    refusal: str = ""

    def __str__(self) -> str:
        return f"{self.node}: {self.what}" + (f" (no: {self.refusal})" if self.refusal else "")


class Rewritable(GraphBase):
    """The part of a graph's interface for rewrites.

    A rewrite changes how nodes are computed, and nothing else: parameters, names, checkpoints,
    structural hash, tags and drawings are those of the graph. Its values differ by rounding.
    """

    _twins: tuple[Core, Core] | None = None

    def rewrites(self) -> list[Rewrite]:
        """The nodes that can be computed in a faster way, here and in nested graphs.

        - The experts of a gate as one product, if they have the same layers and shapes.
        - The nodes of a loop's body that do not depend on its state: once, before the loop.
        - Layers of a map for all parts at once.
        - A node with the module and the input of an earlier one: its value is used.

        Nodes that cannot be rewritten are listed, too, with the reason: layers of the user, hooks,
        parametrizations, different shapes, dropout.
        """
        return [one for path, graph in _graphs(self) for one in graph.own_rewrites(path)]

    def own_rewrites(self, path: str = "") -> list[Rewrite]:
        """The nodes in :meth:`rewrites` without those of nested graphs.

        Args:
            path: Of this graph; the nodes are named below it.
        """
        cores: list[Core] = [cast("Any", self)._core, *(self._twins or ())]
        known: Any = next((core.rewrites for core in cores if core.rewrites), None)
        planned: dict[int, NodeRewrite] = known or self._planned()
        found = []
        for number, one in sorted(planned.items()):
            node = self.topology.node(number)
            reason = one.refusal(cast("Any", self._modules[node.prefix]))
            found.append(Rewrite(f"{path}.{node.id}" if path else node.id, one.what, reason))
        return found

    def rewrite(self, on: bool = True) -> Self:
        """Compute the nodes in :meth:`rewrites` in the faster way from now on, or as they are.

        Every call checks again whether a node can be rewritten. So layers can be replaced and
        hooks added afterwards. A rewritten node compares its first values with those
        of its layers. A copy or a pickle keeps the choice; ``compile()`` compiles the plain graph.
        """
        for _, graph in _graphs(self):
            graph._use_rewrites(on)
        return self

    @property
    def is_rewritten(self) -> bool:
        """Whether nodes of this graph are computed as :meth:`rewrites` says."""
        core: Core = cast("Any", self)._core
        return bool(core.rewrites)

    def _use_rewrites(self, on: bool) -> None:
        """Change between the plain and the rewritten core, which are both kept."""
        graph = cast("Any", self)
        core: Core = graph._core
        if on is bool(core.rewrites) or graph._compile_options is not None:
            return
        if self._twins is None or core not in self._twins:
            planned: Any = self._planned() if on else {}
            other = core.rewritten(planned)
            self._twins = (core, other) if on else (other, core)
        graph._core = self._twins[on]

    def _planned(self) -> dict[int, NodeRewrite]:
        """The rewrites of all nodes that they may fit, by number."""
        found: dict[int, NodeRewrite] = {}
        for node in self.topology.nodes:
            if (one := _rewrite_of(node)) is not None:
                found[node.number] = one
        return {**found, **shared_nodes(self.topology, self._modules)}


def _rewrite_of(node: Node) -> NodeRewrite | None:
    match node.operation:
        case Gate():
            return ExpertsAsOne()
        case Loop(limit=limit) if limit > 1 and node.references:
            return InvariantsOnce()
        case Map(kind="each" | "over", batched=False):
            return PartsTogether()
        case _:
            return None


def _graphs(graph: GraphBase) -> list[tuple[str, Rewritable]]:
    return [(path, one) for path, one in graph.named_modules() if isinstance(one, Rewritable)]
