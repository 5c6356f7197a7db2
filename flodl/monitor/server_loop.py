"""One thread that serves all browsers; it never waits for one of them."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

from flodl.monitor.server_events import Lagging, Reader
from flodl.monitor.server_http import (
    LONGEST_HEAD,
    Refused,
    Request,
    parse_request,
    refusal,
    stream_head,
)

HEARTBEAT_SECONDS = 15.0
"""Longest silence of a stream: keeps proxies from closing it and detects dead clients."""

STALLED_SECONDS = 30.0
"""A client that reads nothing for this time is cut off."""

MOST_CONNECTIONS = 1000

_SEND_BUFFER = 128 * 1024  # bytes that the system may hold for a client that does not read
_TICK_SECONDS = 1.0

Answer = bytes | Reader
"""A complete response, or the position of an event stream."""


class Connection:
    """One client: its request, then the bytes left to send."""

    def __init__(self, channel: socket.socket, now: float) -> None:
        self.channel = channel
        self.asked = b""
        self.stream: Reader | None = None
        self.answered = False
        self.moved = now
        """Time of the last transfer in either direction."""
        self._rest = memoryview(b"")

    @property
    def pending(self) -> bool:
        """Whether there are bytes to send."""
        return len(self._rest) > 0

    def answer(self, answer: Answer) -> None:
        """Start sending an answer."""
        self.answered = True
        if isinstance(answer, Reader):
            self.stream = answer
            self._rest = memoryview(stream_head())
        else:
            self._rest = memoryview(answer)

    def heartbeat(self) -> None:
        """Send a comment if nothing else is being sent."""
        if not self.pending:
            self._rest = memoryview(b": \n\n")

    def send(self, now: float) -> bool:
        """Send as much as the system takes; return False if the connection is finished.

        Raises:
            OSError: The client has disconnected.
            Lagging: The client is too slow for its stream.
        """
        while True:
            if not self.pending:
                self._rest = memoryview(self.stream.take() if self.stream is not None else b"")
            if not self.pending:
                return self.stream is not None and not self.stream.ended
            try:
                sent = self.channel.send(self._rest)
            except (BlockingIOError, InterruptedError):
                return True
            self._rest = self._rest[sent:]
            self.moved = now


class ServerLoop:
    """Accepts connections, reads, answers and streams on one daemon thread.

    Args:
        listener: A bound and listening socket.
        handle: Returns the answer to a request; called on the loop's thread.
        tick: Called about once a second while streams are open, with their number.
    """

    def __init__(
        self,
        listener: socket.socket,
        handle: Callable[[Request], Answer],
        tick: Callable[[int], None],
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._tick = tick
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        self._lock = threading.Lock()
        self._rung = self._closing = False
        self._waiting: list[threading.Event] = []
        self.dropped = 0
        """Number of clients that were cut off because they were too slow."""
        for channel in (listener, self._bell, self._ringer):
            channel.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="flodl-live-page", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make streams send new events; returns at once."""
        with self._lock:
            if not self._rung and not self._closing:
                self._rung = True
                self._ringer.send(b"!")

    def drain(self, timeout: float) -> bool:
        """Wait until every stream has sent everything; return False if one was too slow."""
        done = threading.Event()
        with self._lock:
            if self._closing:
                return True
            self._waiting.append(done)
        self.wake()
        return done.wait(timeout)

    def close(self) -> None:
        """End all connections and free the port."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._ringer.send(b"!")
        self._thread.join(timeout=5.0)

    @property
    def streams(self) -> int:
        """Number of clients that follow the run."""
        return sum(one.stream is not None for one in tuple(self._connections.values()))

    def _run(self) -> None:
        due = time.monotonic() + _TICK_SECONDS
        closing = False
        while True:
            events = self._selector.select(_TICK_SECONDS if self._connections else None)
            now = time.monotonic()
            for key, mask in events:
                if key.fileobj is self._listener:
                    self._accept(now)
                elif key.fileobj is self._bell:
                    self._bell.recv(64)
                    with self._lock:
                        self._rung = False
                        closing = self._closing
                    self._advance(now)
                elif key.data in self._connections:
                    self._serve(self._connections[key.data], mask, now)
            if closing:  # earlier events have been sent
                break
            if now >= due:
                due = now + _TICK_SECONDS
                self._look_after(now)
            self._report_drained()
        self._end()

    def _accept(self, now: float) -> None:
        for _ in range(64):
            try:
                channel, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    time.sleep(0.05)  # no file descriptors or memory left; the client keeps waiting
                return
            if len(self._connections) >= MOST_CONNECTIONS:
                channel.close()
                continue
            channel.setblocking(False)
            with contextlib.suppress(OSError):
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = channel.fileno()
            self._connections[number] = Connection(channel, now)
            self._selector.register(channel, selectors.EVENT_READ, number)

    def _serve(self, one: Connection, mask: int, now: float) -> None:
        try:
            if mask & selectors.EVENT_READ and not self._receive(one, now):
                self._drop(one)
                return
        except OSError:
            self._drop(one)
            return
        if one.answered:
            self._send(one, now)

    def _receive(self, one: Connection, now: float) -> bool:
        """Read; return False if the client has disconnected."""
        try:
            read = one.channel.recv(4096)
        except (BlockingIOError, InterruptedError):
            return True
        if not read:
            return False
        if one.answered:
            return True  # one request per connection; further data are ignored
        one.moved = now
        one.asked += read
        end = one.asked.find(b"\r\n\r\n")
        try:
            if end < 0 and len(one.asked) > LONGEST_HEAD:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                raise Refused(status, "the request is too long")
            if end >= 0:
                request, body = parse_request(one.asked[:end]), one.asked[end + 4 :]
                if len(body) >= (length := request.length):
                    one.answer(self._handle(replace(request, body=body[:length])))
        except Refused as refused:
            one.answer(refusal(refused))
        except Exception as error:  # one bad request must not end the page for all clients
            text = f"{type(error).__name__}: {error}"
            one.answer(refusal(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, text)))
        return True

    def _send(self, one: Connection, now: float) -> None:
        try:
            going_on = one.send(now)
        except Lagging:
            self.dropped += 1
            going_on = False
        except OSError:
            going_on = False
        if not going_on:
            self._drop(one)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.pending else 0)
        number = one.channel.fileno()
        if self._selector.get_key(number).events != wanted:
            self._selector.modify(number, wanted, number)

    def _advance(self, now: float) -> None:
        for one in tuple(self._connections.values()):
            if one.stream is None:
                continue
            if one.pending and one.stream.lagging:
                self.dropped += 1
                self._drop(one)
            elif not one.pending:
                self._send(one, now)

    def _look_after(self, now: float) -> None:
        streams = self.streams
        if streams:
            self._tick(streams)
        for one in tuple(self._connections.values()):
            silent = now - one.moved
            if one.stream is not None and not one.pending:
                if silent >= HEARTBEAT_SECONDS:
                    one.heartbeat()
                    self._send(one, now)
            elif silent >= STALLED_SECONDS:
                self.dropped += 1
                self._drop(one)

    def _report_drained(self) -> None:
        with self._lock:
            if not self._waiting or self._rung:
                return
            if not any(one.stream and one.pending for one in self._connections.values()):
                for done in self._waiting:
                    done.set()
                self._waiting.clear()

    def _drop(self, one: Connection) -> None:
        number = one.channel.fileno()
        del self._connections[number]
        self._selector.unregister(number)
        _hang_up(one.channel)

    def _end(self) -> None:
        for one in tuple(self._connections.values()):
            self._drop(one)
        self._selector.close()
        # A forked child, such as a worker of a data loader, may hold a copy of the socket and so
        # the port; shutting down ends the listening itself.
        _hang_up(self._listener)
        self._bell.close()
        self._ringer.close()
        for done in self._waiting:
            done.set()


def _hang_up(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)
    channel.close()
