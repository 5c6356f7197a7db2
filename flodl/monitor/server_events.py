"""The run as an event stream; each client is a position in it, so no copies are made."""

from __future__ import annotations

import threading
from collections import deque

RING = 512
"""Number of events that a client may lag behind before it is cut off; it then reconnects."""

CHUNK = 64 * 1024
"""Size in bytes up to which a client's next chunk is filled; one event may exceed it."""


class Lagging(Exception):  # noqa: N818 - a state of the client
    """The client has missed events that are no longer stored."""


def event(kind: str, data: str, number: int | None = None) -> bytes:
    """Return one server-sent event; `data` is JSON on one line."""
    label = "" if number is None else f"id: {number}\n"
    return f"event: {kind}\n{label}data: {data}\n\n".encode()


class EventLog:
    """All events so far.

    Epochs are kept permanently, with their number as the event's id. A client sends the last number
    it has and gets the epochs after it. Of facts (``info``, ``ledger``) only the newest matters; a
    new client gets each once. Every event also enters a ring of limited size, which clients follow.
    A client is only a position, so a slow one takes no memory. If the ring has overwritten events
    that a client has not read, the client is cut off.
    """

    def __init__(self, ring: int = RING) -> None:
        self._lock = threading.Lock()
        self._epochs: list[str] = []
        self._facts: dict[str, str] = {}
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=ring)
        self._told = 0  # number of events ever added to the ring
        self._complete: bytes | None = None

    @property
    def epochs(self) -> list[str]:
        """The epochs so far, each as JSON."""
        with self._lock:
            return list(self._epochs)

    def epoch(self, data: str) -> None:
        """Add an epoch."""
        with self._lock:
            self._epochs.append(data)
            number = len(self._epochs)
            self._tell(event("epoch", data, number), number)

    def fact(self, kind: str, data: str) -> None:
        """Add a fact that replaces the previous one of its kind; does nothing if it is equal."""
        with self._lock:
            if self._facts.get(kind) != data:
                self._facts[kind] = data
                self._tell(event(kind, data))

    def news(self, kind: str, data: str) -> None:
        """Add an event that new clients do not need."""
        with self._lock:
            self._tell(event(kind, data))

    def complete(self, data: str) -> None:
        """Add the end of the run; streams end with it."""
        with self._lock:
            self._complete = event("complete", data)
            self._tell(self._complete)

    def reader(self, after: int = 0) -> Reader:
        """Return the position of a new client.

        Args:
            after: Number of the last epoch that the client has.
        """
        with self._lock:
            first = [event(kind, data) for kind, data in self._facts.items()]
            replay = max(0, after), len(self._epochs)
            return Reader(self, first, replay, self._told, self._complete)

    def _tell(self, message: bytes, number: int = 0) -> None:
        self._ring.append((number, message))
        self._told += 1

    def _between(self, start: int, stop: int) -> list[str]:
        with self._lock:
            return self._epochs[start:stop]

    def _missed(self, position: int) -> bool:
        with self._lock:
            return self._told - position > len(self._ring)

    def _after(self, position: int) -> list[tuple[int, bytes]]:
        with self._lock:
            missing = self._told - position
            if missing > len(self._ring):
                raise Lagging
            return [
                self._ring[index] for index in range(len(self._ring) - missing, len(self._ring))
            ]


class Reader:
    """One client's position in the log: it reads facts, missing epochs, then new events."""

    def __init__(
        self,
        log: EventLog,
        first: list[bytes],
        replay: tuple[int, int],
        position: int,
        complete: bytes | None,
    ) -> None:
        self._log = log
        self._first = first
        self._next, self._known = replay
        self._position = position
        self._complete = complete
        self.ended = False
        """Whether the end of the run was sent."""

    @property
    def lagging(self) -> bool:
        """Whether the ring has overwritten events that this client has not read."""
        return self._log._missed(self._position)

    def take(self) -> bytes:
        """Return the next chunk; empty if there is nothing new.

        Raises:
            Lagging: The ring has overwritten events that this client has not read.
        """
        if self.ended:
            return b""
        piece, self._first = b"".join(self._first), []
        if self._next < self._known:
            return piece + self._replay(CHUNK - len(piece))
        if self._complete is not None:
            self.ended = True
            return piece + self._complete
        for number, message in self._log._after(self._position):
            self._position += 1
            if 0 < number <= self._next:
                continue
            piece += message
            if message.startswith(b"event: complete\n"):
                self.ended = True
            if len(piece) >= CHUNK:
                break
        return piece

    def _replay(self, room: int) -> bytes:
        piece = b""
        for data in self._log._between(self._next, min(self._known, self._next + 256)):
            self._next += 1
            piece += event("epoch", data, self._next)
            if len(piece) >= room:
                break
        return piece
