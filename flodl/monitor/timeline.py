"""A timeline of a run: the load of the machine ten times a second, and events of the training.

It shows why a device waits: the swimlanes of :meth:`Timeline.save_html` show processor, memory and
GPUs above the epochs, exchanges and averagings of the same time.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self, TypeAlias, TypeVar, final

from fdl.base import page_assets
from fdl.base.files import write_text
from flodl.errors import DataError
from flodl.monitor.records import finite, to_json
from flodl.monitor.resources import ResourceSample, ResourceSampler
from flodl.monitor.sampling import BusyMeter, LoadSampler, Ticker
from flodl.monitor.timeline_analysis import idle_gaps, of_rank, summarize
from flodl.monitor.timeline_records import (
    EventKind,
    IdleGap,
    TimelineEvent,
    TimelineSample,
    TimelineSummary,
)

_KEPT = 1_000_000


@final
class Timeline:
    """Samples the machine on its own thread and records events from any thread.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. Recording an event takes
    microseconds and never waits for a reader.

    Args:
        poll_interval_ms: Time between two samples.
        clock: Seconds that never decrease; the timeline begins when it is created.
        sampler: Measures the machine, like :class:`~flodl.monitor.resources.ResourceSampler`.
            None uses that class.
        max_samples: Largest number of samples kept, and of events; the oldest are dropped. A sample
            is kept as its line of JSON, about 140 bytes and 60 more per GPU. The default keeps a
            day at ten samples a second in 140 MB.
        rank: The rank of this timeline, if a training has several; it is in every record.

    Attributes:
        busy: A rank's loop reports here when work on a batch begins and ends. Samples then contain
            the percentage of time that it worked.
        rank: The argument `rank`.

    Raises:
        ValueError: An interval or `max_samples` is not positive, or `rank` is negative.
    """

    def __init__(
        self,
        poll_interval_ms: float = 100,
        *,
        clock: Callable[[], float] = time.monotonic,
        sampler: LoadSampler | None = None,
        max_samples: int = _KEPT,
        rank: int | None = None,
    ) -> None:
        for name, value in (
            ("poll_interval_ms", poll_interval_ms),
            ("max_samples", max_samples),
        ):
            if not value > 0:
                raise ValueError(f"{name} of a timeline must be above 0, not {value!r}")
        if rank is not None and rank < 0:
            raise ValueError(f"rank of a timeline is {rank}; ranks count from 0")
        self.rank = rank
        self.busy = BusyMeter(clock)
        self._poll_ms = float(poll_interval_ms)
        self._clock = clock
        self._begin: float | None = clock()  # None: made from records, time does not advance
        self._end_ms = 0.0  # used while the clock does not run
        self._sampler = sampler
        self._lock = threading.Lock()
        self._samples: deque[str] = deque(maxlen=max_samples)
        self._names: dict[int, str] = {}  # of the GPUs, which the lines do not repeat
        self._events: deque[TimelineEvent] = deque(maxlen=max_samples)
        self._running = threading.Lock()  # guards starting and stopping
        self._ticker: Ticker | None = None

    @classmethod
    def from_samples(
        cls, samples: Iterable[TimelineSample], events: Iterable[TimelineEvent] = ()
    ) -> Timeline:
        """Return a timeline of existing records; they are sorted by time."""
        moments = sorted(samples, key=lambda sample: sample.t_ms)
        happened = sorted(events, key=lambda event: event.t_ms)
        made = cls(max_samples=max(_KEPT, len(moments), len(happened)))
        for sample in moments:
            made._append(sample)
        made._events.extend(happened)
        ends = [event.t_ms for event in happened[-1:]] + [one.t_ms for one in moments[-1:]]
        made._begin, made._end_ms = None, max(ends, default=0.0)
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Timeline:
        """Read the result of :meth:`save_json`.

        Raises:
            OSError: The file cannot be read.
            DataError: The file is not a timeline.
        """
        try:
            form = json.loads(Path(path).read_bytes())
            names = {int(device): str(name) for device, name in form.get("devices", {}).items()}
            made = cls.from_samples(
                (TimelineSample.from_json(one, names) for one in form["samples"]),
                map(TimelineEvent.from_json, form["events"]),
            )
            made._end_ms = float(form["total_ms"])
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise DataError(
                f"{os.fspath(path)} is not a timeline ({type(error).__name__}: {error}); "
                "give a file that Timeline.save_json wrote"
            ) from error
        return made

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start sampling; does nothing if it is already running."""
        with self._running:
            if self._ticker is not None:
                return
            sampler = self._sampler = self._sampler or ResourceSampler()
            with self._lock:
                if self._begin is None:  # continue where the records end
                    self._begin = self._clock() - self._end_ms / 1000
            self._ticker = Ticker(
                lambda: self._tick(sampler), self._poll_ms / 1000, name="flodl-timeline"
            )

    def stop(self) -> None:
        """Stop sampling and wait for its thread.

        It may be called several times. Events are still recorded afterwards; :meth:`start`
        continues.
        """
        with self._running:
            if self._ticker is not None:
                self._ticker.stop()
                self._ticker = None

    def event(self, kind: EventKind | str, **fields: object) -> None:
        """Record an event now; see :class:`EventKind` for the fields.

        ``from`` is a keyword of Python: write ``from_``. A field ``rank`` names the rank that the
        event is about, not the rank of the timeline.

        Raises:
            ValueError: The kind is unknown, or the fields do not fit the kind.
        """
        with self._lock:  # read the clock inside, so that events are in order of time
            event = TimelineEvent(self.elapsed_ms, EventKind(kind), fields, self.rank)
            self._events.append(event)

    @property
    def sample_count(self) -> int:
        """Number of samples held now."""
        return len(self._samples)

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the timeline was created; for one made from records, their length."""
        if self._begin is None:
            return self._end_ms
        return round((self._clock() - self._begin) * 1000, 3)

    @property
    def samples(self) -> list[TimelineSample]:
        """The samples held now, oldest first."""
        with self._lock:
            lines, names = list(self._samples), dict(self._names)
        return [TimelineSample.from_json(json.loads(line), names) for line in lines]

    @property
    def events(self) -> list[TimelineEvent]:
        """The events held now, oldest first."""
        with self._lock:
            return list(self._events)

    def idle_gaps(
        self, device: int, threshold_pct: float, min_ms: float, *, rank: int | None = None
    ) -> list[IdleGap]:
        """Return the times in which a GPU was used less than `threshold_pct` for `min_ms` or more.

        See :func:`flodl.monitor.timeline_analysis.idle_gaps`.

        Args:
            device: Number of the GPU.
            threshold_pct: Utilisation in percent.
            min_ms: Shorter gaps are left out.
            rank: The rank whose samples to use, in a timeline of several; None uses the first.
        """
        moments = ((one.t_ms, one.util(device)) for one in of_rank(self.samples, rank))
        return idle_gaps(moments, threshold_pct, min_ms)

    def summary(self) -> TimelineSummary:
        """Return a summary of the timeline in a few numbers."""
        return summarize(self.samples, self.events, self.elapsed_ms)

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON for :meth:`load`; every record has its own line.

        It is ``{"total_ms", "devices": {index: name}, "samples": […], "events": […]}``. Missing
        folders are created, also by the other methods that write.

        Raises:
            OSError: The file cannot be written; an existing one stays.
        """
        write_text(path, self._as_json() + "\n")

    def save_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table in order of time: one row per sample and per event.

        Columns: ``t_ms``, the values of samples, and ``event`` and ``fields`` (JSON) of events.

        Raises:
            OSError: The file cannot be written; an existing one stays.
        """
        write_text(path, csv_text(self.samples, self.events, sorted(self._names)))

    def save_html(self, path: str | os.PathLike[str], *, title: str = "Timeline") -> None:
        """Write the swimlanes as one page that needs only a browser.

        Raises:
            OSError: The file cannot be written; an existing one stays.
        """
        parts = {"title": to_json(title), "timeline": self._as_json()}
        write_text(path, page_assets.page(title, parts))

    def _as_json(self) -> str:
        with self._lock:
            lines, events = list(self._samples), list(self._events)
            devices = {str(device): name for device, name in sorted(self._names.items())}
        samples = ",\n".join(lines)
        happened = ",\n".join(to_json(event.as_json()) for event in events)
        return (
            f'{{"total_ms":{to_json(finite(self.elapsed_ms))},"devices":{to_json(devices)},\n'
            f'"samples":[\n{samples}],\n"events":[\n{happened}]}}'
        )

    def _append(self, sample: TimelineSample) -> None:
        self._names.update({gpu.device: gpu.name for gpu in sample.gpus})
        self._samples.append(to_json(sample.as_json()))

    def _tick(self, sampler: LoadSampler) -> None:
        load = sampler.sample()
        with self._lock:
            self._append(_sample(self.elapsed_ms, load, self.rank, self.busy.percent()))


def _sample(
    t_ms: float, load: ResourceSample, rank: int | None, busy: float | None
) -> TimelineSample:
    ram = None
    if load.ram_used is not None and load.ram_total is not None:
        ram = load.ram_used, load.ram_total
    # More digits would only be measurement noise, and make the files larger.
    cpu = None if load.cpu is None else round(load.cpu, 2)
    return TimelineSample(t_ms, cpu, ram, load.gpus, rank, busy)


_Record = TypeVar("_Record", TimelineSample, TimelineEvent)

Part: TypeAlias = Timeline | str | os.PathLike[str]
"""A timeline, or a file from :meth:`Timeline.save_json`."""


def merge_timelines(parts: Sequence[Part], offsets_ms: Sequence[float] | None = None) -> Timeline:
    """Return one timeline with the records of several, in order of time.

    Its zero is that of the first part, or the earliest record if that is before it.

    Args:
        parts: One per rank. A record without a rank gets the position of its part as rank.
        offsets_ms: Offset for each part: added to its times, it gives the times of the first part.
            None adds nothing. :func:`flodl.ranks.clocks.clock_offsets` measures them.

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


