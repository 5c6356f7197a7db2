"""A timeline of a run: the load of the machine ten times a second, and events of the training.

It shows why a device waits: the swimlanes of :meth:`Timeline.save_html` show processor, memory and
GPUs above the epochs, exchanges and averagings of the same time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, final

from flodl.monitor.resources import ResourceSample
from flodl.monitor.timeline_analysis import idle_gaps, summarize
from flodl.monitor.timeline_files import (
    TimelineContent,
    read_json,
    write_csv,
    write_html,
    write_json,
)
from flodl.monitor.timeline_records import (
    EventKind,
    IdleGap,
    TimelineEvent,
    TimelineSample,
    TimelineSummary,
)
from flodl.monitor.timeline_sampling import BusyMeter, FineSampler, LoadSampler, Ticker
from flodl.monitor.timeline_store import SampleStore


@final
class Timeline:
    """Samples the machine on its own thread and records events from any thread.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. Recording an event takes
    microseconds and never waits for a reader.

    Args:
        poll_interval_ms: Time between two samples.
        clock: Seconds that never decrease; the timeline begins when it is created.
        sampler: Measures the machine, like :class:`~flodl.monitor.resources.ResourceSampler`.
            None uses that class and reads the utilisation of GPUs at every sample.
        max_samples: Largest number of samples kept, and of events; the oldest are dropped. A sample
            takes about 90 bytes and 32 more per GPU. The default keeps a day at ten samples a
            second in 100 MB.
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
        max_samples: int = 1_000_000,
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
        self._samples = SampleStore(max_samples)
        self._events: deque[TimelineEvent] = deque(maxlen=max_samples)
        self._running = threading.Lock()  # guards starting and stopping
        self._ticker: Ticker | None = None

    @classmethod
    def from_samples(
        cls, samples: Iterable[TimelineSample], events: Iterable[TimelineEvent] = ()
    ) -> Timeline:
        """Return a timeline of existing records; they are sorted by time."""
        content = TimelineContent(SampleStore(), [], 0.0)
        content.samples.extend(sorted(samples, key=lambda sample: sample.t_ms))
        content.events.extend(sorted(events, key=lambda event: event.t_ms))
        moments = [event.t_ms for event in content.events[-1:]]
        moments += [sample.t_ms for sample in content.samples]
        content.total_ms = max(moments, default=0.0)
        return cls._from_content(content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Timeline:
        """Read the result of :meth:`save_json`.

        Raises:
            OSError: The file cannot be read.
            DataError: The file is not a timeline.
        """
        return cls._from_content(read_json(path))

    @classmethod
    def _from_content(cls, content: TimelineContent) -> Timeline:
        room = max(1_000_000, len(content.samples), len(content.events))
        timeline = cls(max_samples=room)
        timeline._begin, timeline._end_ms = None, content.total_ms
        timeline._samples = content.samples.copy(room)
        timeline._events.extend(content.events)
        return timeline

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start sampling; does nothing if it is already running."""
        with self._running:
            if self._ticker is not None:
                return
            if self._sampler is None:
                self._sampler = FineSampler()
            with self._lock:
                if self._begin is None:  # continue where the records end
                    self._begin = self._clock() - self._end_ms / 1000
            sampler = self._sampler
            self._ticker = Ticker(
                lambda: self._tick(sampler), self._poll_ms / 1000, name="flodl-timeline"
            )

    def stop(self) -> None:
        """Stop sampling and wait for its thread.

        It may be called several times. Events are still recorded afterwards; :meth:`start`
        continues.
        """
        with self._running:
            if self._ticker is None:
                return
            self._ticker.stop()
            self._ticker = None
            if isinstance(self._sampler, FineSampler):
                self._sampler.close()
                self._sampler = None

    def event(self, kind: EventKind | str, **fields: object) -> None:
        """Record an event now; see :class:`EventKind` for the fields.

        ``from`` is a keyword of Python: write ``from_``. A field ``rank`` names the rank that the
        event is about, not the rank of the timeline.

        Raises:
            ValueError: The kind is unknown, or the fields do not fit the kind.
        """
        with self._lock:  # read the clock inside, so that events are in order of time
            event = TimelineEvent(self._now_ms(), EventKind(kind), fields, self.rank)
            self._events.append(event)

    @property
    def sample_count(self) -> int:
        """Number of samples held now."""
        return len(self._samples)

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the timeline was created; for one made from records, their length."""
        return self._now_ms()

    @property
    def samples(self) -> list[TimelineSample]:
        """The samples held now, oldest first."""
        with self._lock:
            held = self._samples.copy()
        return list(held)

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
        moments = ((one.t_ms, one.util(device)) for one in self._content().samples.of(rank))
        return idle_gaps(moments, threshold_pct, min_ms)

    def summary(self) -> TimelineSummary:
        """Return a summary of the timeline in a few numbers."""
        content = self._content()
        return summarize(content.samples, content.events, content.total_ms)

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON for :meth:`load`.

        Raises:
            OSError: The file cannot be written; an existing one stays.
        """
        write_json(path, self._content())

    def save_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table in order of time: one row per sample and per event.

        Columns: ``t_ms``, the values of samples, and ``event`` and ``fields`` (JSON) of events.

        Raises:
            OSError: The file cannot be written; an existing one stays.
        """
        write_csv(path, self._content())

    def save_html(self, path: str | os.PathLike[str], *, title: str = "Timeline") -> None:
        """Write the swimlanes as one page that needs only a browser.

        Raises:
            OSError: The file cannot be written; an existing one stays.
        """
        write_html(path, self._content(), title=title)

    def _now_ms(self) -> float:
        if self._begin is None:
            return self._end_ms
        return round((self._clock() - self._begin) * 1000, 3)

    def _content(self) -> TimelineContent:
        with self._lock:
            return TimelineContent(self._samples.copy(), list(self._events), self._now_ms())

    def _tick(self, sampler: LoadSampler) -> None:
        load = sampler.sample()
        with self._lock:
            sample = _sample(self._now_ms(), load, self.rank, self.busy.percent())
            self._samples.append(sample)


def _sample(
    t_ms: float, load: ResourceSample, rank: int | None, busy: float | None
) -> TimelineSample:
    ram = None
    if load.ram_used is not None and load.ram_total is not None:
        ram = load.ram_used, load.ram_total
    # More digits would only be measurement noise, and make the files larger.
    cpu = None if load.cpu is None else round(load.cpu, 2)
    return TimelineSample(t_ms, cpu, ram, load.gpus, rank, busy)
