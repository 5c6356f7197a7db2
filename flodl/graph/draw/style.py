"""The style of a box: shape and fill by role, colour by heat, numbers as text."""

from __future__ import annotations

from enum import Enum

from torch import nn
from torch.nn.modules import activation, batchnorm, normalization

from flodl.graph.topology import (
    Combine,
    Gate,
    Loop,
    Map,
    Operation,
    StateRead,
    Switch,
)


class Shape(Enum):
    """Outlines, with their names in Graphviz."""

    INPUT = "invhouse"
    OUTPUT = "house"
    WHOLE = "doubleoctagon"
    CIRCLE = "circle"
    DIAMOND = "diamond"
    LOOP = "box3d"
    MAP = "parallelogram"
    ELLIPSE = "ellipse"
    BOX = "box"
    POINT = "point"


class Role(Enum):
    """The purpose of a node; decides its fill and its outline.

    Attributes:
        word: Its name in a legend.
        fill: The colour of its boxes, ``#rrggbb``.
        shape: Their outline.
    """

    INPUT = "input", "#aed6f1", Shape.INPUT
    OUTPUT = "output", "#a9dfbf", Shape.OUTPUT
    STATE = "state", "#f9e79f", Shape.DIAMOND
    MERGE = "merge", "#d5dbdb", Shape.CIRCLE
    MAP = "map", "#a9cce3", Shape.MAP
    LOOP = "loop", "#d7bde2", Shape.LOOP
    ROUTER = "router", "#f5cba7", Shape.DIAMOND
    ACTIVATION = "activation", "#fdebd0", Shape.ELLIPSE
    NORM = "norm", "#d5f5e3", Shape.BOX
    OTHER = "module", "#eaecee", Shape.BOX

    def __init__(self, word: str, fill: str, shape: Shape) -> None:
        self.word = word
        self.fill = fill
        self.shape = shape


class Line(Enum):
    """The kind of value that an edge passes."""

    FLOW = "solid"
    REFERENCE = "dashed"
    STATE = "dotted"

    @property
    def color(self) -> str:
        """The colour of its edges, ``#rrggbb``."""
        return _COLORS[self]


_COLORS = {Line.FLOW: "#2c3e50", Line.REFERENCE: "#2980b9", Line.STATE: "#e67e22"}

# All classes in torch's activation module, except the one that is a layer of its own.
_ACTIVATIONS = tuple(
    getattr(activation, name) for name in activation.__all__ if name != "MultiheadAttention"
)
_NORMS: tuple[type[nn.Module], ...] = (
    batchnorm._NormBase,
    *(getattr(normalization, name) for name in normalization.__all__),
)


def role_of(operation: Operation, module: nn.Module | None) -> Role:
    """The role of a node that is neither input nor output of its graph."""
    match operation:
        case StateRead():
            return Role.STATE
        case Combine():
            return Role.MERGE
        case Map():
            return Role.MAP
        case Loop():
            return Role.LOOP
        case Gate() | Switch():
            return Role.ROUTER
    return role_of_module(module)


def role_of_module(module: nn.Module | None) -> Role:
    """The role of a plain module."""
    if isinstance(module, _ACTIVATIONS):
        return Role.ACTIVATION
    return Role.NORM if isinstance(module, _NORMS) else Role.OTHER


_COLD, _WARM, _HOT = (0x27, 0xAE, 0x60), (0xF3, 0x9C, 0x12), (0xE7, 0x4C, 0x3C)


def heat_color(share: float) -> str:
    """The colour of a node that took ``share`` (0 to 1) of the time of the slowest one.

    Green turns to orange at one half and to red at one; channels are interpolated linearly and
    truncated.
    """
    share = min(1.0, max(0.0, share))
    low, high, part = (_COLD, _WARM, share * 2) if share < 0.5 else (_WARM, _HOT, share * 2 - 1)
    channels = (int(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def format_count(count: int) -> str:
    """Format a number of parameters: ``999 params``, ``1.0K params``, ``1.2M params``."""
    if count < 1000:
        return f"{count} params"
    # From here on, one decimal would give 1000.0K.
    if count < 999_950:
        return f"{count / 1e3:.1f}K params"
    return f"{count / 1e6:.1f}M params"


def format_seconds(seconds: float) -> str:
    """Format a short time: ``31 µs``, ``0.31 ms``, ``1.20 s``."""
    if seconds < 1e-4:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.2f} s"
