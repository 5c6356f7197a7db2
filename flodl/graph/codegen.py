"""The pure core of a graph: one straight-line Python function, generated once.

``core(modules, inputs, state) -> (output, tags, traces, state)`` has no side effects: it returns
everything it computes. Every node is one source line. A value is deleted after its last reader. A
call interprets nothing. Modules are looked up in the registry, so replacing one there takes effect.
"""

from __future__ import annotations

import itertools
import linecache
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from flodl.graph.nodes import (
    LoopTraces,
    first_tensor,
    map_each,
    map_slices,
    map_whole,
    refuse_shapes,
)
from flodl.graph.topology import (
    ENTRY,
    Call,
    Combine,
    Gate,
    Loop,
    Map,
    MergeOp,
    Node,
    Port,
    RefStyle,
    StateRead,
    Switch,
    Topology,
)

State = tuple[Tensor | None, ...]
CoreFunction = Callable[
    [Mapping[str, nn.Module | None], Sequence[Tensor | None], State],
    tuple[Tensor, tuple[Tensor | None, ...], tuple[LoopTraces, ...], State],
]
Initial = Tensor | Callable[[Tensor], Tensor]
"""Value of a state reader before the first one exists: a tensor, or a function of the stream."""

Mark = Callable[[int], None]


_serial = itertools.count(1)

_ABOUT_DTYPES = re.compile(r"\b(dtypes?|scalar types?|tensor types?|Float|Double|Half|Long)\b")


class Core:
    """The generated function of one topology.

    A copied or unpickled core is generated again from its topology.

    Args:
        topology: The graph to compute.
        initials: Custom initial values of state readers, by node number.
        tags: Whether to return tagged values; if not, they are deleted after their last reader.
        mark: Called with 0 when the function starts, and with the number of each node after it ran.

    Attributes:
        source: The Python source.
        run: The function.
        arity: Number of graph inputs.
    """

    __slots__ = (
        "__weakref__", "_lines", "arity", "initials", "mark", "run", "source", "tags", "topology",
    )  # fmt: skip

    def __init__(
        self,
        topology: Topology,
        initials: Mapping[int, Initial] | None = None,
        *,
        tags: bool = True,
        mark: Mark | None = None,
    ) -> None:
        self.topology = topology
        self.initials = dict(initials or {})
        self.tags = tags
        self.mark = mark
        self.arity = len(topology.inputs)
        self.source, self._lines = _Writer(topology, tags, mark is not None).write()
        # Tracebacks and debuggers find the lines under this name. It is unique per core, because
        # torch.compile counts recompilations per code object and reports them by file.
        name = f"<graph {topology.label or 'core'} {next(_serial)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        weakref.finalize(self, linecache.cache.pop, name, None).atexit = False
        scope: dict[str, Any] = {
            "Tensor": Tensor,
            "first_tensor": first_tensor,
            "refuse_shapes": refuse_shapes,
            "zeros_like": torch.zeros_like,
            "initial": _initial,
            "initials": self.initials,
            "map_each": map_each,
            "map_whole": map_whole,
            "map_slices": map_slices,
            "mark": mark,
        }
        exec(compile(self.source, name, "exec"), scope)  # noqa: S102 - generated text only
        self.run: CoreFunction = scope["core"]

    def __reduce__(self) -> tuple[Callable[..., Core], tuple[Any, ...]]:
        return partial(Core, tags=self.tags), (self.topology, self.initials)

    def variant(self, *, tags: bool, mark: Mark | None) -> Core:
        """The same function with or without returned tags and marks."""
        return Core(self.topology, self.initials, tags=tags, mark=mark)

    def explain(self, error: BaseException) -> None:
        """Add a note to an exception from ``run``: the failed node and its input shapes."""
        located = self._locate(error.__traceback__)
        if located is None:
            return
        node, frame = located
        tags = "".join(f" #{tag}" for tag, number in self.topology.tags if number == node.number)
        graph = f" of graph {self.topology.label}" if self.topology.label else ""
        shapes = ", ".join(_shape(frame.f_locals.get(f"v{w.source}")) for w in node.wires)
        error.add_note(f"in node {node.id}{tags}{graph}, input shapes: {shapes}")
        if dtypes := _dtypes(node, frame, str(error)):
            error.add_note(dtypes)
        stream = frame.f_locals.get(f"v{node.wires[0].source}") if node.wires else None
        for wire in node.references:
            carried = frame.f_locals.get(f"v{wire.source}")
            if self.topology.carried(wire) and _batch(carried) != _batch(stream):
                error.add_note(
                    f"{node.id} reads {wire.reference!r} from the previous call, of shape "
                    f"{_shape(carried)}, beside a stream of shape {_shape(stream)}: after a change "
                    "of batch size call reset_state() first, or validate inside preserve_state(); "
                    "where the last batch of a Trainer's epoch is smaller, leave it out with "
                    ".loader_options(drop_last=True)"
                )

    def _locate(self, traceback: TracebackType | None) -> tuple[Node, FrameType] | None:
        # A successful call pays nothing: the failing line of the generated code gives the node.
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code.co_filename.startswith("<graph ") and frame.f_code.co_name == "core":
                node = self._lines.get(traceback.tb_lineno)
                same = frame.f_globals.get("initials") is self.initials
                return (node, frame) if same and node is not None else None
            traceback = traceback.tb_next
        return None


