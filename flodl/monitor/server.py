"""The live page: shows a run in the browser while it trains; needs only the standard library."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias, final

from fdl.base.masking import KNOWN
from flodl import log
from flodl.errors import StateError
from flodl.monitor.media.records import MediaRecord
from flodl.monitor.media.served import media_answer
from flodl.monitor.media.store import MediaStore
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries, finite, to_json
from flodl.monitor.report import csp, render
from flodl.monitor.resources import ResourceSample, ResourceSampler
from flodl.monitor.series import SeriesStore, thinned_series
from flodl.monitor.server_events import EventLog
from flodl.monitor.server_http import Admission, Refused, Request, is_loopback, response
from flodl.monitor.server_loop import Answer, ServerLoop
from flodl.monitor.step_progress import StepProgress

POINTS_PER_NEWS = 400
"""Points of one curve in one event; zooming in loads the others."""

POINTS_ASKED = 2000
MOST_POINTS = 20_000

_LOAD_SECONDS = 2.0
_LOADS_KEPT = 300
_GOODBYE_SECONDS = 1.0

_JSON = "application/json"

Post: TypeAlias = Callable[[Any, Callable[[Mapping[str, Any]], object]], object]
"""Takes a request of a reader, and a function for its answer."""


@final
class LiveServer:
    """Serves the page, the event stream and the curves of one run.

    ============== ===================================================================
    ``/``          the page; it draws itself from embedded data and from ``/events``
    ``/events``    server-sent events: ``info epoch steps progress media ledger load drawing
                   acts complete``
    ``/graph.svg`` the drawing of the model
    ``/api/history`` all epochs so far, as a JSON array
    ``/api/series`` names of the step curves; with ``name=`` (repeatable) their points,
                   for the steps ``from=`` to ``to=``, thinned to ``points=``
    ``/api/media`` kind, name and steps of all media; with ``kind=`` and ``name=`` the records
    ``/image.png`` the image of ``name=`` at ``step=``
    ``/api/act``   POST, with buttons: what the training shall do; its outcome is an event
    ============== ===================================================================

    It is a sink like the others. No method waits for a browser.

    A port that is in use or not permitted is replaced by a free one of the same host. A host that
    is not this machine is replaced by 127.0.0.1. Both give a warning.

    Args:
        curves: The monitor's step curves.
        media: The monitor's media.
        port: 0 takes any free port.
        host: Address to listen on. Unless it is a loopback address, every path begins with a random
            token, which is part of :attr:`url`.
        buttons: Let readers of the page act on the training; every path then begins with a token.
        session: Identifies the run; a page reloads if it finds another run at its address.

    Raises:
        StateError: The port is not one of 0 to 65535, or this machine cannot open a socket to
            listen on.
    """

    def __init__(
        self,
        curves: SeriesStore,
        media: MediaStore | None = None,
        *,
        port: int = 3000,
        host: str = "127.0.0.1",
        session: str = "",
        buttons: bool = False,
    ) -> None:
        listener, host = _listen_anywhere(host, check_port(port))
        self._curves = curves
        self._media = media or MediaStore()
        self._session = session
        self._info: RunInfo | None = None
        self._finish: Finish | None = None
        self._ledger: Mapping[str, float] = {}
        self._progress: StepProgress | None = None
        self._loads: deque[str] = deque(maxlen=_LOADS_KEPT)
        self._drawings = 0
        self._events = EventLog()
        self._sampler = ResourceSampler()
        self._started, self._sampled = time.monotonic(), -math.inf
        is_open = is_loopback(host) and not buttons
        self._admission = Admission("" if is_open else secrets.token_urlsafe(16))
        self._host, self._buttons = host, buttons
        self._post: Post | None = None
        self._acts: Mapping[str, Any] = {}
        self.url = _address(host, listener.getsockname()[1], self._admission.token)
        """The address to open in a browser."""
        self._loop = ServerLoop(listener, self._answer, self._tick)

    def __str__(self) -> str:
        return f"live page on {self.url.partition('//')[2].partition('/')[0]}"

    @property
    def clients(self) -> int:
        """Number of browsers that follow the run now."""
        return self._loop.streams

    @property
    def dropped(self) -> int:
        """Number of browsers that were cut off because they were too slow."""
        return self._loop.dropped

    def open(self, info: RunInfo) -> None:
        """Send the facts shown around the curves."""
        before, self._info = self._info, info
        form = info.as_json() | {"session": self._session}
        if info.svg != (before.svg if before else ""):
            self._drawings += 1
        # The drawing can be large and changes with every epoch: clients fetch it to show it.
        form["svg"] = ""
        self._events.fact("info", to_json(form))
        self._events.fact("drawing", to_json({"version": self._drawings if info.svg else 0}))
        self._loop.wake()

    def record(self, record: EpochRecord) -> None:
        """Send one epoch."""
        self._events.epoch(to_json(record.as_json()))
        self._loop.wake()

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Send pieces of curves, thinned."""
        pieces = [thinned_series(piece, POINTS_PER_NEWS).as_json() for piece in series]
        steps, seconds = series[0].clock if series else ((), ())
        clock = {"steps": list(steps), "seconds": list(seconds)}
        self._events.news("steps", to_json({"series": pieces, "clock": clock}))
        self._loop.wake()

    def progress(self, progress: StepProgress) -> None:
        """Send the position of the training and the load of the machine."""
        self._progress = progress
        self._events.fact("progress", to_json(progress.as_json()))
        self._tell_load(progress.elapsed, progress.resources)
        self._loop.wake()

    def media(self, record: MediaRecord) -> None:
        """Tell browsers of a new record, which they load when they show it."""
        kind, name = record.key
        self._events.news("media", to_json({"kind": kind, "name": name, "step": record.step}))
        self._loop.wake()

    def ledger(self, seconds: Mapping[str, float]) -> None:
        """Send the seconds by account."""
        self._ledger = seconds
        self._events.fact("ledger", to_json({name: finite(at) for name, at in seconds.items()}))
        self._loop.wake()

    def steer(self, post: Post) -> None:
        """Let readers act on the training, if there are buttons.

        Args:
            post: Takes a request and a function that gets its answer, both JSON objects. Raises
                ``ValueError`` for a request that is not one.
        """
        self._post = post if self._buttons else None

    def acts(self, state: Mapping[str, Any]) -> None:
        """Send what people can change now; browsers show it beside their buttons."""
        if self._buttons:
            self._acts = {**self._acts, **KNOWN.texts(dict(state))}
            self._events.fact("acts", to_json(self._acts))
            self._loop.wake()

    def finish(self, summary: Finish) -> None:
        """Send the end of the run; browsers get a moment to read it before the program ends."""
        self._finish = summary
        self._sampler.close()
        self._events.complete(to_json(summary.as_json()))
        self._loop.wake()
        self._loop.drain(_GOODBYE_SECONDS)

    def close(self) -> None:
        """Close all connections and free the port."""
        self._loop.close()
        self._sampler.close()

    def _answer(self, request: Request) -> Answer:
        path = self._admission.admit(request)
        if request.is_post:
            return self._act(path, request)
        if path == "/":
            return response(self._page(), "text/html; charset=utf-8", csp=csp(live=True))
        if path == "/events":
            return self._events.reader(_last_event(request))
        if path == "/graph.svg":
            if self._info is None or not self._info.svg:
                raise Refused(HTTPStatus.NOT_FOUND, "this run has no drawing of its model")
            # A drawing opened on its own may use styles, but not run scripts or fetch anything.
            policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
            return response(self._info.svg.encode(), "image/svg+xml", csp=policy)
        if path == "/api/history":
            return response(f"[{','.join(self._events.epochs)}]".encode(), _JSON)
        if path == "/api/series":
            return response(self._series(request), _JSON)
        if path in ("/api/media", "/image.png"):
            return response(*media_answer(path, request, self._media))
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no {path:.80}")

    def _act(self, path: str, request: Request) -> bytes:
        if self._post is None or path != "/api/act":
            text = "nothing is posted here; .live(buttons=True) lets readers act on a training"
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, text)
        self._admission.admit_act(request, self._host)
        try:
            self._post(json.loads(request.body), lambda answer: self.acts({"answer": answer}))
        except ValueError as problem:
            raise Refused(HTTPStatus.BAD_REQUEST, str(problem)) from None
        return response(to_json({"ok": True}).encode(), _JSON)

    def _page(self) -> bytes:
        if self._info is None:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the run is about to begin; try again")
        return render(
            self._info,
            self._events.epochs,
            self._finish,
            series=self._curves.snapshot(POINTS_ASKED),
            clock=self._curves.clock(),
            ledger=self._ledger,
            progress=self._progress,
            loads=tuple(self._loads),
            live={
                "session": self._session,
                "drawing": self._drawings if self._info.svg else 0,
                "buttons": self._post is not None,
            },
        ).encode("utf-8", "backslashreplace")

    def _series(self, request: Request) -> bytes:
        known = self._curves.names()
        wanted = request.query.get("name")
        if not wanted:
            steps, seconds = self._curves.clock()
            clock = {"steps": steps, "seconds": seconds}
            return to_json({"names": known, "clock": clock}).encode()
        for name in wanted:
            if name not in known:
                raise Refused(HTTPStatus.NOT_FOUND, f"there is no curve {name:.80}")
        points = min(MOST_POINTS, request.whole_number("points") or POINTS_ASKED)
        first, last = request.whole_number("from"), request.whole_number("to")
        found = [self._curves.read(name, first, last, points).as_json() for name in wanted]
        return to_json({"series": found}).encode()

    def _tick(self, streams: int) -> None:  # noqa: ARG002 - the loop's signature
        now = time.monotonic()
        if self._finish is None and now - self._sampled >= _LOAD_SECONDS:
            self._tell_load(now - self._started, self._sampler.sample())
            self._loop.wake()

    def _tell_load(self, at: float, load: ResourceSample) -> None:
        self._sampled = time.monotonic()
        text = to_json({"at": round(at, 1), **load.as_json()})
        self._loads.append(text)
        self._events.news("load", text)


