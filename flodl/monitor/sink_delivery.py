"""Pass the records of a run to one sink without delaying training."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flodl import log
from flodl.monitor.media.records import MediaRecord
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries
from flodl.monitor.sinks import (
    BufferedSink,
    LedgerSink,
    MediaSink,
    ProgressSink,
    Sink,
    StepSink,
)
from flodl.monitor.step_progress import StepProgress
from flodl.openmp import use_one_thread

CAPACITY = 4096
MEDIA_CAPACITY = 256 * 2**20
"""Largest number of bytes of waiting media."""

# Largest share of the time that a sink may spend on flushing, however large its file is.
_FLUSH_SHARE = 1 / 20


@dataclass(frozen=True)
class _Work:
    info: RunInfo | None
    records: list[EpochRecord]
    steps: list[Sequence[StepSeries]]
    media: list[MediaRecord]
    ledger: Mapping[str, float] | None
    progress: StepProgress | None
    finish: Finish | None
    ticket: int
    asked: bool

    @property
    def news(self) -> bool:
        """Whether there is anything to flush."""
        newest = (self.info, self.ledger, self.progress)
        queued = self.records or self.steps or self.media
        return any(one is not None for one in newest) or bool(queued)


class Delivery:
    """Passes records to one sink through a bounded queue and its own daemon thread.

    Records, batches of steps and media that find the queue full are dropped and counted. A sink
    that raises is reported once on stderr and gets nothing more.

    Args:
        sink: The receiver.
        info: Facts of the run so far.
        history: Records that the sink has missed; delivered first, regardless of the capacity.
        steps: Step curves that it has missed.
        ledger: Seconds by account so far; None if there is no ledger.
        progress: The position of the training, if it is known.
        media: Media that it has missed.
        capacity: Largest number of waiting records, of waiting batches of steps, and of media.
    """

    def __init__(
        self,
        sink: Sink,
        info: RunInfo,
        history: Sequence[EpochRecord] = (),
        steps: Sequence[StepSeries] = (),
        ledger: Mapping[str, float] | None = None,
        *,
        progress: StepProgress | None = None,
        media: Sequence[MediaRecord] = (),
        capacity: int = CAPACITY,
    ) -> None:
        self.sink = sink
        self.dropped = 0
        """Number of records, batches of steps and media that came too fast for the sink."""
        self.error: Exception | None = None
        """The exception of the sink, if it was detached because of one."""
        self._changed = threading.Condition()
        self._info: RunInfo | None = info
        self._records = deque(history)
        self._room = capacity + len(history)
        self._wants_steps = isinstance(sink, StepSink)
        self._steps: deque[Sequence[StepSeries]] = deque([steps] if steps else [])
        self._wants_media = isinstance(sink, MediaSink)
        self._media = deque(media)
        self._media_bytes = 0
        self._wants_ledger = isinstance(sink, LedgerSink)
        self._ledger = ledger
        self._wants_progress = isinstance(sink, ProgressSink)
        self._progress = progress if self._wants_progress else None
        self._finish: Finish | None = None
        self._asked = 0  # number of requested flushes
        self._served = 0  # number of completed ones
        self._detached = self._done = False
        threading.Thread(target=self._run, name=f"flodl-sink-{self}", daemon=True).start()

    def __str__(self) -> str:
        named = type(self.sink).__str__ is not object.__str__
        return str(self.sink) if named else type(self.sink).__name__

    def inform(self, info: RunInfo) -> None:
        """Pass on changed facts; only the newest count."""
        with self._changed:
            self._info = info
            self._changed.notify_all()

    def record(self, record: EpochRecord) -> None:
        """Pass on one epoch; returns at once."""
        with self._changed:
            if self._done:
                return
            if len(self._records) >= self._room:
                self.dropped += 1
                return
            self._records.append(record)
            self._changed.notify_all()

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Pass on pieces of curves, if the sink wants them; returns at once."""
        if not self._wants_steps:
            return
        with self._changed:
            if self._done:
                return
            if len(self._steps) >= self._room:
                self.dropped += 1
                return
            self._steps.append(series)
            self._changed.notify_all()

    def media(self, records: Sequence[MediaRecord]) -> None:
        """Pass on media, if the sink wants them; returns at once."""
        if not self._wants_media or not records:
            return
        with self._changed:
            if self._done:
                return
            for record in records:
                if len(self._media) >= self._room or self._media_bytes > MEDIA_CAPACITY:
                    self.dropped += 1
                    continue
                self._media_bytes += record.size
                self._media.append(record)
            self._changed.notify_all()

    def ledger(self, seconds: Mapping[str, float]) -> None:
        """Pass on the seconds by account, if the sink wants them; only the newest count."""
        if self._wants_ledger:
            with self._changed:
                self._ledger = seconds
                self._changed.notify_all()

    def progress(self, progress: StepProgress) -> None:
        """Pass on the position, if the sink wants it; only the newest counts."""
        if self._wants_progress:
            with self._changed:
                self._progress = progress
                self._changed.notify_all()

    def finish(self, summary: Finish) -> None:
        """Pass on the end of the run; returns at once, see :meth:`join`."""
        with self._changed:
            self._finish = summary
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until the sink has made everything so far visible; return False on a timeout."""
        with self._changed:
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done or self._served >= ticket, timeout)

    def join(self, timeout: float) -> bool:
        """Wait until the sink has received the end of the run; return False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done, timeout)

    def detach(self) -> None:
        """Release the sink without sending it the end of the run; returns at once."""
        with self._changed:
            self._detached = True
            self._changed.notify_all()

    def _run(self) -> None:
        use_one_thread()  # the other cores belong to the training
        try:
            self._serve()
        except Exception as error:
            self.error = error
            reason = str(error) or type(error).__name__
            log.warning(f"monitor: {self} is detached, training continues: {reason}")
        finally:
            with self._changed:
                self._done = True
                self._records.clear()
                self._steps.clear()
                self._media.clear()
                self._changed.notify_all()

    def _serve(self) -> None:
        buffered = self.sink if isinstance(self.sink, BufferedSink) else None
        unflushed, due = False, 0.0
        while True:
            work = self._take(until=due if unflushed else None)
            if self._detached:
                return
            self._hand_over(work)
            if work.finish is not None:
                self.sink.finish(work.finish)
                return
            if buffered is not None:
                unflushed = unflushed or work.news
                started = time.monotonic()
                if unflushed and (work.asked or started >= due):
                    buffered.flush()
                    ended = time.monotonic()
                    due = ended + max(buffered.flush_seconds, (ended - started) / _FLUSH_SHARE)
                    unflushed = False
            with self._changed:
                self._served = work.ticket
                self._changed.notify_all()

    def _hand_over(self, work: _Work) -> None:
        if work.info is not None:
            self.sink.open(work.info)
        for record in work.records:
            self.sink.record(record)
        if isinstance(self.sink, StepSink):
            for series in work.steps:
                self.sink.steps(series)
        if isinstance(self.sink, MediaSink):
            for piece in work.media:
                self.sink.media(piece)
        if isinstance(self.sink, LedgerSink) and work.ledger is not None:
            self.sink.ledger(work.ledger)
        if isinstance(self.sink, ProgressSink) and work.progress is not None:
            self.sink.progress(work.progress)

    def _take(self, until: float | None) -> _Work:
        """Wait for work, at most until a flush is due, and take all of it."""
        with self._changed:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            self._changed.wait_for(self._pending, timeout)
            asked = self._asked > self._served
            work = _Work(
                info=self._info,
                records=list(self._records),
                steps=list(self._steps),
                media=list(self._media),
                ledger=self._ledger,
                progress=self._progress,
                finish=self._finish,
                ticket=self._asked,
                asked=asked,
            )
            self._info = self._ledger = self._progress = None
            self._records.clear()
            self._steps.clear()
            self._media.clear()
            self._media_bytes = 0
            return work

    def _pending(self) -> bool:
        if self._detached:
            return True
        newest = (self._info, self._ledger, self._progress, self._finish)
        if any(one is not None for one in newest):
            return True
        queued = self._records or self._steps or self._media
        return bool(queued) or self._asked > self._served
