"""What there is to draw, as values: boxes, edges, and diagrams inside boxes. No coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from flodl.graph.draw.style import Line, Role, Shape, format_count, format_seconds


@dataclass(frozen=True, slots=True)
class Weight:
    """The parameters of a box.

    Attributes:
        elements: Number of values in all of them.
        tensors: Number of tensors.
        frozen: How many of the tensors take no gradient.
    """

    elements: int = 0
    tensors: int = 0
    frozen: int = 0

    def __str__(self) -> str:
        return format_count(self.elements) if self.elements else ""

    @property
    def freeze(self) -> str:
        """``frozen``, ``1/4 frozen``, or nothing."""
        if not self.frozen:
            return ""
        return "frozen" if self.frozen == self.tensors else f"{self.frozen}/{self.tensors} frozen"


@dataclass(frozen=True, slots=True)
class Box:
    """One node of a drawing.

    Attributes:
        id: Unique in the drawing: the node's id, behind the ids of the boxes it lies in and
            slashes.
        kind: The node's id without its number.
        path: Where its module is registered, dotted as in ``get_submodule``; empty if nowhere.
        shape: Its outline.
        role: What it is there for.
        level: Its level in the order of execution.
        tags: The tags that name its value.
        weight: Its parameters.
        name: The label of a nested graph.
        detail: What a composite holds: ``12 nodes``, ``for ×3``.
        seconds: Time it took in the profiled forward, or None.
        heat: That time as a share of the slowest node's, or None.
        floats: Whether it may be drawn next to its reader instead of on its level.
        inside: What it is made of, where it is drawn open; None as well where it is simple.
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
        """What is known about the node, a short text each, without its names."""
        time = "" if self.seconds is None else format_seconds(self.seconds)
        return [fact for fact in (self.detail, time, str(self.weight), self.weight.freeze) if fact]


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow between two boxes, by their ids.

    Attributes:
        source: Where it starts; the diagram's ``entry`` counts as a box of an inner diagram.
        target: Where it points; so does its ``exit``.
        line: What travels along it.
        label: A text on it.
        back: Whether it runs against the order of execution.
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
        id: Id of the box this is the inside of; empty for the whole drawing.
        title: A text for the whole.
        boxes: In building order.
        edges: Between the boxes.
    """

    id: str
    title: str
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]

    @property
    def entry(self) -> str:
        """Id of the point where values come into an inner diagram."""
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
        """All boxes, those inside open ones too."""
        for box in self.boxes:
            yield box
            if box.inside is not None:
                yield from box.inside.walk()


def plural(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def weigh(module: nn.Module | None) -> Weight:
    """Count the parameters of a module, or of nothing."""
    parameters = [] if module is None else list(module.parameters())
    return Weight(
        elements=sum(parameter.numel() for parameter in parameters),
        tensors=len(parameters),
        frozen=sum(not parameter.requires_grad for parameter in parameters),
    )
