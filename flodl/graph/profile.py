"""The time each node of a graph takes: in one profiled forward, and its history over epochs."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from flodl.errors import StateError
from flodl.graph.base import GraphBase
from flodl.graph.paths import timed_nodes
from flodl.graph.topology import Topology

if TYPE_CHECKING:
    from flodl.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class NodeTiming:
    """The time of one node.

    Attributes:
        id: The node.
        tags: Its tags.
        level: Its level in the order of execution, from 0.
        seconds: From the end of the previous node to its own end.
    """

    id: str
    tags: tuple[str, ...]
    level: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LevelTiming:
    """The time of the nodes that could run in parallel.

    Attributes:
        index: The level, from 0.
        wall: Seconds from the start of its first node to the end of its last.
        sum_nodes: Sum of the seconds of its nodes.
        num_nodes: Number of its nodes.
    """

    index: int
    wall: float
    sum_nodes: float
    num_nodes: int

    @property
    def parallelism(self) -> float:
        """Time of the nodes over wall time; 1 for a single node, and if nodes run one by one."""
        if self.num_nodes <= 1 or not self.wall:
            return 1.0
        return self.sum_nodes / self.wall


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of one forward, in seconds.

    Attributes:
        total: From the start of the forward to the end of the last node.
        levels: Every level, in order of execution.
        nodes: Every node, in order of execution.
    """

    total: float
    levels: tuple[LevelTiming, ...]
    nodes: tuple[NodeTiming, ...]

    def __str__(self) -> str:
        width = max((len(node.id) for node in self.nodes), default=0)
        lines = [f"{'total':<{width}}  {self.total * 1e3:10.3f} ms"]
        for node in self.nodes:
            share = node.seconds / self.total if self.total else 0.0
            tags = "".join(f"  #{tag}" for tag in node.tags)
            lines.append(f"{node.id:<{width}}  {node.seconds * 1e3:10.3f} ms {share:7.1%}{tags}")
        return "\n".join(lines)


Stamp = float | torch.cuda.Event


class Pass:
    """The timestamps of one forward; CUDA events become numbers when they are read.

    Attributes:
        numbers: The nodes in the order in which they ended.
    """

    __slots__ = ("_seconds", "_stamps", "numbers")

    def __init__(self, numbers: Sequence[int], stamps: Sequence[Stamp]) -> None:
        self.numbers = numbers
        self._stamps = stamps
        self._seconds: list[float] | None = None

    @property
    def seconds(self) -> list[float]:
        """The time of every node; waits for the device if it has not finished."""
        if self._seconds is None:
            self._seconds = [_between(a, b) for a, b in itertools.pairwise(self._stamps)]
            self._stamps = ()
        return self._seconds


