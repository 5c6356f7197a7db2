"""The live page: the files that a training writes for it, and the process that serves them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias, cast, final

from fdl.base.files import replace_text
from fdl.base.masking import KNOWN
from flodl import log
from flodl.errors import StateError
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepProgress, finite, to_json
from flodl.monitor.sinks import TextFileSink

_READER_SECONDS = 5.0
"""How long after a request of a browser somebody is taken to look at the page."""

Post: TypeAlias = Callable[[Any, Callable[[Mapping[str, Any]], object]], object]
"""Takes a request of a reader, and a function for its answer."""

_LOADS = 60


@final
class PageFilesSink(TextFileSink):
    """Writes the records of a run, and what is true of it now, into a folder.

    ``records.jsonl`` only grows. Each line is a JSON object with a ``type``: ``run`` are the facts
    of the run, without its drawing, again after every change. ``epoch`` is one epoch, and
    ``finish`` the end of the run. Metrics that are nan or infinite are text, other such numbers
    null. An existing file is continued: a line cut off by a crash is removed, and an epoch that is
    already in the file is not written again. An epoch trained again after a resume has two lines;
    the later one counts.

    ``now.json`` has the position, the ledger and the newest loads; it is replaced. ``graph.svg``
    is the drawing of the model. A page that is open knows by ``session`` that another training has
    begun to write.

    Args:
        folder: Folder to write, made if missing.
    """

    flush_seconds = 0.5

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        super().__init__(self._folder / "records.jsonl")
        self._known: set[str] = set()
        self._facts = self._drawing = ""
        self._loads: deque[dict[str, Any]] = deque(maxlen=_LOADS)
        self._now: dict[str, Any] = {"session": secrets.token_hex(8), "drawing": 0}

    def __str__(self) -> str:
        return str(self._folder)

    def open(self, info: RunInfo) -> None:
        """Begin or continue the file; keep facts that have changed, and write a new drawing."""
        super().open(info)
        form = info.as_json()
        drawing = form.pop("svg")
        facts = _line("run", form)
        if facts != self._facts:
            self._facts = facts
            self._pending.append(facts)
        if drawing != self._drawing:
            self._drawing = drawing
            # A page fetches the drawing to show it, because it can be large.
            replace_text(self._folder / "graph.svg", drawing)
            self._now["drawing"] = self._now["drawing"] + 1 if drawing else 0

    def _begin(self) -> None:
        self._path.touch()
        whole = 0
        with self._path.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(whole)
                    break
                whole += len(line)
                self._known.add(line.decode("utf-8", "replace").rstrip("\n"))

    def record(self, record: EpochRecord) -> None:
        """Keep one epoch for the next flush."""
        line = _line("epoch", record.as_json())
        if line not in self._known:
            self._pending.append(line)

    def progress(self, progress: StepProgress) -> None:
        """Set the position of the training, and keep the load of the machine."""
        self._now["progress"] = progress.as_json()
        self._loads.append({"at": round(progress.elapsed, 1), **progress.resources.as_json()})

    def ledger(self, seconds: Mapping[str, float]) -> None:
        """Set the seconds by account."""
        self._now["ledger"] = {name: finite(taken) for name, taken in seconds.items()}

    def flush(self) -> None:
        """Replace what is true now, and append the kept records; the end of a run is the last."""
        now = to_json({**self._now, "loads": list(self._loads)})
        replace_text(self._folder / "now.json", now)
        super().flush()

    def finish(self, summary: Finish) -> None:
        """Write the end of the run."""
        self._pending.append(_line("finish", summary.as_json()))
        self.flush()


def _line(kind: str, form: Mapping[str, Any]) -> str:
    return to_json({"type": kind, **form})


@final
class LiveServer:
    """A process that serves the page of a run from the files in its folder.

    Readers cost the training nothing. A port that is in use or not permitted is replaced by a free
    one of the same host. A host that is not this machine is replaced by 127.0.0.1. Both give a
    warning. Every path begins with a token, which is part of :attr:`url`.

    ================== ===================================================================
    ``/``              the page; it draws itself from embedded data and from ``/events``
    ``/events``        server-sent events: ``info epoch steps progress media ledger drawing
                       acts complete``; the id of a record is its place in the file
    ``/graph.svg``     the drawing of the model
    ``/records.jsonl`` the facts of the run, its epochs and its end, one JSON object per line
    ``/api/series``    names of the step curves; with ``name=`` (repeatable) their points,
                       for the steps ``from=`` to ``to=``, thinned to ``points=``
    ``/api/media``     kind, name and steps of all media; with ``kind=`` and ``name=`` the records
    ``/image.png``     the image of ``name=`` at ``step=``
    ``/api/act``       POST, with buttons: what the training shall do; its outcome is an event
    ================== ===================================================================

    Args:
        run: Folder of the run.
        port: 0 takes any free port.
        host: Address to listen on.
        buttons: Let readers of the page act on the training.
        temporary: Remove the folder once the program has ended.

    Raises:
        StateError: This machine cannot serve the page.
    """

    def __init__(
        self,
        run: Path,
        *,
        port: int = 3000,
        host: str = "127.0.0.1",
        buttons: bool = False,
        temporary: bool = False,
    ) -> None:
        words = [name for name, on in (("buttons", buttons), ("temporary", temporary)) if on]
        argv = [sys.executable, "-P", "-m", "fdl.runs.pages", str(run), host, str(port), *words]
        said: dict[str, Any] = {}
        reason = "its process did not start"
        try:
            # Ctrl-C of the terminal stops the training, and the page shows how it ended.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,
            )
            self._input = cast("IO[str]", self._process.stdin)
            self._output = cast("IO[str]", self._process.stdout)
            said = json.loads(self._output.readline() or "{}")
        except OSError as failure:
            reason = failure.strerror or str(failure)
        if "url" not in said:
            raise StateError(
                f"serve(port={port}, host={host!r}): {said.get('error') or reason}; "
                "train without the live page"
            )
        if "warning" in said:
            log.warning(said["warning"])
        self.url: str = said["url"]
        """The address to open in a browser."""
        self._buttons = buttons
        self._post: Post | None = None
        self._read = float("-inf")
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="flodl-live-page", daemon=True)
        self._listener.start()

    @property
    def has_readers(self) -> bool:
        """Whether a browser shows the page now."""
        return time.monotonic() - self._read < _READER_SECONDS

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
            self._tell({"acts": KNOWN.texts(dict(state))})

    def close(self) -> None:
        """Close all connections and free the port."""
        self._tell({"close": True})
        with suppress(OSError):
            self._input.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()

    def _tell(self, said: Mapping[str, Any]) -> None:
        with self._lock, suppress(OSError, ValueError):  # a process that has ended shows no page
            self._input.write(json.dumps(said) + "\n")
            self._input.flush()

    def _listen(self) -> None:
        """Answer what the readers ask for, until the page is closed."""
        with self._output:
            for line in self._output:
                said = json.loads(line)
                if "read" in said:
                    self._read = time.monotonic()
                if "post" in said:
                    self._tell({"to": said["id"], "problem": self._asked(said["post"])})

    def _asked(self, body: str) -> str:
        """Pass a request on; return why it is refused, or nothing."""
        if self._post is None:
            return "this training takes no requests yet"
        try:
            self._post(json.loads(body), lambda answer: self.acts({"answer": answer}))
        except ValueError as problem:
            return str(problem)
        return ""


def check_port(port: int) -> None:
    """Check a port.

    Raises:
        StateError: The port is not one of 0 to 65535.
    """
    if not 0 <= port <= 65535:  # the system would reduce it modulo 65536
        raise StateError(
            f"serve(port={port}): ports are 0 to 65535; choose another, or 0 for any that is free"
        )
