"""The pure core of a graph: one straight-line Python function, generated once.

``core(modules, inputs, state) -> (output, tags, traces, state)`` has no side effects: whatever it
makes, it returns. Every node is one source line; a value is deleted after its last reader. Nothing
is interpreted per call, and modules are looked up in the registry, so that replacing one there
takes effect.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor, nn

from flodl.graph.topology import Call, Combine, MergeOp, Node, Topology, levels

Tensors = tuple[Tensor, ...]
CoreFunction = Callable[
    [Mapping[str, nn.Module | None], Sequence[Tensor], Tensors],
    tuple[Tensor, Tensors, Tensors, Tensors],
]

_serial = itertools.count(1)


class Core:
    """The compiled function of one topology.

    A copied or unpickled core is generated anew from its topology.

    Attributes:
        topology: What the function computes.
        source: Its Python source.
        run: The function itself.
        arity: Number of graph inputs.
    """

    __slots__ = ("__weakref__", "_lines", "arity", "run", "source", "topology")

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.arity = len(topology.inputs)
        self.source, self._lines = generate(topology)
        # Tracebacks and debuggers find the lines there. One name per core: torch.compile counts
        # recompilations per code object and reports them under its file.
        name = f"<graph {topology.label or 'core'} {next(_serial)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        weakref.finalize(self, linecache.cache.pop, name, None).atexit = False
        scope: dict[str, Any] = {"Tensor": Tensor, "first_tensor": first_tensor}
        exec(compile(self.source, name, "exec"), scope)  # noqa: S102 - the text is our own
        self.run: CoreFunction = scope["core"]

    def __reduce__(self) -> tuple[type[Core], tuple[Topology]]:
        return Core, (self.topology,)

    def explain(self, error: BaseException) -> None:
        """Note on an exception out of ``run`` which node failed, and on what input shapes."""
        located = self._locate(error.__traceback__)
        if located is None:
            return
        node, frame = located
        tags = "".join(f" #{tag}" for tag, number in self.topology.tags if number == node.number)
        graph = f" of graph {self.topology.label}" if self.topology.label else ""
        values = [frame.f_locals.get(f"v{wire.source}") for wire in node.wires]
        shapes = ", ".join(
            str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__
            for value in values
        )
        error.add_note(f"in node {node.id}{tags}{graph}, input shapes: {shapes}")

    def _locate(self, traceback: TracebackType | None) -> tuple[Node, FrameType] | None:
        # The good path pays nothing for this: the failing line of the generated code is the node.
        while traceback is not None:
            if traceback.tb_frame.f_code is self.run.__code__:
                node = self._lines.get(traceback.tb_lineno)
                return None if node is None else (node, traceback.tb_frame)
            traceback = traceback.tb_next
        return None


def first_tensor(value: object, node_id: str) -> Tensor:
    """Accept what a module returned: a tensor of any subclass, or a tuple or list led by one.

    Raises:
        TypeError: It is something else; names the node and the type.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list) and value and isinstance(value[0], Tensor):
        return value[0]
    raise TypeError(
        f"node {node_id} returned {type(value).__name__}; a node returns a tensor, or a tuple or "
        "list whose first element is one: wrap the module in a function that picks it"
    )


def generate(topology: Topology) -> tuple[str, dict[int, Node]]:
    """Write the source of the core.

    ``v<k>`` is the value of node ``k``, ``v0`` the graph's input.

    Returns:
        The source, and the node that stands on each line.
    """
    order = [node for level in levels(topology.nodes) for node in level]
    expiring = _last_readers(order, {topology.output, *(number for _, number in topology.tags)})
    lines = ["def core(modules, inputs, state):", "    v0, = inputs"]
    nodes_by_line: dict[int, Node] = {}
    for node in order:
        dead = ", ".join(f"v{number}" for number in expiring.get(node.number, ()))
        lines.append(f"    {_statement(node)}" + (f"; del {dead}" if dead else ""))
        nodes_by_line[len(lines)] = node
    captured = "".join(f"v{number}, " for _, number in topology.tags)
    lines.append(f"    return v{topology.output}, ({captured.rstrip()}), (), state")
    return "\n".join(lines) + "\n", nodes_by_line


def _statement(node: Node) -> str:
    target = f"v{node.number}"
    values = [f"v{wire.source}" for wire in node.wires]
    match node.operation:
        case Call():
            # The type test costs some 20 ns; a name for the raw result would keep it alive longer.
            call = f"{target} := modules[{node.prefix!r}]({', '.join(values)})"
            repair = f"{target} := first_tensor({target}, {node.id!r})"
            return f"type({call}) is Tensor or ({repair})"
        case Combine(how):
            total = " + ".join(values)
            return f"{target} = {total if how is MergeOp.ADD else f'({total}) / {len(values)}'}"


def _last_readers(order: Sequence[Node], kept: set[int]) -> dict[int, list[int]]:
    """Which values die at which node: those it is the last to read, except the kept ones."""
    last: dict[int, int] = {}
    for node in order:
        last[node.number] = node.number  # a value nobody reads dies where it was made
        for wire in node.wires:
            last[wire.source] = node.number
    expiring: dict[int, list[int]] = {}
    for value, reader in last.items():
        if value not in kept:
            expiring.setdefault(reader, []).append(value)
    return expiring
