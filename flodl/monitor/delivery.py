"""Carrying a run's stream to one sink without ever holding up training."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flodl import log
from flodl.monitor.records import EpochRecord, Finish, RunInfo
from flodl.monitor.sinks import BufferedSink, Sink

CAPACITY = 4096

# A sink may spend at most this part of the time on flushing, however large its file has grown.
_FLUSH_SHARE = 1 / 20


@dataclass(frozen=True)
class _Work:
    info: RunInfo | None
    records: list[EpochRecord]
    finish: Finish | None
    ticket: int
    asked: bool


class Delivery:
    """One sink behind a bounded queue and a daemon thread of its own.

    Records that find the queue full are dropped and counted. A sink that raises is reported once on
    stderr and gets nothing more.

    Args:
        sink: The watcher.
        info: Facts of the run so far.
        history: Records the sink has missed; delivered first, whatever their number.
        capacity: Records that may wait.
    """

    def __init__(
        self,
        sink: Sink,
        info: RunInfo,
        history: Sequence[EpochRecord] = (),
        *,
        capacity: int = CAPACITY,
    ) -> None:
        self.sink = sink
        self.dropped = 0
        """Records that were not delivered because the sink was too slow."""
        self.error: Exception | None = None
        """What the sink raised, once it is detached."""
        self._changed = threading.Condition()
        self._info: RunInfo | None = info
        self._records = deque(history)
        self._room = capacity + len(history)
        self._finish: Finish | None = None
        self._asked = 0  # flushes asked for, and
        self._served = 0  # how many of them are done
        self._done = False
        threading.Thread(target=self._run, name=f"flodl-sink-{self}", daemon=True).start()

    def __str__(self) -> str:
        named = type(self.sink).__str__ is not object.__str__
        return str(self.sink) if named else type(self.sink).__name__

    def inform(self, info: RunInfo) -> None:
        """Pass on changed facts; only the newest matter."""
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

    def finish(self, summary: Finish) -> None:
        """Pass on the end of the run; returns at once, see :meth:`join`."""
        with self._changed:
            self._finish = summary
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until the sink has made everything so far visible; False if it did not in time."""
        with self._changed:
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done or self._served >= ticket, timeout)

    def join(self, timeout: float) -> bool:
        """Wait until the sink has taken the end of the run; False if it did not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done, timeout)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self.error = error
            reason = str(error) or type(error).__name__
            log.warning(f"monitor: {self} is detached, training goes on: {reason}")
        finally:
            with self._changed:
                self._done = True
                self._records.clear()
                self._changed.notify_all()

    def _serve(self) -> None:
        buffered = self.sink if isinstance(self.sink, BufferedSink) else None
        unflushed, due = False, 0.0
        while True:
            work = self._take(until=due if unflushed else None)
            if work.info is not None:
                self.sink.open(work.info)
            for record in work.records:
                self.sink.record(record)
            if work.finish is not None:
                self.sink.finish(work.finish)
                return
            if buffered is not None:
                unflushed = unflushed or work.info is not None or bool(work.records)
                started = time.monotonic()
                if unflushed and (work.asked or started >= due):
                    buffered.flush()
                    ended = time.monotonic()
                    due = ended + max(buffered.flush_seconds, (ended - started) / _FLUSH_SHARE)
                    unflushed = False
            with self._changed:
                self._served = work.ticket
                self._changed.notify_all()

    def _take(self, until: float | None) -> _Work:
        """Wait for something to do, at most until a flush is due, and take all of it."""
        with self._changed:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            self._changed.wait_for(self._pending, timeout)
            asked = self._asked > self._served
            work = _Work(self._info, list(self._records), self._finish, self._asked, asked)
            self._info = None
            self._records.clear()
            return work

    def _pending(self) -> bool:
        news = self._info is not None or self._finish is not None or bool(self._records)
        return news or self._asked > self._served
