"""``Graph.to_spec`` and ``Graph.from_spec``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

from flodl.graph.base import GraphBase


class Specified(GraphBase):
    """The part of a graph's interface that converts an architecture to JSON and back."""

    def to_spec(self) -> dict[str, Any]:
        """Describe the architecture as JSON data: everything except the values of tensors.

        Nodes, wires, tags, inputs and label are written unchanged. A module is written as its class
        and the arguments of its constructor. These are read from its attributes, or returned by
        its method ``flodl_spec()`` if it has one. Each module is then made again without memory
        and compared, so a description never gives another network. A module or parameter used in
        several places stays shared. Hooks, mode and ``requires_grad`` are not included.

        Returns:
            Data for ``json.dumps`` and for :meth:`from_spec`.

        Raises:
            BuildError: A node cannot be described, for example a lambda, a function with a
                closure, a carried state with an initial value, or a module whose arguments cannot
                be found. The message names the node and the reason.
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
        """Make a graph from a description; its weights are newly initialised.

        A description can name only allowed classes: layers of ``torch.nn``, flodl's own modules,
        and those in ``allow``. This limits an untrusted description: names are looked up and never
        imported, and everything is checked before memory is allocated. But the constructors of
        allowed classes run with any arguments from the description.

        Args:
            spec: The result of :meth:`to_spec`, also after saving and loading it as JSON.
            allow: Further module classes, and functions for :class:`~flodl.Lambda`.
            max_elements: Largest total number of elements of all parameters and buffers; None for
                no limit.

        Returns:
            A graph in training mode, on torch's default device.

        Raises:
            BuildError: The description is malformed, names a class that is not allowed, has an
                unknown version or is too large, or a constructor refuses its arguments. The
                message gives the place in the JSON.
            ValueError: An item of ``allow`` has no name, or two items have the same name.
        """
        from flodl.graph.spec import conversion

        return cast("Self", conversion.make(cls, spec, allow, max_elements))
