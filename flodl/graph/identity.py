"""The structural hash: it identifies the architecture of a graph, independent of its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.graph.base import GraphBase
from flodl.graph.topology import StateRead, Topology

Shapes = tuple[tuple[str, tuple[int, ...] | None], ...]
Contents = tuple[Shapes, Shapes, tuple[tuple[str, str], ...]]
"""The contents of one node's module: parameters, persistent buffers, hashes of nested graphs."""

_EMPTY: Contents = ((), (), ())


def structural_hash(topology: Topology, registry: Mapping[str, nn.Module | None]) -> str:
    """SHA-256, in hex, of the canonical JSON of a graph's structure.

    Included:

    - nodes, with the arguments of their operation and the shapes of their parameters and
      persistent buffers
    - wires, carried state, tags, inputs and output
    - the hashes of graphs nested anywhere below a node

    A tensor with several names counts under each of them, so tying changes nothing. Not included:
    label, weights, dtype, device, mode, and hyperparameters that do not affect a shape (dropout
    rate).

    Args:
        topology: Nodes, wires and tags.
        registry: The module of every prefix.
    """
    return _digest(topology, _inventory(topology, registry))


class Identified(GraphBase):
    """The part of a graph's interface that identifies its architecture."""

    _hashed: tuple[list[Contents], str] | None = None

    def structural_hash(self) -> str:
        """SHA-256 of the architecture in hex; computed once and again after a change.

        It includes nodes, wires, tags and the shapes of parameters and buffers, but not weights,
        label, dtype or device. It is the same across processes and machines. It notices modules
        replaced in place at any depth.
        """
        # Any code may change the registry without notice. So every call reads all names and shapes
        # again; only the JSON and the digest are saved.
        contents = _inventory(self.topology, self._modules)
        if self._hashed is None or self._hashed[0] != contents:
            self._hashed = contents, _digest(self.topology, contents)
        return self._hashed[1]

    def short_hash(self) -> str:
        """The first eight digits of :meth:`structural_hash`."""
        return self.structural_hash()[:8]


def _inventory(topology: Topology, registry: Mapping[str, nn.Module | None]) -> list[Contents]:
    return [_contents(registry.get(node.prefix)) for node in topology.nodes]


def _contents(module: nn.Module | None) -> Contents:
    """Collect a module's contents in one pass; torch's iterators need three and are slower.

    Each list is sorted by name, so the order of registration does not matter.
    """
    if module is None:
        return _EMPTY
    parameters: list[tuple[str, Tensor]] = []
    buffers: list[tuple[str, Tensor]] = []
    graphs: list[tuple[str, str]] = []
    pending: list[tuple[str, nn.Module, bool]] = [("", module, False)]
    while pending:
        path, owner, inside = pending.pop()
        if isinstance(owner, GraphBase) and not inside:
            graphs.append((path, owner.structural_hash()))
            inside = True
        parameters += [(path + n, p) for n, p in owner._parameters.items() if p is not None]
        if owner._buffers:
            passing = owner._non_persistent_buffers_set
            buffers += [
                (path + n, b)
                for n, b in owner._buffers.items()
                if b is not None and n not in passing
            ]
        pending += [(f"{path}{n}.", c, inside) for n, c in owner._modules.items() if c is not None]
    return _shapes(parameters), _shapes(buffers), tuple(sorted(graphs))


def _shapes(tensors: Iterable[tuple[str, Tensor]]) -> Shapes:
    # A lazy tensor has no shape until its module has seen an input.
    return tuple(sorted((n, None if is_lazy(t) else tuple(t.shape)) for n, t in tensors))


def _digest(topology: Topology, contents: Iterable[Contents]) -> str:
    """SHA-256 of ``topology`` and ``contents`` as canonical JSON."""
    writers = topology.tagged_nodes
    structure = {
        "nodes": [
            [node.id, node.prefix, node.kind, node.operation.arguments(), *held]
            for node, held in zip(topology.nodes, contents, strict=True)
        ],
        "edges": [
            [topology.source_id(wire), "output", node.id, wire.port]
            for node in topology.nodes
            for wire in node.wires
        ],
        "state": [
            [topology.node(writers[node.operation.tag]).id, "output", node.id]
            for node in topology.nodes
            if isinstance(node.operation, StateRead)
        ],
        "tags": sorted([name, topology.node(n).id, "output"] for name, n in topology.tags),
        "inputs": list(topology.inputs),
        "output": topology.node(topology.output).id,
    }
    if topology.optional:
        structure["optional"] = sorted(topology.optional)
    text = json.dumps(structure, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
