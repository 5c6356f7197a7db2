"""Convert a graph to a description and back, for ``Graph.to_spec`` and ``Graph.from_spec``.

A separate module, so that programs which never describe a graph do not import it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flodl.errors import BuildError
from flodl.graph.base import GraphBase
from flodl.graph.spec.assembly import (
    Assembler,
    described_precision,
    shared_modules,
    tie,
    ties_of,
    without_memory,
)
from flodl.graph.spec.describe import Describer
from flodl.graph.spec.place import Place
from flodl.graph.spec.values import UndescribableError, Vocabulary

FORMAT = "flodl-graph"
VERSION = 1


def describe(graph: GraphBase) -> dict[str, Any]:
    """See :meth:`~flodl.graph.spec.mixin.Specified.to_spec`."""
    with described_precision(), without_memory():
        describer = Describer(type(graph))
        try:
            wiring = describer.graph(graph)
        except UndescribableError as reason:
            raise BuildError(f"this graph cannot be described: {reason}") from None
        # Copied to plain data: changing the result must not change modules of the graph.
        spec: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "modules": describer.entries,
            "graph": wiring,
            "ties": ties_of(graph),
        }
        spec = json.loads(json.dumps(spec))
        made = describer.assembler.graph(Place(spec["graph"], "graph"))
        tie(made, Place(spec["ties"], "ties"))
    _compare(graph, made)
    return spec


def make(
    graph_class: type[GraphBase],
    spec: Mapping[str, Any],
    allow: Iterable[object],
    max_elements: int | None,
) -> GraphBase:
    """See :meth:`~flodl.graph.spec.mixin.Specified.from_spec`."""
    words = Vocabulary(allow)
    root = Place(spec, "")
    fields = root.fields("format", "version", "modules", "graph", optional=("ties",))
    if fields["format"].value != FORMAT:
        raise fields["format"].wrong(f"must be {FORMAT!r}")
    if fields["version"].integer() != VERSION:
        raise fields["version"].wrong(
            f"version {fields['version'].value} is not known; this flodl reads {VERSION}"
        )
    with described_precision():
        with without_memory():
            _assemble(fields, Assembler(words, graph_class, max_elements))
        return _assemble(fields, Assembler(words, graph_class, max_elements))


def _assemble(fields: Mapping[str, Place], assembler: Assembler) -> GraphBase:
    for entry in fields["modules"].items():
        assembler.add(entry)
    graph = assembler.graph(fields["graph"])
    if "ties" in fields:
        tie(graph, fields["ties"])
    return graph


def _compare(graph: GraphBase, made: GraphBase) -> None:
    """Refuse a description that gives the right parts but another graph."""
    if made.structural_hash() != graph.structural_hash():
        raise BuildError(
            "this graph cannot be described: made again it has another structural hash"
        )
    for what, shared in (("modules", shared_modules), ("parameters", ties_of)):
        ours, theirs = shared(graph), shared(made)
        if ours != theirs:
            moved = next(g for g in [*ours, *theirs] if (g in ours) != (g in theirs))
            raise BuildError(
                f"this graph cannot be described: its {what} are shared in another way when "
                f"constructors make them again: {', '.join(moved)}"
            )