_GPU_PARTS = {"u": "pct", "vu": "vram_used", "va": "vram_alloc", "vt": "vram_total"}


def csv_text(
    samples: Sequence[TimelineSample], events: Sequence[TimelineEvent], devices: Sequence[int]
) -> str:
    """Return one row per sample and per event, in order of time.

    The columns ``rank`` and ``busy_pct`` exist if a record has such a value.
    """
    records: list[TimelineSample | TimelineEvent] = [*samples, *events]
    ranked = any(one.rank is not None for one in records) or any(
        one.busy is not None for one in samples
    )
    gpus = [f"gpu{device}_{part}" for device in devices for part in _GPU_PARTS.values()]
    who = ["rank", "busy_pct"] if ranked else []
    head = ["t_ms", *who, "cpu_pct", "ram_used", "ram_total", *gpus, "event", "fields"]
    table = io.StringIO()
    rows = csv.DictWriter(table, head, extrasaction="ignore", lineterminator="\n")
    rows.writeheader()
    for record in sorted(records, key=lambda one: one.t_ms):
        rows.writerow(_of_sample(record) if isinstance(record, TimelineSample) else _of(record))
    return table.getvalue()


def _of_sample(sample: TimelineSample) -> dict[str, str]:
    used, total = sample.ram or (None, None)
    row = {"t_ms": sample.t_ms, "rank": sample.rank, "busy_pct": sample.busy}
    row |= {"cpu_pct": sample.cpu, "ram_used": used, "ram_total": total}
    for gpu in sample.as_json()["gpus"]:
        row |= {f"gpu{gpu['d']}_{part}": gpu[key] for key, part in _GPU_PARTS.items()}
    return {name: _number(value) for name, value in row.items()}


def _of(event: TimelineEvent) -> dict[str, str]:
    fields = json.dumps(event.fields_as_json(), ensure_ascii=False) if event.fields else ""
    row = {"t_ms": _number(event.t_ms), "rank": _number(event.rank)}
    return row | {"event": event.kind.value, "fields": fields}


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.15g}"
