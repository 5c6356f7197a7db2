"""Sets of batches: ascending, disjoint, half-open spans of batch numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""Batches ``start`` to ``stop`` (exclusive), numbered through all epochs."""

Spans: TypeAlias = tuple[Span, ...]


def size(spans: Spans) -> int:
    """Return the number of batches."""
    return sum(stop - start for start, stop in spans)


def front(spans: Spans, count: int, before: int | None = None) -> tuple[Spans, Spans]:
    """Split spans in two: the first ``count`` batches and the rest.

    Args:
        spans: Spans in the order of use, which may be unsorted.
        count: Number of batches to take. If there are fewer, all are taken; none if it is not
            above 0.
        before: Take only batches with smaller numbers.
    """
    taken: list[Span] = []
    for at, (start, stop) in enumerate(spans):
        end = min(stop, start + max(0, count), stop if before is None else max(start, before))
        if end > start:
            taken.append((start, end))
        count -= end - start
        if end < stop:
            return tuple(taken), ((end, stop), *spans[at + 1 :])
    return tuple(taken), ()


def cut(total: int, ratios: Sequence[float]) -> list[int]:
    """Return the edges of consecutive parts in proportion to ratios: 0, ..., ``total``."""
    whole = sum(ratios)
    return [round(total * sum(ratios[:upto]) / whole) for upto in range(len(ratios) + 1)]


def without(spans: Spans, others: Spans) -> Spans:
    """Return the batches of a set that are not in another one."""
    for first, end in others:
        before = [(start, min(stop, first)) for start, stop in spans]
        after = [(max(start, end), stop) for start, stop in spans]
        spans = tuple(sorted((start, stop) for start, stop in before + after if start < stop))
    return spans


def numbers(spans: Spans) -> list[int]:
    """Return the batches one by one."""
    return [number for start, stop in spans for number in range(start, stop)]


def insert(spans: Spans, *others: Spans) -> Spans:
    """Merge sets of batches; adjacent spans become one.

    Raises:
        ValueError: Two sets share a batch.
    """
    merged: list[Span] = []
    for start, stop in sorted((*spans, *(span for other in others for span in other))):
        if merged and start < merged[-1][1]:
            raise ValueError(f"batch {start} is in two places at once")
        if merged and start == merged[-1][1]:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)
