"""What the figures of runs mean: pure functions over records and timelines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, final

from flodl.monitor.timeline_analysis import IDLE_BELOW_PCT, idle_gaps
from flodl.monitor.timeline_records import EventKind, TimelineEvent, TimelineSample

IDLE_AT_LEAST_MS = 500.0
CAUSE_WITHIN_MS = 500.0
EVAL_WITHIN = 0.02
"""Relative distance from the result of one device alone that still counts as the same."""
GOOD_EFFICIENCY, FAIR_EFFICIENCY = 0.90, 0.75
ENOUGH_SEEDS, ENOUGH_SECONDS = 3, 10.0
"""Seeds, and seconds of measured training in all of them, that a verdict needs."""
RANKS_AGREE = 1e-4
"""Distance of the ranks' models, as a part of their norm, that is still rounding."""
COLLAPSED = 0.25
"""Part by which a result is worse than alone that no small training comes to by chance."""


class Verdict(StrEnum):
    """What a mode is worth, next to one device alone."""

    PASS = "PASS"
    """As good, and at least 90 % of the speed that the devices have together."""
    FAIR = "FAIR"
    """As good, and at least 75 %."""
    SLOW = "SLOW"
    """As good, and faster than one device."""
    LOSS = "LOSS"
    """As good, and slower than one device."""
    NO_CONVERGENCE = "NO-CONVERGENCE"
    """More than 2 % worse."""
    BROKEN = "BROKEN"
    """The ranks do not train one model, or it learns nothing; see :func:`averaging_fault`."""
    NOT_ENOUGH = "not enough data"
    """Too few seeds, or too little training; see :func:`shortage`."""


def ideal_time(seconds: Sequence[float]) -> float:
    """Return how long devices need together if nothing is lost: ``1 / Σ 1/t``.

    Args:
        seconds: What each needs alone.
    """
    return 1.0 / sum(1.0 / one for one in seconds)


def efficiency(ideal: float, actual: float) -> float:
    """Return the part of the devices' common speed that was used: ideal ÷ actual time."""
    return ideal / actual


def worse_by(value: float, base: float, *, higher_is_better: bool) -> float:
    """Return by which part of ``base`` a value is worse; negative where it is better."""
    if not math.isfinite(value):
        return math.inf
    if base == 0:
        return 0.0 if value == 0 else math.copysign(math.inf, value)
    difference = (base - value) if higher_is_better else (value - base)
    return difference / abs(base)


def as_good(value: float, base: float, *, higher_is_better: bool) -> bool:
    """Whether a result is at most 2 % worse than another one, the rounding of a double aside."""
    return worse_by(value, base, higher_is_better=higher_is_better) <= EVAL_WITHIN + 1e-12


def verdict(
    figure: float,
    alone: float,
    *,
    higher_is_better: bool,
    seconds: float,
    seconds_alone: float,
    used: float,
) -> Verdict:
    """Judge a run of several ranks.

    Args:
        figure: Its evaluation.
        alone: That of the first device alone.
        higher_is_better: Which way the evaluation improves.
        seconds: Its training time.
        seconds_alone: That of the first device alone.
        used: Its efficiency.
    """
    if not as_good(figure, alone, higher_is_better=higher_is_better):
        return Verdict.NO_CONVERGENCE
    if seconds > seconds_alone:
        return Verdict.LOSS
    if used >= GOOD_EFFICIENCY:
        return Verdict.PASS
    return Verdict.FAIR if used >= FAIR_EFFICIENCY else Verdict.SLOW


def shortage(seeds: int, seconds: float) -> str:
    """Say what a verdict lacks; empty where there is enough.

    Args:
        seeds: Trainings with different seeds.
        seconds: Measured training of all of them.
    """
    lacks = []
    if seeds < ENOUGH_SEEDS:
        lacks.append(f"{seeds} of {ENOUGH_SEEDS} seeds")
    if seconds < ENOUGH_SECONDS:
        lacks.append(f"{seconds:.1f} of {ENOUGH_SECONDS:g} s of training")
    return ", ".join(lacks)


def averaging_fault(
    apart: float | None, figure: float, alone: float, *, higher_is_better: bool
) -> str:
    """Say by what an averaging shows that it is broken; empty where it is not.

    Args:
        apart: Largest distance of the ranks' models where they were judged; None if unknown.
        figure: Evaluation.
        alone: That of the first device alone.
        higher_is_better: Which way the evaluation improves.
    """
    if apart is not None and apart > RANKS_AGREE:
        return f"the ranks hold different models: {apart:.2g} of their norm apart"
    if not worse_by(figure, alone, higher_is_better=higher_is_better) <= COLLAPSED:
        return f"it has not learned: {figure:.4g} where one device alone has {alone:.4g}"
    return ""


class Cause(StrEnum):
    """Why a device had nothing to do; the first that applies counts."""

    STARTUP = "startup"
    EPOCH_END = "epoch end"
    CPU_AVERAGING = "cpu averaging"
    SYNC = "sync"
    UNEXPLAINED = "unexplained"


_EVENTS_OF = {
    Cause.EPOCH_END: {EventKind.EPOCH_END},
    Cause.CPU_AVERAGING: {EventKind.CPU_AVG_START, EventKind.CPU_AVG_END},
    Cause.SYNC: {EventKind.SYNC_START, EventKind.SYNC_END},
}


@final
@dataclass(frozen=True, slots=True)
class IdleTime:
    """A stretch in which a device had nothing to do."""

    device: str
    start_ms: float
    end_ms: float
    cause: Cause

    @property
    def ms(self) -> float:
        """Its length."""
        return self.end_ms - self.start_ms


