"""The contents of a drawing as values: boxes, edges, and diagrams inside boxes. No coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from flodl.graph.draw.style import Line, Role, Shape, format_count, format_seconds
from flodl.graph.tree import elements_of


@dataclass(frozen=True, slots=True)
class Weight:
    """The parameters of a box.

    Attributes:
        elements: Total number of values.
        tensors: Number of tensors.
        frozen: Number of tensors without gradient.
    """

    elements: int = 0
    tensors: int = 0
    frozen: int = 0

    def __str__(self) -> str:
        return format_count(self.elements) if self.elements else ""

    @property
    def freeze(self) -> str:
        """``frozen``, ``1/4 frozen``, or an empty string."""
        if not self.frozen:
            return ""
        return "frozen" if self.frozen == self.tensors else f"{self.frozen}/{self.tensors} frozen"


@dataclass(frozen=True, slots=True)
class Box:
    """One node of a drawing.

    Attributes:
        id: Unique in the drawing: the ids of the boxes around it and the node's id, joined by
            slashes.
        kind: The node's id without its number.
        path: Registry path of its module, dotted as in ``get_submodule``; empty without a module.
        shape: Its outline.
        role: Its purpose.
        level: Its level in the order of execution.
        tags: The tags of its value.
        weight: Its parameters.
        name: The label of a nested graph.
        detail: A composite in short: ``12 nodes``, ``for ×3``.
        seconds: Its time in the profiled forward, or None.
        heat: That time relative to the slowest node's, or None.
        floats: Whether it may be drawn next to its reader instead of on its level.
        inside: Its contents if it is drawn open; None if it is closed or simple.
    """

    id: str
    kind: str
    path: str
    shape: Shape
    role: Role
    level: int = 0
    tags: tuple[str, ...] = ()
    weight: Weight = Weight()
    name: str = ""
    detail: str = ""
    seconds: float | None = None
    heat: float | None = None
    floats: bool = False
    inside: Diagram | None = None

    @property
    def facts(self) -> list[str]:
        """The facts about the node, one short text each, without its names."""
        time = "" if self.seconds is None else format_seconds(self.seconds)
        return [fact for fact in (self.detail, time, str(self.weight), self.weight.freeze) if fact]


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow between two boxes, by their ids.

    Attributes:
        source: Its start; in an inner diagram also the diagram's ``entry``.
        target: Its end; in an inner diagram also the diagram's ``exit``.
        line: The kind of value that it passes.
        label: A text on it.
        back: Whether it points against the order of execution.
    """

    source: str
    target: str
    line: Line = Line.FLOW
    label: str = ""
    back: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """Boxes and edges.

    Attributes:
        id: Id of the box that contains this diagram; empty for the whole drawing.
        title: A title.
        boxes: In building order.
        edges: Edges between the boxes.
    """

    id: str
    title: str
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]

    @property
    def entry(self) -> str:
        """Id of the point where values enter an inner diagram."""
        return f"{self.id}/in"

    @property
    def exit(self) -> str:
        """Id of the point where its value leaves."""
        return f"{self.id}/out"

    @property
    def depth(self) -> int:
        """Number of levels."""
        return 1 + max((box.level for box in self.boxes), default=-1)

    def walk(self) -> Iterator[Box]:
        """Yield all boxes, including those inside open ones."""
        for box in self.boxes:
            yield box
            if box.inside is not None:
                yield from box.inside.walk()


def weigh(module: nn.Module | None) -> Weight:
    """Count the parameters of a module; None has none."""
    parameters = [] if module is None else list(module.parameters())
    return Weight(
        elements=elements_of(parameters),
        tensors=len(parameters),
        frozen=sum(not parameter.requires_grad for parameter in parameters),
    )