def _between(start: Any, end: Any) -> float:
    """Seconds between two timestamps of one clock."""
    if isinstance(end, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


class Recorder:
    """Records when nodes end; the core of a profiled graph calls it.

    Each pass uses one clock, so that its times add up: CUDA events on the current stream if the
    graph is on a CUDA device, else the host's clock. An event waits for all earlier work. So a node
    that uses both host and device is timed completely.

    Args:
        graph: The graph to time.
        count: Its number of nodes.
    """

    def __init__(self, graph: nn.Module, count: int) -> None:
        # A weak reference: the graph holds its core, and the core holds this.
        self._graph = weakref.ref(graph)
        self._count = count
        self._last: Pass | None = None
        self._numbers: list[int] = []
        self._stamps: list[Stamp] = []
        self._stamp: Callable[[], Stamp] | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a copied graph has its own core, which is not profiled

    def __call__(self, number: int) -> None:
        """Record that a node has ended; 0 is the start of a forward."""
        # Nodes fused by a compiler or replayed by a CUDA graph have no times of their own.
        if torch.compiler.is_compiling():
            return
        if number:
            self._numbers.append(number)
        else:
            self._keep()
            self._numbers, self._stamps, self._stamp = [], [], self._clock()
        if self._stamp is not None:
            self._stamps.append(self._stamp())

    @property
    def last(self) -> Pass | None:
        """The last successful forward; None before the first."""
        self._keep()
        return self._last

    def _keep(self) -> None:
        if len(self._numbers) == self._count and len(self._stamps) == self._count + 1:
            self._last = Pass(self._numbers, self._stamps)
            self._numbers, self._stamps = [], []

    def _clock(self) -> Callable[[], Stamp] | None:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return time.perf_counter
        if torch.cuda.is_current_stream_capturing():
            return None
        graph = self._graph()
        tensors = [] if graph is None else [*graph.parameters(), *graph.buffers()]
        # A graph without tensors runs where its input is; on an idle stream events give host time.
        return _event if not tensors or any(t.is_cuda for t in tensors) else time.perf_counter


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class Profiled(GraphBase):
    """Times of a graph's nodes; a base class of ``Graph``.

    While profiling is on, every forward is timed. Names are tags; all times are seconds.

    A nested graph is one node of its parent. Labelled ones are profiled together with the parent,
    so that paths such as ``"encoder.hidden"`` name their nodes. Others can be profiled separately.
    """

    _recorder: Recorder | None = None

    # --- One forward -----------------------------------------------------------------------

    def enable_profiling(self) -> None:
        """Time every node in later forwards, also in the labelled graphs below.

        A compiled graph has no nodes left to time.

        On a CUDA device, events time the nodes without waiting. On the host, timing takes about a
        microsecond per node.
        """
        if self._recorder is None:
            self._recorder = Recorder(self, len(self.topology.nodes))
            self._set_mark(self._recorder)
        for child in self.tree_children().values():
            child.enable_profiling()

    def disable_profiling(self) -> None:
        """Stop timing here and below, and drop the profile."""
        if self._recorder is not None:
            self._recorder = None
            self._set_mark(None)
        for child in self.tree_children().values():
            child.disable_profiling()

    def profile(self, path: str = "") -> Profile | None:
        """The times of the last successful forward, or None if none was profiled.

        Waits for the device if that forward is still running there.

        Args:
            path: A labelled graph below; default: this graph.

        Raises:
            PathError: The path does not exist or does not name a graph.
        """
        if path:
            return cast("Graph", self).subgraph(path).profile()
        last = None if self._recorder is None else self._recorder.last
        return None if last is None else _profile(self.topology, last)

    def timing(self, path: str) -> float:
        """Seconds that a node took in the last profiled forward; 0 before the first.

        Args:
            path: A tag, a child graph, or a node by its name in the registry; in a child graph
                with labels before it, as in ``"encoder.hidden"``.

        Raises:
            PathError: The path does not exist, names several modules, or does not name a node.
            StateError: This graph is profiled, but the nested graph with the node is not.
        """
        graph, numbers = timed_nodes(cast("Graph", self), path)
        if graph._recorder is None and self._recorder is not None:
            raise StateError(
                f"path {path!r} leads into a graph that is not profiled: give it a label, or call "
                "its enable_profiling()"
            )
        last = None if graph._recorder is None else graph._recorder.last
        if last is None:
            return 0.0
        seconds = dict(zip(last.numbers, last.seconds, strict=True))
        return sum(seconds[number] for number in numbers)

    # --- Internals -------------------------------------------------------------------------

    def _set_mark(self, mark: Callable[[int], None] | None) -> None:
        """Make the core call ``mark`` with 0 at its start and with each node's number."""
        raise NotImplementedError


def _profile(topology: Topology, last: Pass) -> Profile:
    """Group the times of a pass by level."""
    tags: dict[int, list[str]] = {}
    for tag, number in topology.tags:
        tags.setdefault(number, []).append(tag)
    seconds = dict(zip(last.numbers, last.seconds, strict=True))
    nodes: list[NodeTiming] = []
    levels: list[LevelTiming] = []
    for index, level in enumerate(topology.levels):
        timings = [
            NodeTiming(node.id, tuple(tags.get(node.number, ())), index, seconds[node.number])
            for node in level
        ]
        # Nodes run one by one, so a level takes the sum of their times.
        together = sum(timing.seconds for timing in timings)
        levels.append(LevelTiming(index, together, together, len(timings)))
        nodes += timings
    return Profile(sum(level.wall for level in levels), tuple(levels), tuple(nodes))
