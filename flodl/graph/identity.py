"""The structural hash: which architecture a graph is, whatever its weights are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from flodl.checkpoint import persistent_buffers
from flodl.graph.topology import Node, Topology


def structural_hash(topology: Topology, registry: Mapping[str, nn.Module | None]) -> str:
    """SHA-256, in hex, of the canonical JSON of a graph's structure.

    Covered: nodes with their operation's arguments and the shapes of their parameters and
    persistent buffers, wires, tags, inputs, output, and the hashes of nested graphs. Not covered:
    label, weights, dtype, device, mode, and hyper-parameters that leave no shape (dropout rate).

    Args:
        topology: Nodes, wires and tags.
        registry: The module of every prefix.
    """
    structure = {
        "nodes": [_describe(node, registry.get(node.prefix)) for node in topology.nodes],
        "edges": [
            [topology.source_id(wire), "output", node.id, wire.port]
            for node in topology.nodes
            for wire in node.wires
        ],
        "tags": sorted(
            [name, topology.nodes[number - 1].id, "output"] for name, number in topology.tags
        ),
        "inputs": list(topology.inputs),
        "output": topology.nodes[topology.output - 1].id,
    }
    text = json.dumps(structure, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _describe(node: Node, module: nn.Module | None) -> list[object]:
    parameters = _shapes(module.named_parameters()) if module is not None else []
    buffers = _shapes(persistent_buffers(module)) if module is not None else []
    # By capability, not by class: the graph module imports this one.
    nested = getattr(module, "structural_hash", None)
    child = nested() if callable(nested) else None
    arguments = node.operation.arguments()
    return [node.id, node.prefix, node.kind, arguments, parameters, buffers, child]


def _shapes(tensors: Iterable[tuple[str, Tensor]]) -> list[list[object]]:
    return [[name, list(shape)] for name, shape in sorted((n, tuple(t.shape)) for n, t in tensors)]
