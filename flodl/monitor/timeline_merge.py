"""Merge the timelines of all ranks of a training, on the clock of the first."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from flodl.monitor.timeline import Timeline
from flodl.monitor.timeline_records import TimelineEvent, TimelineSample

_Record = TypeVar("_Record", TimelineSample, TimelineEvent)

Part: TypeAlias = Timeline | str | os.PathLike[str]
"""A timeline, or a file from :meth:`Timeline.save_json`."""


def merge_timelines(parts: Sequence[Part], offsets_ms: Sequence[float] | None = None) -> Timeline:
    """Return one timeline with the records of several, in order of time.

    Its zero is that of the first part, or the earliest record if that is before it.

    Args:
        parts: One per rank. A record without a rank gets the position of its part as rank.
        offsets_ms: Offset for each part: added to its times, it gives the times of the first part.
            None adds nothing. :func:`flodl.ranks.launch.clock_offsets.clock_offsets` measures them.

    Raises:
        ValueError: The number of offsets is not the number of parts.
        OSError: A file cannot be read.
        DataError: A file is not a timeline.
    """
    offsets = [0.0] * len(parts) if offsets_ms is None else [float(one) for one in offsets_ms]
    if len(offsets) != len(parts):
        raise ValueError(f"{len(parts)} timelines need as many offsets, got {len(offsets)}")
    samples: list[TimelineSample] = []
    events: list[TimelineEvent] = []
    for place, (part, offset) in enumerate(zip(parts, offsets, strict=True)):
        timeline = part if isinstance(part, Timeline) else Timeline.load(part)
        samples += [_moved(sample, offset, place) for sample in timeline.samples]
        events += [_moved(event, offset, place) for event in timeline.events]
    times = [one.t_ms for one in samples] + [one.t_ms for one in events]
    early = -min(times, default=0.0)
    if early > 0:
        samples = [_moved(sample, early, 0) for sample in samples]
        events = [_moved(event, early, 0) for event in events]
    return Timeline.from_samples(samples, events)


def _moved(record: _Record, offset_ms: float, place: int) -> _Record:
    rank = place if record.rank is None else record.rank
    return dataclasses.replace(record, t_ms=round(record.t_ms + offset_ms, 3), rank=rank)
