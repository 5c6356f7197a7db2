"""``Graph.to_spec`` and ``Graph.from_spec``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

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


class Specified(GraphBase):
    """The part of a graph's interface that turns an architecture into JSON and back."""

    def to_spec(self) -> dict[str, Any]:
        """Describe the architecture as JSON data: everything but the values of tensors.

        Nodes, wires, tags, inputs and label are written as they are. A module is written as its
        class and its constructor's arguments, which are read off its attributes, or returned by
        its method ``flodl_spec()`` where it has one. Each is then made anew without memory and
        compared, so a description that would give another network is never returned. A module or
        parameter used in several places stays shared. Hooks, mode and ``requires_grad`` are not
        part of an architecture.

        Returns:
            Data that ``json.dumps`` takes; for :meth:`from_spec`.

        Raises:
            BuildError: A node cannot be described, for instance a lambda, a function with a
                closure, a carried state with an initial value, or a module whose arguments
                cannot be found; the text names the node and the reason.
        """
        with described_precision(), without_memory():
            describer = Describer(type(self))
            try:
                wiring = describer.graph(self)
            except UndescribableError as reason:
                raise BuildError(f"this graph cannot be described: {reason}") from None
            # As plain data: what the caller does to the result reaches no module of the graph.
            spec: dict[str, Any] = {
                "format": FORMAT,
                "version": VERSION,
                "modules": describer.entries,
                "graph": wiring,
                "ties": ties_of(self),
            }
            spec = json.loads(json.dumps(spec))
            made = describer.assembler.graph(Place(spec["graph"], "graph"))
            tie(made, Place(spec["ties"], "ties"))
        self._compare(made)
        return spec

    @classmethod
    def from_spec(
        cls,
        spec: Mapping[str, Any],
        allow: Iterable[object] = (),
        *,
        max_elements: int | None = 1_000_000_000,
    ) -> Self:
        """Make a graph of a description; its weights are those of new modules.

        A description from a stranger can name only what is allowed: layers of ``torch.nn``,
        flodl's own modules, and what the caller passes. Names are looked up, nothing is imported,
        and everything is checked before memory is allocated. The constructors of allowed classes
        run with whatever arguments the description gives them.

        Args:
            spec: What :meth:`to_spec` returned, perhaps after a trip through a JSON file.
            allow: Further module classes, and functions for :class:`~flodl.Lambda`.
            max_elements: How many elements parameters and buffers may have together; None for any
                number.

        Returns:
            A graph in training mode, on the device torch makes tensors on.

        Raises:
            BuildError: The description is malformed, names what is not allowed, is of an unknown
                version or too large, or a constructor refuses its arguments; the text tells where
                in the JSON.
            ValueError: ``allow`` holds something that has no name, or two things of one name.
        """
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
                cls._assemble(fields, Assembler(words, cls, max_elements))
            return cls._assemble(fields, Assembler(words, cls, max_elements))

    @classmethod
    def _assemble(cls, fields: Mapping[str, Place], assembler: Assembler) -> Self:
        for entry in fields["modules"].items():
            assembler.add(entry)
        graph = cast("Self", assembler.graph(fields["graph"]))
        if "ties" in fields:
            tie(graph, fields["ties"])
        return graph

    def _compare(self, made: GraphBase) -> None:
        """Refuse a description whose parts are right and whose whole is not."""
        if made.structural_hash() != self.structural_hash():
            raise BuildError(
                "this graph cannot be described: made again it has another structural hash"
            )
        for what, shared in (("modules", shared_modules), ("parameters", ties_of)):
            ours, theirs = shared(self), shared(made)
            if ours != theirs:
                moved = next(g for g in [*ours, *theirs] if (g in ours) != (g in theirs))
                raise BuildError(
                    f"this graph cannot be described: its {what} are shared in another way when "
                    f"constructors make them again: {', '.join(moved)}"
                )
