"""Determine which graphs a compiler can take as one piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flodl.graph.base import GraphBase
from flodl.graph.nodes import LoopNode
from flodl.torch_features import DIFFERENTIATES_LOOPS


@dataclass(frozen=True, slots=True)
class Capturable:
    """True if nothing prevents a compiler from taking the graph as one piece.

    Attributes:
        reasons: What prevents it, one sentence per obstacle with its node.
    """

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons


def obstacles(graph: GraphBase) -> Iterator[str]:
    """Yield why ``torch.compile`` or ``torch.export`` cannot take the whole graph as one piece.

    Only the parts of graphs are checked. User modules may have obstacles of their own.

    Yields:
        One sentence per obstacle; those of nested graphs begin with their path.
    """
    for path, module in graph.named_modules():
        if isinstance(module, GraphBase):
            yield from (f"in {path}: {reason}" if path else reason for reason in _own(module))


def _own(graph: GraphBase) -> Iterator[str]:
    for tag in graph.topology.state_tags:
        yield (
            f"{tag!r} is carried from call to call outside the captured function: compile the "
            "core with graph.compile(), which leaves the carrying outside"
        )
    for node in graph.topology.loops:
        loop = graph._modules[node.prefix]
        if not isinstance(loop, LoopNode) or loop.cond is None:
            continue
        decides = f"{node.id} decides on the values it computes how often to run"
        if loop.leaves_traces:
            yield (
                f"{decides}, and its body records every iteration: the number of records is not "
                "known beforehand"
            )
        elif not DIFFERENTIATES_LOOPS:
            yield f"{decides}: the compiler differentiates such a loop from PyTorch 2.10 on"
