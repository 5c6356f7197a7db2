"""Analyze the results of runs: pure functions over records and timelines."""

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
"""A result counts as equal to that of a single device if it is at most this fraction worse."""
GOOD_EFFICIENCY, FAIR_EFFICIENCY = 0.90, 0.75
ENOUGH_SEEDS, ENOUGH_SECONDS = 3, 10.0
"""A verdict needs this many seeds, and this many seconds of measured training in all of them."""
RANKS_AGREE = 1e-4
"""Up to this distance, as a fraction of the norm, the ranks' models differ only by rounding."""
COLLAPSED = 0.25
"""A result worse by more than this fraction shows a fault; chance alone does not cause it."""


class Verdict(StrEnum):
    """The judgement of a mode, compared with a single device."""

    PASS = "PASS"
    """The result is as good, with at least 90 % of the devices' combined speed."""
    FAIR = "FAIR"
    """The result is as good, with at least 75 % of the devices' combined speed."""
    SLOW = "SLOW"
    """The result is as good, and the mode is faster than a single device."""
    LOSS = "LOSS"
    """The result is as good, but the mode is slower than a single device."""
    NO_CONVERGENCE = "NO-CONVERGENCE"
    """The result is more than 2 % worse."""
    BROKEN = "BROKEN"
    """The ranks hold different models, or the model has not learned (:func:`averaging_fault`)."""
    NOT_ENOUGH = "not enough data"
    """There are too few seeds, or there is too little training; see :func:`shortage`."""


def ideal_time(seconds: Sequence[float]) -> float:
    """Return the time of all devices together without any loss: ``1 / Σ 1/t``.

    Args:
        seconds: Time of each device alone.
    """
    return 1.0 / sum(1.0 / one for one in seconds)


def efficiency(ideal: float, actual: float) -> float:
    """Return the used fraction of the devices' combined speed: ideal ÷ actual time."""
    return ideal / actual


def worse_by(value: float, base: float, *, higher_is_better: bool) -> float:
    """Return by which fraction of ``base`` a value is worse; negative if it is better."""
    if not math.isfinite(value):
        return math.inf
    if base == 0:
        return 0.0 if value == 0 else math.copysign(math.inf, value)
    difference = (base - value) if higher_is_better else (value - base)
    return difference / abs(base)


def as_good(value: float, base: float, *, higher_is_better: bool) -> bool:
    """Whether a result is at most 2 % worse than another one, apart from float64 rounding."""
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
        figure: Evaluation of the run.
        alone: Evaluation of the first device alone.
        higher_is_better: Whether higher evaluations are better.
        seconds: Training time of the run.
        seconds_alone: Training time of the first device alone.
        used: Efficiency of the run.
    """
    if not as_good(figure, alone, higher_is_better=higher_is_better):
        return Verdict.NO_CONVERGENCE
    if seconds > seconds_alone:
        return Verdict.LOSS
    if used >= GOOD_EFFICIENCY:
        return Verdict.PASS
    return Verdict.FAIR if used >= FAIR_EFFICIENCY else Verdict.SLOW


def shortage(seeds: int, seconds: float) -> str:
    """Describe which data a verdict still needs; empty if there is enough.

    Args:
        seeds: Number of trainings with different seeds.
        seconds: Measured training time of all of them.
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
    """Describe the sign that averaging is broken; empty if there is none.

    Args:
        apart: Largest distance of the ranks' models at the evaluations; None if unknown.
        figure: Evaluation of the run.
        alone: Evaluation of the first device alone.
        higher_is_better: Whether higher evaluations are better.
    """
    if apart is not None and apart > RANKS_AGREE:
        return f"the ranks hold different models: {apart:.2g} of their norm apart"
    if not worse_by(figure, alone, higher_is_better=higher_is_better) <= COLLAPSED:
        return f"it has not learned: {figure:.4g} where one device alone has {alone:.4g}"
    return ""


class Cause(StrEnum):
    """The reason why a device was idle; the first that applies counts."""

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
    """A period in which a device was idle."""

    device: str
    start_ms: float
    end_ms: float
    cause: Cause

    @property
    def ms(self) -> float:
        """Length of the period."""
        return self.end_ms - self.start_ms


def idle_times(
    samples: Sequence[TimelineSample], events: Sequence[TimelineEvent]
) -> list[IdleTime]:
    """Find when devices were used less than 5 % for at least half a second, and why.

    GPUs report their utilization; a rank on the CPU reports the fraction of the time it worked.
    """
    found = []
    for device, moments in _moments(samples).items():
        gaps = idle_gaps(moments, IDLE_BELOW_PCT, IDLE_AT_LEAST_MS)
        found += [IdleTime(device, start, end, cause_of(start, end, events)) for start, end in gaps]
    return sorted(found, key=lambda one: (-one.ms, one.start_ms))


def cause_of(start_ms: float, end_ms: float, events: Iterable[TimelineEvent]) -> Cause:
    """Return why a device was idle, from the events within half a second of the gap.

    A gap belongs to the start-up of the run if it begins before the first epoch, or less than half
    a second into it.
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
    """Return the milliseconds of every cause that occurs, in order of precedence."""
    sums = dict.fromkeys(Cause, 0.0)
    for one in idle:
        sums[one.cause] += one.ms
    return {cause: ms for cause, ms in sums.items() if ms}


def _moments(samples: Sequence[TimelineSample]) -> dict[str, list[tuple[float, float | None]]]:
    """Return the utilization of every device over time; each GPU as the first rank measured it."""
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
    """Return the median and the 95 % quantile: ``sorted[n // 2]`` and ``sorted[⌊0.95 n⌋]``.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("quantiles need at least one value")
    ordered = sorted(values)
    # Integer arithmetic: with floats, 0.95 * 20 may round to slightly below 19.
    return ordered[len(ordered) // 2], ordered[len(ordered) * 95 // 100]


@final
@dataclass(frozen=True, slots=True)
class Calibration:
    """How the windows of a run developed."""

    anchors: tuple[int, ...]
    """Batches of the slowest rank per window: the first value and each change."""
    throttles: int
    syncs: int
    p50_ms: float | None
    """Median time between two exchanges; None with fewer than two exchanges."""
    p95_ms: float | None


def calibration(events: Iterable[TimelineEvent]) -> Calibration:
    """Read from the events of rank 0 how the windows developed."""
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
    """The time in which one rank trained an epoch while another still trained the previous one."""

    epoch: int
    ms: float


def epoch_overlaps(events: Iterable[TimelineEvent]) -> list[Overlap]:
    """Return the overlaps of consecutive epochs; epochs without overlap are left out."""
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
    """Return up to ``limit`` evenly spaced numbers below ``count``, with the first and the last.

    Raises:
        ValueError: ``limit`` is below 2.
    """
    if limit < 2:
        raise ValueError(f"limit={limit}: it must be at least 2")
    if count <= limit:
        return list(range(count))
    return [round(place * (count - 1) / (limit - 1)) for place in range(limit)]