def idle_times(
    samples: Sequence[TimelineSample], events: Sequence[TimelineEvent]
) -> list[IdleTime]:
    """Find when devices were used less than 5 % for at least half a second, and why.

    GPUs tell their utilisation; a rank on a processor tells which part of the time it worked.
    """
    found = []
    for device, moments in _moments(samples).items():
        gaps = idle_gaps(moments, IDLE_BELOW_PCT, IDLE_AT_LEAST_MS)
        found += [IdleTime(device, start, end, cause_of(start, end, events)) for start, end in gaps]
    return sorted(found, key=lambda one: (-one.ms, one.start_ms))


def cause_of(start_ms: float, end_ms: float, events: Iterable[TimelineEvent]) -> Cause:
    """Say why a device was idle, by what happened within half a second of the gap.

    A gap that begins before anything was trained, up to half a second into the first epoch, is the
    start-up of the run.
    """
    known = list(events)
    starts = [event.t_ms for event in known if event.kind is EventKind.EPOCH_START]
    if not starts or start_ms < min(starts) + CAUSE_WITHIN_MS:
        return Cause.STARTUP
    near = {
        event.kind
        for event in known
        if start_ms - CAUSE_WITHIN_MS <= event.t_ms <= end_ms + CAUSE_WITHIN_MS
    }
    return next((cause for cause, kinds in _EVENTS_OF.items() if near & kinds), Cause.UNEXPLAINED)


def idle_by_cause(idle: Iterable[IdleTime]) -> dict[Cause, float]:
    """Return the milliseconds of every cause that occurs, in the order of precedence."""
    sums = dict.fromkeys(Cause, 0.0)
    for one in idle:
        sums[one.cause] += one.ms
    return {cause: ms for cause, ms in sums.items() if ms}


def _moments(samples: Sequence[TimelineSample]) -> dict[str, list[tuple[float, float | None]]]:
    """Utilisation of every device over time; each GPU as one rank has seen it."""
    found: dict[str, list[tuple[float, float | None]]] = {}
    first = min((sample.rank for sample in samples if sample.rank is not None), default=None)
    for sample in samples:
        if sample.gpus:
            if sample.rank in (None, first):
                for gpu in sample.gpus:
                    moments = found.setdefault(f"gpu{gpu.device}", [])
                    moments.append((sample.t_ms, sample.util(gpu.device)))
        elif sample.busy is not None:
            rank = sample.rank or 0
            found.setdefault(f"rank {rank}", []).append((sample.t_ms, sample.busy))
    return found


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle and the 95 % value: ``sorted[n // 2]`` and ``sorted[⌊0.95 n⌋]``.

    Raises:
        ValueError: There is no value.
    """
    if not values:
        raise ValueError("no values have no quantiles")
    ordered = sorted(values)
    # In whole numbers: 0.95 * 20 is below 19 for some processors' rounding.
    return ordered[len(ordered) // 2], ordered[len(ordered) * 95 // 100]


@final
@dataclass(frozen=True, slots=True)
class Calibration:
    """How the windows of a run settled."""

    anchors: tuple[int, ...]
    """Batches of the slowest rank per window, one after the other."""
    throttles: int
    syncs: int
    p50_ms: float | None
    """Between two exchanges; None with less than two."""
    p95_ms: float | None


def calibration(events: Iterable[TimelineEvent]) -> Calibration:
    """Read from the events of rank 0 how the windows settled."""
    mine = [event for event in events if event.rank in (None, 0)]
    changes = [event.fields for event in mine if event.kind is EventKind.ANCHOR]
    begun = {EventKind.SYNC_START, EventKind.CPU_AVG_START}
    moments = [event.t_ms for event in mine if event.kind in begun]
    intervals = [after - before for before, after in pairwise(moments)]
    p50, p95 = quantiles(intervals) if intervals else (None, None)
    anchors = [changes[0]["from"], *(one["to"] for one in changes)] if changes else []
    throttled = sum(event.kind is EventKind.THROTTLE for event in mine)
    return Calibration(tuple(anchors), throttled, len(moments), p50, p95)


class Overlap(NamedTuple):
    """How long some rank was in an epoch already while another was still in the one before."""

    epoch: int
    ms: float


def epoch_overlaps(events: Iterable[TimelineEvent]) -> list[Overlap]:
    """Return the overlaps of neighbouring epochs, those that are none left out."""
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for event in events:
        if event.kind is EventKind.EPOCH_START:
            epoch = event.fields["epoch"]
            begins[epoch] = min(begins.get(epoch, math.inf), event.t_ms)
        elif event.kind is EventKind.EPOCH_END:
            epoch = event.fields["epoch"]
            ends[epoch] = max(ends.get(epoch, -math.inf), event.t_ms)
    pairs = [(epoch, ends.get(epoch - 1, -math.inf) - begins[epoch]) for epoch in sorted(begins)]
    return [Overlap(epoch, ms) for epoch, ms in pairs if ms > 0]


def sampled(count: int, limit: int = 20) -> list[int]:
    """Return up to ``limit`` of the numbers below ``count``, evenly, the first and last among them.

    Raises:
        ValueError: ``limit`` is below 2.
    """
    if limit < 2:
        raise ValueError(f"limit={limit}: the first and the last are two")
    if count <= limit:
        return list(range(count))
    return [round(place * (count - 1) / (limit - 1)) for place in range(limit)]
