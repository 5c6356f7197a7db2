"""The run as an event stream: what every client has yet to see, without a copy per client."""

from __future__ import annotations

import threading
from collections import deque

RING = 512
"""Events a client may lag behind before it is cut off; it comes back and resumes."""

CHUNK = 64 * 1024
"""Bytes that a client's next piece is filled up to; one event may stand over."""


class Lagging(Exception):  # noqa: N818 - a state of the client
    """The client has missed events that are gone."""


def event(kind: str, data: str, number: int | None = None) -> bytes:
    """Return one server-sent event; `data` is JSON in one line."""
    label = "" if number is None else f"id: {number}\n"
    return f"event: {kind}\n{label}data: {data}\n\n".encode()


class EventLog:
    """What was told so far.

    Epochs are kept for good and carry their number as the event's id: a client names the last it
    has, and gets those after it. Facts of which only the newest matters (``info``, ``ledger``) are
    told to newcomers once. Everything also enters one bounded ring, which clients follow; a client
    is a position, so a slow one costs no memory, and one that the ring has overtaken is cut off.
    """

    def __init__(self, ring: int = RING) -> None:
        self._lock = threading.Lock()
        self._epochs: list[str] = []
        self._facts: dict[str, str] = {}
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=ring)
        self._told = 0  # events ever put into the ring
        self._complete: bytes | None = None

    @property
    def epochs(self) -> list[str]:
        """The epochs so far, each as JSON."""
        with self._lock:
            return list(self._epochs)

    def epoch(self, data: str) -> None:
        """Tell of an epoch."""
        with self._lock:
            self._epochs.append(data)
            number = len(self._epochs)
            self._tell(event("epoch", data, number), number)

    def fact(self, kind: str, data: str) -> None:
        """Tell something that replaces what was told before, unless it is the same."""
        with self._lock:
            if self._facts.get(kind) != data:
                self._facts[kind] = data
                self._tell(event(kind, data))

    def news(self, kind: str, data: str) -> None:
        """Tell something that newcomers learn in another way."""
        with self._lock:
            self._tell(event(kind, data))

    def complete(self, data: str) -> None:
        """Tell the end; streams end with it."""
        with self._lock:
            self._complete = event("complete", data)
            self._tell(self._complete)

    def reader(self, after: int = 0) -> Reader:
        """Return a newcomer's position.

        Args:
            after: Number of the last epoch the client has.
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
    """One client's way through the log: facts, the epochs it lacks, then whatever comes."""

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
        """Whether the end of the run was told."""

    @property
    def lagging(self) -> bool:
        """Whether the ring has overtaken this client."""
        return self._log._missed(self._position)

    def take(self) -> bytes:
        """Return the next piece, empty if there is nothing to tell.

        Raises:
            Lagging: The ring has overtaken this client.
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
