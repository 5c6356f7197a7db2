"""Analyse a timeline: idle times of devices, and counts and mean times of events."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean

from flodl.monitor.records import finite
from flodl.monitor.timeline_records import (
    EventKind,
    IdleGap,
    RankActivity,
    TimelineEvent,
    TimelineSample,
    TimelineSummary,
)

IDLE_BELOW_PCT = 5.0
"""Utilisation below which summaries and the page call a device idle."""

_OF_ONE_RANK = frozenset((EventKind.WAIT, EventKind.IDLE))
"""Each rank tells only of its own; any other event happens once, although each rank tells of it."""

_MEASURED = frozenset(("ms", "loss"))
"""Fields that differ from rank to rank for one event."""


def happenings(events: Iterable[TimelineEvent]) -> list[list[TimelineEvent]]:
    """Return the records of each event: one per rank that recorded it.

    Of several equal events, the n-th of one rank is the n-th of the others.

    Args:
        events: Those of all ranks, in order of time.
    """
    found: defaultdict[Hashable, list[TimelineEvent]] = defaultdict(list)
    counts: Counter[Hashable] = Counter()
    for event in events:
        own = event.rank if event.kind in _OF_ONE_RANK else None
        fields = (one for one in event.fields.items() if one[0] not in _MEASURED)
        what = (own, event.kind, *fields)
        counts[event.rank, what] += 1
        found[what, counts[event.rank, what]].append(event)
    return list(found.values())


def of_rank(samples: Iterable[TimelineSample], rank: int | None = None) -> list[TimelineSample]:
    """Return the samples of one rank; if there are several, None takes the first.

    Ranks on one machine have all measured the same load, so counting several would be wrong.
    """
    held = list(samples)
    ranks = {sample.rank for sample in held if sample.rank is not None}
    if rank is None and len(ranks) < 2:
        return held
    wanted = min(ranks) if rank is None else rank
    return [sample for sample in held if sample.rank == wanted]


def idle_gaps(
    moments: Iterable[tuple[float, float | None]], threshold_pct: float, min_ms: float
) -> list[IdleGap]:
    """Return the times in which a device was used less than `threshold_pct`.

    A gap lasts from its first idle sample to the next busy one, or to the last sample. If the
    utilisation is unknown, the device counts as busy: a driver outage is not idle time.

    Args:
        moments: Milliseconds and utilisation in percent of every sample, in order of time.
        threshold_pct: Utilisation in percent; exactly this value counts as busy.
        min_ms: Shorter gaps are left out.
    """
    gaps = []
    start: float | None = None
    end = 0.0
    for end, util in moments:
        if util is not None and util < threshold_pct:
            start = end if start is None else start
        elif start is not None:
            gaps.append(IdleGap(start, end))
            start = None
    if start is not None:
        gaps.append(IdleGap(start, end))
    return [gap for gap in gaps if gap.end_ms - gap.start_ms >= min_ms]


def summarize(
    samples: Sequence[TimelineSample], events: Sequence[TimelineEvent], total_ms: float
) -> TimelineSummary:
    """Compute counts and means; see :class:`TimelineSummary`."""
    seen: Counter[int] = Counter()
    idle: Counter[int] = Counter()
    for sample in of_rank(samples):
        for gpu in sample.gpus:
            util = finite(gpu.util)
            seen[gpu.device] += 1
            idle[gpu.device] += util is not None and util < IDLE_BELOW_PCT
    happened = happenings(events)
    kinds = Counter(tellings[0].kind for tellings in happened)
    return TimelineSummary(
        total_ms=total_ms,
        sample_count=len(samples),
        event_count=len(happened),
        gpu_idle_pct={device: 100 * idle[device] / seen[device] for device in sorted(seen)},
        sync_count=kinds[EventKind.SYNC_START],
        sync_avg_ms=_mean_ms(happened, EventKind.SYNC_END),
        cpu_avg_count=kinds[EventKind.CPU_AVG_START],
        cpu_avg_avg_ms=_mean_ms(happened, EventKind.CPU_AVG_END),
        anchor_count=kinds[EventKind.ANCHOR],
        throttle_count=kinds[EventKind.THROTTLE],
        ranks=_activities(samples, events),
    )


def _activities(
    samples: Iterable[TimelineSample], events: Iterable[TimelineEvent]
) -> dict[int, RankActivity]:
    busy: defaultdict[int, list[float]] = defaultdict(list)
    happened: defaultdict[int, list[TimelineEvent]] = defaultdict(list)
    for sample in samples:
        if sample.rank is not None and sample.busy is not None:
            busy[sample.rank].append(sample.busy)
    for event in events:
        if event.rank is not None:
            happened[event.rank].append(event)
    return {
        rank: RankActivity(
            sync_count=sum(event.kind is EventKind.SYNC_START for event in happened[rank]),
            sync_ms=math.fsum(_lengths(happened[rank], EventKind.SYNC_END)),
            wait_ms=math.fsum(_lengths(happened[rank], EventKind.WAIT)),
            busy_pct=fmean(busy[rank]) if busy[rank] else None,
        )
        for rank in sorted({*busy, *happened})
    }


def _lengths(events: Iterable[TimelineEvent], kind: EventKind) -> list[float]:
    return [float(event.fields["ms"]) for event in events if event.kind is kind]


def _mean_ms(happened: Iterable[list[TimelineEvent]], kind: EventKind) -> float | None:
    """The mean length, where each event lasts as long as its slowest rank takes for it."""
    lengths = [max(of_ranks) for one in happened if (of_ranks := _lengths(one, kind))]
    return fmean(lengths) if lengths else None