def _last_event(request: Request) -> int:
    """Return the number of the last epoch that a client has."""
    text = request.headers.get("last-event-id", "")
    if text.isascii() and text.isdigit():
        return int(text[:12])
    return request.whole_number("after") or 0


def check_port(port: int) -> int:
    """Return the port if it is valid.

    Raises:
        StateError: The port is not one of 0 to 65535.
    """
    if not 0 <= port <= 65535:  # the system would reduce it modulo 65536
        raise StateError(
            f"serve(port={port}): ports are 0 to 65535; choose another, or 0 for any that is free"
        )
    return port


def _listen_anywhere(host: str, port: int) -> tuple[socket.socket, str]:
    """Listen on an address; if that fails, on the closest free one, with a warning.

    Returns:
        The socket and the host it listens on.

    Raises:
        StateError: No address works.
    """
    wanted = f"{host}:{port}"
    reason = ""
    # The last choice is visible only on this machine, so it never has more readers than requested.
    for place, number in dict.fromkeys([(host, port), (host, 0), ("127.0.0.1", 0)]):
        try:
            listener = _listen(place, number)
        except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
            reason = reason or getattr(error, "strerror", None) or str(error)
            continue
        if reason:
            log.warning(
                f"the live page cannot use {wanted} ({reason}); it uses "
                f"{place}:{listener.getsockname()[1]}"
            )
        return listener, place
    raise StateError(f"serve(port={port}, host={host!r}): {reason}; train without the live page")


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
    except OSError:
        listener.close()
        raise
    return listener


def _address(host: str, port: int, token: str) -> str:
    name = host
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - chosen by the user, protected by the token
        name = "127.0.0.1"
        with contextlib.suppress(OSError):
            name = socket.gethostname() or name
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"{token}/" if token else "")