def _shape(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _dtypes(node: Node, frame: FrameType, message: str) -> str:
    """The dtypes at a node if they differ or the error is about a dtype; else empty."""
    values = [frame.f_locals.get(f"v{wire.source}") for wire in node.wires]
    given = [value.dtype for value in values if isinstance(value, Tensor)]
    module = frame.f_locals["modules"].get(node.prefix) if node.prefix else None
    own = {} if module is None else dict.fromkeys(p.dtype for p in module.parameters())
    floating = {dtype for dtype in (*given, *own) if dtype.is_floating_point}
    if len(floating) < 2 and not _ABOUT_DTYPES.search(message):
        return ""
    parameters = f"; its parameters: {', '.join(map(_plain, own))}" if own else ""
    return f"input dtypes: {', '.join(map(_plain, given))}{parameters}"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _batch(value: object) -> int | None:
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else None


def _initial(value: Initial, stream: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return value(stream)
    return value.to(stream) if value.is_floating_point() else value.to(stream.device)


class _Writer:
    """Writes the source of one core. ``v<k>`` is the value of node ``k``, ``v0`` the entry."""

    def __init__(self, topology: Topology, tags: bool, marked: bool) -> None:
        self.topology = topology
        self.marked = marked
        self.tagged = [topology.tagged_nodes[tag] for tag in topology.kept_tags] if tags else []
        self.order = [node for level in topology.levels for node in level]
        self.carried = [topology.tagged_nodes[tag] for tag in topology.state_tags]
        self.slots = {tag: slot for slot, tag in enumerate(topology.state_tags)}

    def write(self) -> tuple[str, dict[int, Node]]:
        """Return the source, and the node on each of its lines."""
        topology = self.topology
        ports = {n.operation.name: n.number for n in self.order if isinstance(n.operation, Port)}
        inputs = [ENTRY, *(ports[name] for name in topology.inputs[1:])]
        lines = ["def core(modules, inputs, state):"]
        lines.append(f"    {''.join(f'v{number}, ' for number in inputs).rstrip()} = inputs")
        if self.slots:
            lines.append(f"    {''.join(f's{s}, ' for s in self.slots.values()).rstrip()} = state")
        if self.marked:
            lines.append("    mark(0)")
        nodes_by_line: dict[int, Node] = {}
        expiring = self._expiring()
        for node in self.order:
            statement = self._statement(node)
            dead = ", ".join(f"v{number}" for number in expiring.get(node.number, ()))
            parts = [
                *self._state_reads(node),
                *([statement] if statement else []),
                *([f"mark({node.number})"] if self.marked else []),
                *([f"del {dead}"] if dead else []),
            ]
            if parts:
                lines.append(f"    {'; '.join(parts)}")
                nodes_by_line[len(lines)] = node
        lines.append(
            f"    return v{topology.output}, {_tuple('v', self.tagged)}, "
            f"{_tuple('t', [node.number for node in topology.loops])}, {_tuple('v', self.carried)}"
        )
        return "\n".join(lines) + "\n", nodes_by_line

    def _statement(self, node: Node) -> str:
        target, module = f"v{node.number}", f"modules[{node.prefix!r}]"
        values = [f"v{wire.source}" for wire in node.wires]
        match node.operation:
            case Call(style):
                # The type test takes about 20 ns; a name for the raw result would keep it alive.
                call = f"{target} := {self._call(node, module, style)}"
                repair = f"{target} := first_tensor({target}, {node.id!r})"
                return f"type({call}) is Tensor or ({repair})"
            case Combine(how, broadcast):
                total = " + ".join(values)
                total = total if how is MergeOp.ADD else f"({total}) / {len(values)}"
                if broadcast:
                    return f"{target} = {total}"
                # If each input has as many elements as the result, nothing was broadcast. Comparing
                # shapes would find more (a leading 1) but takes about three times as long.
                equal = " == ".join(f"{value}.numel()" for value in values)
                refuse = f"refuse_shapes({node.id!r}, {', '.join(values)})"
                return f"({target} := {total}).numel() == {equal} or {refuse}"
            case Loop():
                return f"{target}, t{node.number} = {self._call(node, module, RefStyle.ARGUMENT)}"
            case Gate() | Switch():
                return f"{target} = {self._call(node, module, RefStyle.ARGUMENT)}"
            case Map(kind="slices", pieces=pieces):
                return f"{target} = map_slices({module}, {values[0]}, {pieces}, {node.id!r})"
            case Map(batched=batched):
                run = "map_whole" if batched else "map_each"
                return f"{target} = {run}({module}, {values[0]}, {node.id!r})"
            case Port() | StateRead():
                return ""

    def _call(self, node: Node, module: str, style: RefStyle | None) -> str:
        stream, references = f"v{node.wires[0].source}", node.references
        if not references or style is None:
            return f"{module}({stream})"
        if style is RefStyle.PORTS:
            return f"{module}({', '.join([stream, *(f'v{w.source}' for w in references)])})"
        named = ", ".join(f"{wire.reference!r}: v{wire.source}" for wire in references)
        if style is RefStyle.NAMED:
            return f"{module}({stream}, **{{{named}}})"
        method = ".forward_named" if style is RefStyle.METHOD else ""
        return f"{module}{method}({stream}, {{{named}}})"

    def _state_reads(self, node: Node) -> list[str]:
        """Statements that compute the state readers of a node just before it runs.

        A reader belongs to one consumer. The consumer's input gives the shape of the zeros.
        """
        reads = []
        for wire in node.references if self.slots else ():
            read = self.topology.carried(wire)
            if read is not None:
                slot, stream = self.slots[read.tag], f"v{node.wires[0].source}"
                absent = f"zeros_like({stream})"
                if read.custom:
                    absent = f"initial(initials[{wire.source}], {stream})"
                reads.append(f"v{wire.source} = {absent} if s{slot} is None else s{slot}")
        return reads

    def _expiring(self) -> dict[int, list[int]]:
        """Values to delete after each node: it is their last reader, and they are not returned."""
        kept = {self.topology.output, *self.tagged, *self.carried}
        last: dict[int, int] = {}
        for node in self.order:
            if not isinstance(node.operation, Port | StateRead):
                last[node.number] = node.number  # an unread value is deleted where it was made
            for wire in node.wires:
                last[wire.source] = node.number
        expiring: dict[int, list[int]] = {}
        for value, reader in last.items():
            if value not in kept:
                expiring.setdefault(reader, []).append(value)
        return expiring


def _tuple(letter: str, numbers: Sequence[int]) -> str:
    return f"({''.join(f'{letter}{number}, ' for number in numbers).rstrip()})"
