"""Which graphs a compiler can take as one piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flodl.graph.base import GraphBase
from flodl.graph.nodes import LoopNode


@dataclass(frozen=True, slots=True)
class Capturable:
    """True when nothing stands in the way.

    Attributes:
        reasons: What does, one sentence per obstacle with its node.
    """

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons


def obstacles(graph: GraphBase) -> Iterator[str]:
    """Why a graph, taken with its shell by ``torch.compile`` or ``torch.export``, falls apart.

    Only what graphs are made of is judged; a module of the user's may hold surprises of its own.

    Yields:
        One sentence per obstacle, those of nested graphs under their paths.
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
        if isinstance(loop, LoopNode) and loop.cond is not None and loop.leaves_traces:
            yield (
                f"{node.id} decides on the values it computes how often to run, and its body "
                "records every iteration: the number of records is not known beforehand"
            )
