"""The monitor of a run: it receives epochs, emits records and passes them to sinks."""

from __future__ import annotations

import atexit
import dataclasses
import math
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fdl.base.masking import KNOWN
from flodl import log
from flodl.errors import StateError
from flodl.monitor.drawing import Drawable, DrawingSink, facts_of
from flodl.monitor.media.folder import MediaFolderSink
from flodl.monitor.media.methods import MediaMethods
from flodl.monitor.media.records import MediaRecord
from flodl.monitor.media.store import KEPT
from flodl.monitor.metadata import read_metadata
from flodl.monitor.metrics import MetricSource, metric_pairs
from flodl.monitor.notebook import Frame, summary
from flodl.monitor.records import (
    STATUSES,
    BestEpoch,
    EpochMetrics,
    EpochRecord,
    Finish,
    Phase,
    RunInfo,
    Status,
    StepProgress,
    StepSeries,
)
from flodl.monitor.report import HtmlSink
from flodl.monitor.sampling import LoadAverage
from flodl.monitor.series import SeriesStore
from flodl.monitor.server import LiveServer, PageFilesSink, check_port
from flodl.monitor.sink_delivery import Delivery
from flodl.monitor.sinks import CsvSink, LogSink, Sink, TerminalSink
from flodl.monitor.step_files import StepFilesSink

_FLUSH_TIMEOUT = 10.0
_Kind = TypeVar("_Kind", bound=Sink)


