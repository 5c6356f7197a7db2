"""The values of a schedule: its settings, its state, a planned window and its outcome.

Windows are sets of batches: ascending, disjoint, half-open spans of batch numbers. The guard of the
anchor shortens windows when the ranks drift apart; it is a pure function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, Self, TypeAlias, final

from flodl.json_form import from_form
from flodl.ranks.planning.elche import (
    Counts,
    ElCheConfig,
    ElCheState,
    RankReport,
)
from flodl.ranks.settings import Policy

KEPT = 5
"""Number of rounds whose largest divergence is kept."""

RISING = 3
"""Number of rounds in a row whose divergence must rise before the guard acts."""


class Advice(Enum):
    """The action that the guard requests."""

    STABLE = "stable"
    SUPPRESS_GROWTH = "suppress_growth"
    """Keep the anchor and the overshoot from growing."""
    NUDGE_DOWN = "nudge_down"
    """Halve the anchor and reset the overshoot."""


@final
@dataclass(frozen=True, slots=True)
class GuardState:
    """The largest divergences of the last rounds, oldest first; at most five."""

    maxima: tuple[float, ...] = ()


def judge(
    state: GuardState, divergences: Sequence[float], threshold: float
) -> tuple[GuardState, Advice]:
    """Return the next state and an advice from the divergence of every rank in a round.

    The divergence of a rank is ‖before - after‖ / ‖after‖. The guard acts when three maxima in a
    row rise and the last is above the threshold. Above twice the threshold it advises NUDGE_DOWN,
    else SUPPRESS_GROWTH.

    Values that are not finite come from ranks with such parameters. They do not measure a
    distance, so they are left out.

    Args:
        state: State after the previous rounds.
        divergences: One per rank.
        threshold: Divergence above which the guard acts.
    """
    finite = [value for value in divergences if math.isfinite(value)]
    if not finite:
        return state, Advice.STABLE
    maxima = (*state.maxima, max(finite))[-KEPT:]
    after = GuardState(maxima)
    if len(maxima) < RISING or not _rises(maxima[-RISING:]) or maxima[-1] <= threshold:
        return after, Advice.STABLE
    if maxima[-1] > 2 * threshold:
        return after, Advice.NUDGE_DOWN
    return after, Advice.SUPPRESS_GROWTH


def growth_rate(state: GuardState, batches: int) -> float | None:
    """Return λ = ln(D[t] / D[t-1]) / k: how fast the ranks drift apart per batch, for the log.

    Args:
        state: State after the round.
        batches: k, the batches of the window.

    Returns:
        The rate; None if the last two maxima do not give one.
    """
    if batches < 1 or len(state.maxima) < 2 or min(state.maxima[-2:]) <= 0:
        return None
    before, now = state.maxima[-2:]
    return math.log(now / before) / batches


def _rises(values: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(values))


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


def deal(spans: Spans, shares: Iterable[int]) -> list[Spans]:
    """Return consecutive parts of spans with these numbers of batches."""
    parts = []
    for share in shares:
        part, spans = front(spans, share)
        parts.append(part)
    return parts


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


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """All settings that decide the windows; the same on all ranks."""

    elche: ElCheConfig
    policy: Policy
    """CADENCE or ASYNC; SYNC takes ``world_size`` batches per step and needs no windows."""
    epochs: int
    batches_per_epoch: int
    barrier_every: int = 0
    """An epoch ``e`` ends at a barrier if ``(e + 1) % barrier_every == 0``; 0: only the last."""
    stream_epochs: bool = True
    """False: every epoch ends at a barrier."""
    progressive: bool = True
    """False: shares are fixed at the start of each epoch."""
    partition_ratios: tuple[float, ...] | None = None
    """Fixed shares, normalized; windows then follow them, and balancing is off."""
    timed: bool = True
    """Whether windows may end by time; False counts batches."""
    divergence_threshold: float = 0.05
    divergence_guard: bool = True
    max_overshoot: int | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.elche.world_size

    def barrier_from(self, epoch: int) -> int:
        """Return the first epoch from ``epoch`` on that ends at a barrier."""
        last = self.epochs - 1
        if not self.stream_epochs:
            return min(epoch, last)
        if not self.barrier_every:
            return last
        return min(last, (epoch // self.barrier_every + 1) * self.barrier_every - 1)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleState:
    """The progress of the training; kept in checkpoints as JSON."""

    elche: ElCheState
    guard: GuardState = field(default_factory=GuardState)
    window: int = 0
    """Windows opened so far."""
    queue: Spans = ()
    """Batches that no rank has; those of epochs from :attr:`next_epoch` on are implied."""
    own: tuple[Spans, ...] = ()
    """Batches that belong to one rank, per rank."""
    leased: tuple[Spans, ...] = ()
    """Batches of each open window."""
    left_out: Spans = ()
    """Batches that guards leave out, as far as batches before them are not trained."""
    next_epoch: int = 0
    """First epoch whose batches are not in the queue yet."""
    complete: int = 0
    """Number of epochs of which every batch has been trained."""
    barrier: int = 0
    """The epoch that ends at the next barrier."""
    position: int = 0
    """Batches consumed by all ranks together; an open window counts with its planned batches."""
    overshoot: int = 2
    """ASYNC: batches a rank may train while an average is in progress."""

    def is_left(self, number: int, length: int) -> bool:
        """Whether no rank has begun with a batch, and none is told to leave it out.

        Args:
            number: The batch, counted through all epochs.
            length: Batches of an epoch.
        """
        spans = (*self.queue, *(span for spans in self.own for span in spans))
        if number >= self.next_epoch * length:
            return not any(start <= number < stop for start, stop in self.left_out)
        return any(start <= number < stop for start, stop in spans)

    def unfinished(self, length: int) -> list[tuple[int, int]]:
        """Return the epochs that have begun and are not complete, with their trained batches.

        Args:
            length: Batches of an epoch.
        """
        left = (*self.queue, *(span for spans in (*self.own, *self.leased) for span in spans))
        found = []
        for epoch in range(self.complete, self.next_epoch):
            first, last = epoch * length, (epoch + 1) * length
            rest = sum(max(0, min(stop, last) - max(start, first)) for start, stop in left)
            if 0 < rest < length:
                found.append((epoch, length - rest))
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> ScheduleState:
        """Read the form that :meth:`as_json` returned.

        Raises:
            ValueError: The form is not such a state.
        """
        return from_form(cls, form)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPlan:
    """One window, the same on every rank."""

    index: int
    leases: tuple[Spans, ...]
    """Batches that each rank may train, in this order; empty for a rank that only averages."""
    counts: Counts
    """Batches that each rank is expected to train; in a timed window it may be more or fewer."""
    timed: bool
    """Whether a rank stops at the batch whose end is nearest ``window_ms``."""
    window_ms: float
    start: int
    """The position at which the window begins, for learning rates."""
    warm_up: bool
    """Whether nothing has been measured yet. The first batch of each rank is not measured then,
    and a rank that is done with its count may train the rest of its lease."""

    def lease_size(self, rank: int) -> int:
        """Return the largest number of batches that a rank may train."""
        return size(self.leases[rank])

    def rate_position(self, rank: int, index: int) -> int:
        """Return the position in the learning-rate schedule of a rank's batch ``index``.

        It is ``start + floor(index · Σc / c[rank])``, so each rank passes through the positions of
        the whole window. After its count, each batch is one position.
        """
        own, total = self.counts[rank], sum(self.counts)
        if index >= own:
            return self.start + (total + index - own if own else 0)
        return self.start + index * total // own


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WindowReport:
    """Report of one rank about a window."""

    wall_ms: float
    """Time of the measured batches."""
    batches: int
    """Number of trained batches."""
    sync_ms: float = 0.0
    divergence: float = 0.0
    measured: int | None = None
    """Batches that ``wall_ms`` covers; None: all."""

    def for_elche(self) -> RankReport:
        """Return the part of the report that decides the next counts."""
        measured = self.batches if self.measured is None else self.measured
        return RankReport(self.wall_ms, measured, self.sync_ms)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WindowOutcome:
    """The result of closing a window."""

    comm_ms: float
    waits_ms: tuple[float, ...]
    advice: Advice
    anchor: tuple[int, int]
    """The anchor before and after."""
    complete: range
    """Epochs of which every batch has been trained now."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The window that the ranks train, and who they are.

    Attributes:
        members: The ranks that share the current batches, by name.
        window: The window that they exchange; None before the first.
        offers: What each rank has told about it, if they have agreed on that already.
        barrier_every: After how many epochs all ranks have the same model.
        saved_at: Batches of all ranks at the latest checkpoint, from which the next one follows.
    """

    members: tuple[str, ...]
    window: WindowPlan | None
    offers: Sequence[Mapping[str, Any]]
    barrier_every: int
    saved_at: int

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Read the form that ``asdict`` returns."""
        return from_form(cls, form)
