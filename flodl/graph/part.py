"""Load one child of a graph from its own checkpoint or from one of a graph that contains it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flodl.checkpoint import (
    LoadReport,
    checkpoint_keys,
    checkpoint_metadata,
    load_checkpoint_file,
    persistent_buffers,
    qualify,
)
from flodl.checkpoint.sharded import reshard
from flodl.checkpoint.store import OnShapeMismatch
from flodl.errors import ArchitectureMismatch

if TYPE_CHECKING:
    from flodl.graph.graph import Graph


def load_part(
    root: Graph, path: str, file: str | os.PathLike[str], on_shape_mismatch: OnShapeMismatch
) -> LoadReport:
    """Do the work of ``Graph.load_subgraph_checkpoint``."""
    child = root.subgraph(path)
    stored = checkpoint_metadata(file).get("structural_hash", "")
    if stored == child.structural_hash():
        return child.load_checkpoint(file, on_shape_mismatch=on_shape_mismatch)
    around = _graphs_around(root, path)
    owner = next((graph for graph in around if graph.structural_hash() == stored), None)
    if owner is not None:
        return _load_from(owner, child, file, on_shape_mismatch)
    if stored and on_shape_mismatch == "error":
        raise ArchitectureMismatch(
            f"checkpoint {os.fspath(file)} was saved from another architecture: its structural "
            f"hash is {stored[:8]}, that of {path!r} is {child.short_hash()} and that of the whole "
            f"graph {root.short_hash()}. To take the tensors that fit by name and shape, pass "
            "on_shape_mismatch='skip'"
        )
    held = set(checkpoint_keys(file))
    own = {name for name, _ in (*child.qualified_parameters(), *child.qualified_buffers())}
    if not own & held:
        for graph in around:
            if held & _names_in(graph, child).keys():
                return _load_from(graph, child, file, on_shape_mismatch, compare=False)
    return child.load_checkpoint(file, on_shape_mismatch=on_shape_mismatch)


def _graphs_around(root: Graph, path: str) -> list[Graph]:
    """The graphs along a path, innermost first."""
    labels = path.split(".")[:-1]
    between = [root.subgraph(".".join(labels[:end])) for end in range(len(labels), 0, -1)]
    return [*between, root]


def _names_in(owner: Graph, child: Graph) -> dict[str, str]:
    """Map the names of a child's tensors in a file of ``owner`` to their names in the child."""
    prefix = next(name for name, module in owner.named_modules() if module is child)
    tensors = (*child.named_parameters(), *persistent_buffers(child))
    return {qualify(f"{prefix}.{name}"): qualify(name) for name, _ in tensors}


def _load_from(
    owner: Graph,
    child: Graph,
    file: str | os.PathLike[str],
    on_shape_mismatch: OnShapeMismatch,
    *,
    compare: bool = True,
) -> LoadReport:
    reshard(child)
    names = _names_in(owner, child)
    outer = {own: name for name, own in names.items()}
    report = load_checkpoint_file(
        file,
        [(outer[qualify(name)], parameter) for name, parameter in child.named_parameters()],
        [(outer[qualify(name)], buffer) for name, buffer in persistent_buffers(child)],
        owner.structural_hash() if compare else None,
        on_shape_mismatch=on_shape_mismatch,
    )
    return LoadReport(
        loaded=[names[name] for name in report.loaded],
        skipped=[names[name] for name in report.skipped if name in names],
        missing=[names[name] for name in report.missing],
    )