class Monitor(MediaMethods):
    """Records one run of training and passes it to sinks.

    Every epoch becomes one :class:`EpochRecord`. It is printed on the terminal at once and passed
    to the other sinks in the background. No sink can slow down or stop training.

    Args:
        total_epochs: Number of epochs that the run is to train, at least 1.
        clock: Monotonic seconds.
        terminal: Print a line per epoch.
        media_kept: Most media records of one name: the first, the newest and evenly spaced ones.

    Raises:
        ValueError: `total_epochs` is below 1, or `media_kept` below 2.
    """

    def __init__(
        self,
        total_epochs: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        terminal: bool = True,
        media_kept: int = KEPT,
    ) -> None:
        super().__init__(media_kept)
        if total_epochs < 1:
            raise ValueError(f"total_epochs is {total_epochs}; a run has at least 1 epoch")
        self._clock = clock
        self._start = clock()
        self._trained_since = self._start
        self._info = RunInfo(total=total_epochs, started=datetime.now().astimezone())
        self._history: list[EpochRecord] = []
        self._restored = 0
        self._curves = SeriesStore()
        self._ledger: dict[str, float] = {}
        self._progress: StepProgress | None = None
        self._summary: Finish | None = None
        self._terminal: TerminalSink | None = TerminalSink() if terminal else None
        self._load = LoadAverage()
        weakref.finalize(self, self._load.close)
        # Held while history and deliveries change together: a late sink gets each record once.
        self._lock = threading.Lock()
        self._deliveries: list[Delivery] = []
        self._server: LiveServer | None = None
        self._folder: Path | None = None
        self._is_temporary = False

    @property
    def prints(self) -> bool:
        """Whether it prints a line per epoch."""
        return self._terminal is not None

    @property
    def history(self) -> tuple[EpochRecord, ...]:
        """The epochs so far, including those of the run that this one continues."""
        with self._lock:
            return tuple(self._history)

    def log(self, epoch: int, seconds: float, metrics: MetricSource = None) -> None:
        """Record one finished epoch.

        Args:
            epoch: Counted from 0.
            seconds: Wall time of the epoch.
            metrics: A mapping, (name, value) pairs, an EpochMetrics, a graph with
                ``latest_metrics()``, or a graph and a mapping. Values may be nan or infinite.

        Raises:
            ValueError: `epoch` is negative or a metric is not one number.
            StateError: The monitor is finished.
        """
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; epochs count from 0")
        pairs, measured = metric_pairs(metrics), _measured(metrics)
        load = self._load.take()
        with self._lock:
            if self._summary is not None:
                raise StateError("log() after finish(); make a new Monitor for another run")
            now = self._clock()
            if len(self._history) == self._restored:
                self._trained_since = now - (seconds if math.isfinite(seconds) else 0.0)
            record = KNOWN.texts(
                EpochRecord(
                    epoch=epoch,
                    total=self._info.total,
                    seconds=seconds,
                    metrics=pairs,
                    eta=self._eta(epoch, now),
                    resources=load,
                    elapsed=now - self._start,
                    throughput=measured.throughput if measured is not None else None,
                    ranks=measured.rank_summary() if measured is not None else None,
                    steps_done=self._curves.steps_done,
                    lr=measured.lr if measured is not None else None,
                    grad_norm=measured.grad_norm if measured is not None else None,
                )
            )
            self._history.append(record)
            self._tell("record", record)
        self._print(lambda terminal: terminal.record(record))

    def log_steps(self, series: Sequence[StepSeries]) -> None:
        """Record values within an epoch; meant to be called about once a second.

        Copies the numbers into arrays and never waits for a sink.

        Args:
            series: Pieces of curves, which must not be changed afterwards. A step that is not
                above the last logged step of the same name is left out.

        Raises:
            ValueError: A piece has a different number of values and steps.
            StateError: The monitor is finished.
        """
        pieces = tuple(_without_secrets(piece) for piece in series if len(piece.steps))
        with self._lock:
            if self._summary is not None:
                raise StateError("log_steps() after finish(); make a new Monitor for another run")
            if pieces:
                last = max(piece.steps[-1] for piece in pieces)
                moment = [last], [self._clock() - self._start]
                pieces = (dataclasses.replace(pieces[0], clock=moment), *pieces[1:])
                self._curves.extend(pieces)
                self._tell("steps", pieces)

    def log_ledger(self, seconds: Mapping[str, float]) -> None:
        """Record the seconds by account so far; only the newest call counts."""
        ledger = {str(account): float(taken) for account, taken in seconds.items()}
        with self._lock:
            self._ledger = ledger
            self._tell("ledger", ledger)

    def amend_ledger(self, seconds: Mapping[str, float]) -> None:
        """Write the report pages again with this time ledger, after the end of the run.

        A page that was removed since then is not made again. A page that cannot be written stays.
        """
        for page, _ in self._following(HtmlSink):
            try:
                page.amend(seconds)
            except OSError as error:
                log.warning(f"monitor: the time ledger in {page} is not final: {error}")

    def log_progress(
        self,
        epoch: int,
        step: int,
        steps: int | None = None,
        *,
        rate: float | None = None,
        eta: float | None = None,
        phase: Phase = "training",
    ) -> None:
        """Record how far an epoch is; meant to be called about once a second.

        The page shows it together with the load of the machine. Only the newest call counts.

        Args:
            epoch: Counted from 0.
            step: Batches of this epoch that are done.
            steps: Batches of the whole epoch; None if unknown.
            rate: Samples per second in this epoch.
            eta: Estimated remaining seconds of the training.
            phase: "training", "evaluating" or "paused".
        """
        elapsed, load = self._clock() - self._start, self._load.newest()
        progress = StepProgress(
            epoch, self._info.total, step, steps, rate, eta, elapsed, phase, load
        )
        with self._lock:
            self._progress = progress
            self._tell("progress", progress)

    def restore(self, records: Sequence[EpochRecord]) -> None:
        """Add the epochs of the run that this one continues, before its own epochs.

        Sinks get them. They are not printed, and the remaining time is estimated without them.

        Raises:
            StateError: An epoch was already logged.
        """
        with self._lock:
            if self._history:
                raise StateError(
                    "restore() after the first epoch; restore before anything is logged"
                )
            self._history.extend(records)
            self._restored = len(self._history)
            self._tell("record", *self._history)

    def finish(
        self,
        status: Status = "complete",
        *,
        timeout: float = 10.0,
        best: BestEpoch | None = None,
        folder: str = "",
    ) -> None:
        """End the run: print the closing line and let every sink write the rest.

        A second call does nothing.

        Args:
            status: "complete", "interrupted", "diverged" or "failed".
            timeout: Seconds to wait for all sinks together.
            best: The best epoch, for the closing line.
            folder: The run directory, for the closing line.

        Raises:
            ValueError: `status` is not one of the four.
        """
        if status not in STATUSES:
            raise ValueError(f"status is {status!r}; use one of {', '.join(STATUSES)}")
        deadline = time.monotonic() + timeout
        self._settle_media(deadline)
        self._draw(deadline)
        with self._lock:
            if self._summary is not None:
                return
            last = self._history[-1].metrics if self._history else ()
            took = self._clock() - self._start
            logged = len(self._history) - self._restored
            self._summary = summary = Finish(
                status, took, logged, last, dict(self._ledger), KNOWN.texts(best), folder
            )
            deliveries = tuple(self._deliveries)
            self._tell("finish", summary)
        self._load.close()
        self._print(lambda terminal: terminal.finish(summary))
        _join(deliveries, deadline, timeout)
        self._tell_dropped_media()

    def serve(self, port: int = 3000, host: str = "127.0.0.1", *, buttons: bool = False) -> str:
        """Serve the live page until :meth:`close` or the end of the program.

        A process of its own serves it from the files of the run, so readers cost the training
        nothing. Without a run directory, the files are in a temporary folder. The page's address
        contains a token of this user, and every path requires it.

        If the port is in use or not permitted, a warning is given and another port is used. If the
        host is not one of this machine, a warning is given and 127.0.0.1 is used.

        Args:
            port: 0 takes any free port.
            host: Address to listen on.
            buttons: Show buttons that act on a training of the Trainer.

        Returns:
            The page's address; a second call returns that of the first.

        Raises:
            StateError: The port is not one of 0 to 65535, or this machine cannot serve the page.
        """
        if self._server is None:
            check_port(port)
            folder = self._folder or Path(tempfile.mkdtemp(prefix="flodl-page-"))
            if self._folder is None:
                self._is_temporary = True
                self.write_run(folder)
                atexit.register(_remove, folder, self._is_served)
            self.flush()
            self._server = LiveServer(
                folder, port=port, host=host, buttons=buttons, temporary=self._is_temporary
            )
            self._print(lambda _: log.msg(f"  live page: {self.url}"))
        return self._server.url

    def live(self, height: int = 900) -> Frame:
        """Serve the live page and return it as a frame, which a notebook shows.

        Args:
            height: Pixels of the frame.

        Raises:
            StateError: This machine cannot serve the page.
        """
        return Frame(self.serve(0), height)

    def _repr_html_(self) -> str:
        """Show the run as a summary with its curves in a notebook."""
        with self._lock:
            return summary(self._info, self._history, self._summary, self.url, self._folder)

    def write_run(self, folder: str | os.PathLike[str]) -> None:
        """Write step curves, media and the files of the live page into the folder of a run."""
        self._folder = Path(folder)
        self.add_sink(StepFilesSink(self._folder / "steps"))
        self.add_sink(MediaFolderSink(self._folder / "media", kept=self.media_kept))
        self.add_sink(PageFilesSink(self._folder / "page"))

    @property
    def live_page(self) -> LiveServer | None:
        """The live page; None if it is not served."""
        return self._server

    @property
    def url(self) -> str | None:
        """Address of the live page; None if it is not served."""
        return self._server.url if self._server is not None else None

    def close(self) -> None:
        """Stop serving the live page and free its port; the run continues."""
        if self._server is not None:
            server, self._server = self._server, None
            server.close()

    def watch(self, graph: Drawable) -> None:
        """Show a graph: its name, structural hash, parameter counts and drawing."""
        self._watch(graph, profiled=False)

    def watch_profiled(self, graph: Drawable) -> None:
        """Like :meth:`watch`, but redraw the graph during training, with the time of every node.

        The times are those of a graph with ``enable_profiling()``. It is drawn in the background
        while a browser shows the page, and once at the end. Drawing takes at most a twentieth of
        the time.
        """
        self._watch(graph, profiled=True)

    def add_sink(self, sink: Sink) -> Delivery:
        """Add a sink; it first gets the whole history, and the end if the run has finished.

        Returns:
            A handle with the number of dropped records and the reason if the sink was detached.
        """
        with self._lock:
            curves = self._curves.snapshot() if hasattr(sink, "steps") else ()
            missed: dict[str, Sequence[Any]] = {
                "open": [self._info],
                "record": self._history,
                "steps": [curves] if curves else (),
                "media": self._media.records() if hasattr(sink, "media") else (),
                "ledger": [self._ledger] if self._ledger else (),
                "progress": [self._progress] if self._progress else (),
                "finish": [self._summary] if self._summary else (),
            }
            delivery = Delivery(sink, missed)
            self._deliveries.append(delivery)
            return delivery

    def set_metadata(self, metadata: Mapping[str, Any] | str) -> None:
        """Add facts about the run; they replace earlier ones of the same top-level key.

        The report has sections for ``config`` (values, or pairs such as
        ``{"value": 64, "origin": "fdl.yml:9:13"}``), ``environment`` and ``parameters`` (``total``,
        ``trainable``, ``frozen``). Everything else is listed below them.

        Args:
            metadata: A mapping, or the text of a JSON object.

        Raises:
            ValueError: The text is not a JSON object.
        """
        plain = read_metadata(metadata)
        self._change(lambda info: {"metadata": {**info.metadata, **plain}})

    def set_identity(
        self, *, label: str | None = None, hash: str | None = None, run: str | None = None
    ) -> None:
        """Set the model's name (`label`), its structural `hash` and the name of this `run`.

        None keeps the old value.
        """
        given = {"label": label, "hash": hash, "run": run}
        self._change(lambda _: {key: text for key, text in given.items() if text is not None})

    def set_svg(self, svg: str | bytes | None) -> None:
        """Show a drawing of the model in the report; None removes it."""
        text = svg.decode("utf-8", "replace") if isinstance(svg, bytes) else svg or ""
        self._change(lambda _: {"svg": text})

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report page now, update it during training and complete it at the end.

        Calling it again with the same path updates the page at once.
        """
        self._follow(HtmlSink, path)

    def write_log(self, path: str | os.PathLike[str]) -> None:
        """Write the terminal's lines so far to a file and append later ones."""
        self._follow(LogSink, path)

    def export_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table of the epochs so far and append later ones; see :class:`CsvSink`."""
        self._follow(CsvSink, path)

    def flush(self, *, timeout: float = _FLUSH_TIMEOUT) -> None:
        """Wait until the files of all sinks hold the history so far, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._settle_media(deadline)
        self._draw(deadline)  # first, because the other sinks show the drawing
        with self._lock:
            deliveries = tuple(self._deliveries)
        for delivery in deliveries:
            delivery.flush(max(0.0, deadline - time.monotonic()))

    def _ended(self) -> bool:
        return self._summary is not None

    def _position_by_log(self) -> tuple[int, int | None]:
        with self._lock:
            epochs = len(self._history)
            return self._curves.steps_done or epochs, epochs

    def _emit(self, records: Sequence[MediaRecord]) -> None:
        records = KNOWN.texts(list(records))
        with self._lock:
            if self._summary is None:
                for record in records:
                    self._media.add(record)
                self._tell("media", *records)

    def _eta(self, epoch: int, now: float) -> float | None:
        remaining = self._info.total - epoch - 1
        # Per epoch of this run, because a resumed run starts at a high epoch number. Counted from
        # the start of its first epoch: building the model and loading data happen only once.
        per_epoch = (now - self._trained_since) / (len(self._history) - self._restored + 1)
        return per_epoch * remaining if remaining > 0 else None

    def _watch(self, graph: Drawable, *, profiled: bool) -> None:
        identity, parameters = facts_of(graph)
        self.set_identity(**identity)
        if parameters and "parameters" not in self._info.metadata:
            self.set_metadata({"parameters": parameters})
        self.add_sink(DrawingSink(graph, self.set_svg, self._has_readers, profiled=profiled))

    @property
    def draws(self) -> bool:
        """Whether it draws a model: :meth:`watch` or :meth:`set_svg` was called."""
        return bool(self._info.svg) or bool(self._following(DrawingSink))

    def _is_served(self) -> bool:
        return self._server is not None

    def _has_readers(self) -> bool:
        server = self._server
        return server is not None and server.has_readers

    def _draw(self, deadline: float) -> None:
        for sink, delivery in self._following(DrawingSink):
            sink.renew()
            delivery.flush(max(0.0, deadline - time.monotonic()))

    def _change(self, changes: Callable[[RunInfo], Mapping[str, Any]]) -> None:
        with self._lock:
            self._info = dataclasses.replace(self._info, **KNOWN.texts(dict(changes(self._info))))
            self._tell("open", self._info)

    def _tell(self, name: str, *values: Any) -> None:
        """Pass values on to all sinks; to be called with the lock held."""
        for delivery in self._deliveries:
            delivery.tell(name, *values)

    def _following(self, kind: type[_Kind]) -> list[tuple[_Kind, Delivery]]:
        """The sinks of a kind."""
        with self._lock:
            return [(one.sink, one) for one in self._deliveries if isinstance(one.sink, kind)]

    def _follow(
        self, kind: type[HtmlSink] | type[LogSink] | type[CsvSink], path: str | os.PathLike[str]
    ) -> None:
        """Bring the file of a sink up to date; add the sink if it is new or was detached."""
        file = Path(path).absolute()
        for sink, delivery in self._following(kind):
            if delivery.error is None and Path(str(sink)).absolute() == file:
                break
        else:
            delivery = self.add_sink(kind(path))
        delivery.flush(_FLUSH_TIMEOUT)

    def _print(self, say: Callable[[TerminalSink], None]) -> None:
        if self._terminal is None:
            return
        try:
            say(self._terminal)
        except (OSError, ValueError) as error:  # the pipe's reader has ended, or stdout is closed
            self._terminal = None
            log.warning(f"monitor: no more lines on stdout, training continues: {error}")


def _remove(folder: Path, is_served: Callable[[], bool]) -> None:
    """Remove a temporary folder at the end of the program, unless a page still shows it."""
    if not is_served():  # else the process of the page removes it
        shutil.rmtree(folder, ignore_errors=True)


def _measured(metrics: MetricSource) -> EpochMetrics | None:
    first = metrics[0] if isinstance(metrics, tuple) and metrics else metrics
    return first if isinstance(first, EpochMetrics) else None


def _without_secrets(piece: StepSeries) -> StepSeries:
    name = KNOWN.text(piece.name)
    return piece if name == piece.name else dataclasses.replace(piece, name=name)


def _join(deliveries: tuple[Delivery, ...], deadline: float, timeout: float) -> None:
    for delivery in deliveries:
        if not delivery.join(max(0.0, deadline - time.monotonic())):
            log.warning(f"monitor: {delivery} did not finish within {timeout:g} s")
        if delivery.dropped:
            log.warning(f"monitor: {delivery} was too slow for {delivery.dropped} records")
