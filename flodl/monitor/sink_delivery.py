"""Pass the records of a run to one sink without delaying training."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flodl import log
from flodl.monitor.sinks import Sink
from flodl.openmp import use_one_thread

CAPACITY = 4096
MEDIA_CAPACITY = 256 * 2**20
"""Largest number of bytes of waiting media."""

_FLUSH_SHARE = 1 / 20
"""Largest share of the time that a sink may spend on flushing, however large its file is."""

_ORDER = ("open", "record", "steps", "media", "ledger", "progress", "finish")
"""The methods of a sink, in the order in which they get what is waiting."""

_QUEUED = frozenset(("record", "steps", "media"))


class Delivery:
    """Passes records to one sink through bounded queues and its own daemon thread.

    Records, batches of steps and media that find their queue full are dropped and counted. Of the
    facts, the ledger and the position, only the newest wait. A sink gets what it has a method for.
    One that raises is reported once on stderr and gets nothing more.

    Args:
        sink: The receiver.
        missed: What the sink has missed, by the name of its method; delivered first, regardless of
            the capacity.
        capacity: Largest number of waiting records, of waiting batches of steps, and of media.
    """

    def __init__(
        self, sink: Sink, missed: Mapping[str, Sequence[Any]], *, capacity: int = CAPACITY
    ) -> None:
        self.sink = sink
        self.dropped = 0
        """Number of records, batches of steps and media that came too fast for the sink."""
        self.error: Exception | None = None
        """The exception of the sink, if it was detached because of one."""
        self._changed = threading.Condition()
        self._methods = {name for name in _ORDER if callable(getattr(sink, name, None))}
        self._room = capacity + len(missed.get("record", ()))
        self._media_bytes = 0
        self._waiting = {
            name: list(values)
            for name, values in missed.items()
            if values and name in self._methods
        }
        self._asked = 0  # number of requested flushes
        self._served = 0  # number of completed ones
        self._done = False
        threading.Thread(target=self._run, name=f"flodl-sink-{self}", daemon=True).start()

    def __str__(self) -> str:
        named = type(self.sink).__str__ is not object.__str__
        return str(self.sink) if named else type(self.sink).__name__

    def tell(self, name: str, *values: Any) -> None:
        """Pass values on to the method of this name, if the sink has it; returns at once.

        Args:
            name: ``record``, ``steps`` and ``media`` queue their values; of ``open``, ``ledger``,
                ``progress`` and ``finish`` only the newest value waits.
            values: What the method takes, one value for each call.
        """
        with self._changed:
            if not values or name not in self._methods or self._done:
                return
            if name in _QUEUED:
                self._append(name, values)
            else:
                self._waiting[name] = [*values]
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

    def _append(self, name: str, values: Sequence[Any]) -> None:
        """Let values wait behind those of their kind, as far as there is room."""
        queue = self._waiting.setdefault(name, [])
        for value in values:
            is_heavy = name == "media" and self._media_bytes > MEDIA_CAPACITY
            if len(queue) >= self._room or is_heavy:
                self.dropped += 1
                continue
            queue.append(value)
            if name == "media":
                self._media_bytes += value.size

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
                self._waiting.clear()
                self._changed.notify_all()

    def _serve(self) -> None:
        flush = getattr(self.sink, "flush", None)
        unflushed, due = False, 0.0
        while True:
            work, ticket = self._take(until=due if unflushed else None)
            for name in _ORDER:
                for value in work.get(name, ()):
                    getattr(self.sink, name)(value)
            if "finish" in work:
                return
            if flush is not None:
                unflushed = unflushed or bool(work)
                started = time.monotonic()
                if unflushed and (ticket > self._served or started >= due):
                    flush()
                    ended = time.monotonic()
                    pause = getattr(self.sink, "flush_seconds", 0.0)
                    due = ended + max(pause, (ended - started) / _FLUSH_SHARE)
                    unflushed = False
            with self._changed:
                self._served = ticket
                self._changed.notify_all()

    def _take(self, until: float | None) -> tuple[dict[str, list[Any]], int]:
        """Wait for work, at most until a flush is due; return all of it, and the flushes so far."""
        with self._changed:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            self._changed.wait_for(lambda: self._waiting or self._asked > self._served, timeout)
            work, self._waiting = self._waiting, {}
            self._media_bytes = 0
            return work, self._asked
