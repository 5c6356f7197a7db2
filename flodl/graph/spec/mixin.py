"""``Graph.to_spec`` and ``Graph.from_spec``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

from flodl.graph.base import GraphBase


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
        from flodl.graph.spec import conversion

        return conversion.describe(self)

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
        from flodl.graph.spec import conversion

        return cast("Self", conversion.make(cls, spec, allow, max_elements))
