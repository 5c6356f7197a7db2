"""Select modules of a graph by their dotted names: ``encoder.layer.[0-5].attention``.

A module's name is its state-dict key without the last segment. A segment may be a pattern:

=============  ==================================================================================
``*``          any text within the segment
``?``          one character
``[0-11]``     a number from 0 to 11; ``[0,2,4-6]`` lists numbers and ranges
``0-3``        as a whole segment: the same as ``[0-3]``
=============  ==================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from torch import nn

from fdl.base.suggest import similar
from flodl.errors import PathError
from flodl.graph.base import GraphBase

if TYPE_CHECKING:
    from flodl.graph.graph import Graph

Matcher = Callable[[str], bool]
"""Tests whether a segment of a name matches."""

_RANGE = re.compile(r"\d+-\d+")
_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_TOKENS = re.compile(r"\*|\?|\[[^\]]*\]|\[|[^*?\[]+")
_LISTED = 12


class Spot(NamedTuple):
    """A module and its place.

    Attributes:
        module: The module.
        path: Its dotted name from the graph where the search began; empty for that graph.
        graph: The innermost graph that contains it; the module itself if it is a graph.
        prefix: Its dotted name within that graph; empty for the graph itself.
        parent: The module that holds it; None for the graph where the search began.
        key: Its name in the parent.
    """

    module: nn.Module
    path: str
    graph: Graph
    prefix: str
    parent: nn.Module | None = None
    key: str = ""


def select(root: GraphBase, path: str) -> list[Spot]:
    """Find the modules for a dotted name or pattern, in the order of their registration.

    A nested graph is found by its label and by its registered name. The first segment may be the
    label of ``root`` itself. So names from a model that contains this graph find the same modules
    here.

    Args:
        root: The graph in which the first segment is looked up.
        path: Segments joined by dots.

    Returns:
        One entry per place; empty if nothing matches. A module registered in two places gives two
        entries.

    Raises:
        PathError: A pattern is malformed.
    """
    segments = [segment_matcher(text) for text in path.split(".")]
    start = Spot(root, "", cast("Graph", root), "")
    found = list(_below(start, segments))
    if not found and root.label is not None and segments[0](root.label):
        found = list(_below(start, segments[1:]))
    return found


def places(root: GraphBase) -> Iterator[Spot]:
    """Yield every module below a graph, once per place, parents before children."""
    pending = [Spot(root, "", cast("Graph", root), "")]
    while pending:
        spot = pending.pop(0)
        yield spot
        pending[:0] = _children(spot)


def segment_matcher(text: str) -> Matcher:
    """Turn one segment of a path into a test for names.

    Raises:
        PathError: A bracket is not closed, it holds something other than numbers and ranges of
            numbers, or a range runs backwards.
    """
    if _RANGE.fullmatch(text):
        within = _numbers(text)
        return lambda name: name == text or (name.isdecimal() and within(int(name)))
    if not any(mark in text for mark in "*?["):
        return lambda name: name == text
    parts: list[str] = []
    tests: list[Callable[[int], bool]] = []
    for token in _TOKENS.findall(text):
        if token in "*?":
            parts.append(".*" if token == "*" else ".")
        elif token.startswith("["):
            tests.append(_numbers(_inside(token, text)))
            parts.append(r"(\d+)")
        else:
            parts.append(re.escape(token))
    pattern = re.compile("".join(parts))

    def matches(name: str) -> bool:
        match = pattern.fullmatch(name)
        return match is not None and all(
            test(int(number)) for test, number in zip(tests, match.groups(), strict=True)
        )

    return matches


def explain_absence(root: GraphBase, path: str, told: str) -> str:
    """Explain which part of a path exists among the modules of a graph, and list what is there.

    Args:
        root: The graph in which the first segment is looked up.
        path: A path for which :func:`select` finds nothing.
        told: The message so far.

    Returns:
        The rest of the message; empty if ``told`` already has all names.
    """
    segments = path.split(".")
    reached = [Spot(root, "", cast("Graph", root), "")]
    depth = 0
    while depth < len(segments) - 1:
        further = select(root, ".".join(segments[: depth + 1]))
        if not further:
            break
        reached, depth = further, depth + 1
    spot, missing = reached[0], segments[depth]
    where = f"module {'.'.join(segments[:depth])!r}" if depth else "this graph"
    if missing in spot.module._parameters:
        return f"{missing!r} is a parameter of {where}; give the path of the module"
    names = _visible(spot)
    if not names:
        return f"{where} has no modules below it"
    near = similar(missing, names)
    offered = (near or names)[:_LISTED]
    if all(name in told for name in offered):
        return ""
    more = f" and {len(names) - _LISTED} more" if not near and len(names) > _LISTED else ""
    return f"of modules, {where} has {', '.join(offered)}{more}"


def _visible(spot: Spot) -> list[str]:
    hidden = spot.module.topology.internal if isinstance(spot.module, GraphBase) else frozenset()
    return [key for key in spot.module._modules if key not in hidden and not key.startswith("_")]


def _below(spot: Spot, segments: Sequence[Matcher]) -> Iterator[Spot]:
    if not segments:
        yield spot
        return
    for child in _children(spot):
        label = child.module.label if isinstance(child.module, GraphBase) else None
        if segments[0](child.key) or (label is not None and segments[0](label)):
            yield from _below(child, segments[1:])


def _children(spot: Spot) -> list[Spot]:
    found = []
    for key, child in spot.module._modules.items():
        if child is None:
            continue
        graph, prefix = spot.graph, f"{spot.prefix}.{key}" if spot.prefix else key
        if isinstance(child, GraphBase):
            graph, prefix = cast("Graph", child), ""
        path = f"{spot.path}.{key}" if spot.path else key
        found.append(Spot(child, path, graph, prefix, spot.module, key))
    return found


def _inside(token: str, segment: str) -> str:
    content = token[1:-1]
    if not token.endswith("]") or not _NUMBERS.fullmatch(content):
        raise PathError(
            f"pattern {segment!r}: {token!r} is not understood; brackets hold numbers and ranges "
            "of numbers, like [0-5] or [0,2,4-6]"
        )
    return content


def _numbers(content: str) -> Callable[[int], bool]:
    ranges = []
    for part in content.split(","):
        first, _, last = part.partition("-")
        ranges.append(range(int(first), int(last or first) + 1))
        if not ranges[-1]:
            raise PathError(f"the range {part!r} runs backwards; write the smaller number first")
    return lambda number: any(number in span for span in ranges)
