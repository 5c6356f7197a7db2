"""The methods of a monitor that record media."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from flodl import log
from flodl.errors import StateError
from flodl.monitor.media.captured import Captured
from flodl.monitor.media.classification import (
    NORMALIZATIONS,
    check_samples,
    confusion_matrix,
    pr,
    roc,
)
from flodl.monitor.media.histograms import Reader, histogram_of
from flodl.monitor.media.images import CapturedImage
from flodl.monitor.media.records import Content, Image, MediaKind, MediaRecord
from flodl.monitor.media.store import KEPT, MediaStore
from flodl.monitor.media.tables import table_of, text_of
from flodl.worker import CpuWorker

MOST_WAITING_BYTES = 256 * 2**20
MOST_WAITING = 4096
_LONGEST_NAME = 200


class MediaMethods:
    """Records images, histograms, texts, tables and curves; :class:`Monitor` inherits them.

    Each method copies what it gets, checks shapes, and returns. Another thread makes the files. If
    it cannot keep up, records are left out, and the end of the run says how many.

    `step` is the number of optimizer steps done. None takes the current one: in a Trainer exactly,
    in your own loop the newest that was passed to ``log_steps``, and the number of epochs if there
    is none.

    Args:
        media_kept: Most records of one name; see
            :class:`~flodl.monitor.media.store.MediaStore`.
    """

    def __init__(self, media_kept: int = KEPT) -> None:
        if media_kept < 2:
            raise ValueError(f"media_kept is {media_kept}; use 2 or more")
        self.media_kept = media_kept
        """Most records of one name that are kept."""
        self._media = MediaStore(media_kept)
        self._media_work = CpuWorker(one_thread=True)
        self._media_changed = threading.Condition()
        self._media_waiting = self._media_waiting_bytes = self._media_dropped = 0
        self._media_complaints: set[str] = set()
        self._position: Callable[[], tuple[int, int | None]] | None = None

    def image(self, name: str, image: Any, *, step: int | None = None) -> None:
        """Record an image, or a batch of images as a grid of at most 64.

        Args:
            name: The part before the first ``/`` groups records on the page.
            image: A tensor ``[C, H, W]``, ``[H, W]`` or ``[N, C, H, W]``, an array ``[H, W]``,
                ``[H, W, C]`` or ``[N, H, W, C]`` with 1, 3 or 4 channels, or an image of Pillow.
                Floating-point values are clamped to [0, 1]; uint8 and bool are taken as they are.
            step: See the class.

        Raises:
            ValueError: The shape or dtype is not that of an image.
            StateError: The monitor is finished.
        """
        self._may_record("image", name)
        captured = CapturedImage(image)

        def encode() -> Image:
            encoded = captured.encode()
            if captured.clamped is not None:
                low, high = captured.clamped
                self._complain(
                    f"image {name!r}: values from {low:.4g} to {high:.4g} were clamped to [0, 1]; "
                    "scale them, or pass uint8",
                    once=f"clamped {name}",
                )
            return encoded

        self._record_later("image", [(name, encode)], step, captured.bytes)

    def histogram(self, name: str, values: Any, *, bins: int = 64, step: int | None = None) -> None:
        """Record how often values occur, in bins from the smallest to the largest finite value.

        A tensor on a GPU is counted there, and nothing waits for it. nan and infinite values are
        counted apart.

        Args:
            name: The part before the first ``/`` groups records on the page.
            values: A tensor, array or list of real numbers, of any shape.
            bins: 1 to 255.
            step: See the class.

        Raises:
            ValueError: There are no values, or they are complex.
            StateError: The monitor is finished.
        """
        self._may_record("histogram", name)
        self.record_histograms([(name, histogram_of(values, bins))], step=step)

    def record_histograms(
        self, found: Sequence[tuple[str, Reader]], *, step: int | None = None
    ) -> None:
        """Record histograms that are being counted, with their names; see :func:`histogram_of`."""
        self._record_later("histogram", found, step, 0)

    def text(self, name: str, text: str, *, step: int | None = None) -> None:
        """Record a text sample; beyond 100,000 characters it is cut, and says so.

        Raises:
            ValueError: It is not a text.
            StateError: The monitor is finished.
        """
        self._may_record("text", name)
        content = text_of(text)
        self._record_later("text", [(name, lambda: content)], step, len(content.text))

    def table(
        self,
        name: str,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        step: int | None = None,
    ) -> None:
        """Record a table; beyond 1,000 rows it is cut, and says so.

        Args:
            name: The part before the first ``/`` groups records on the page.
            rows: Rows of cells with `columns`, a list of mappings, or a mapping of columns. Cells
                are numbers, texts, bool or None; anything else becomes text.
            columns: Names of the columns.
            step: See the class.

        Raises:
            ValueError: The rows do not fit the columns.
            StateError: The monitor is finished.
        """
        self._may_record("table", name)
        content = table_of(rows, columns)
        self._record_later("table", [(name, lambda: content)], step, 64 * len(content.rows))

    def confusion_matrix(
        self,
        name: str,
        labels: Any,
        predictions: Any,
        *,
        classes: Sequence[str] | None = None,
        normalize: str | None = None,
        step: int | None = None,
    ) -> None:
        """Record how often each class was predicted for samples of each class.

        Args:
            name: The part before the first ``/`` groups records on the page.
            labels: Class numbers, shape ``[N]``, counted from 0.
            predictions: Class numbers ``[N]``, or scores ``[N, classes]``: the class with the
                highest score is the prediction.
            classes: Names of the classes.
            normalize: What the page shows first: None the counts; ``"true"``, ``"pred"`` or
                ``"all"`` shares of the samples of a class, of its predictions, or of all.
            step: See the class.

        Raises:
            ValueError: The shapes do not fit, or `normalize` is something else. Numbers outside of
                the classes are reported later, and the record is left out.
            StateError: The monitor is finished.
        """
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"normalize={normalize!r}: use None, 'true', 'pred' or 'all'")
        self._record_samples(
            "confusion_matrix",
            name,
            (labels, predictions, classes, step),
            lambda true, given: confusion_matrix(true, given, classes=classes, normalize=normalize),
        )

    def roc(
        self,
        name: str,
        labels: Any,
        scores: Any,
        *,
        classes: Sequence[str] | None = None,
        step: int | None = None,
    ) -> None:
        """Record ROC curves with their areas: of two classes, or of each against all others.

        Args:
            name: The part before the first ``/`` groups records on the page.
            labels: Class numbers, shape ``[N]``, counted from 0.
            scores: Shape ``[N]`` or ``[N, 2]``: the higher, the more likely is class 1. Shape
                ``[N, classes]`` for more classes.
            classes: Names of the classes.
            step: See the class.

        Raises:
            ValueError: The shapes do not fit. Labels outside of the classes and scores that are not
                finite are reported later, and the record is left out.
            StateError: The monitor is finished.
        """
        self._record_samples(
            "roc",
            name,
            (labels, scores, classes, step),
            lambda true, given: roc(true, given, classes=classes),
        )

    def pr(
        self,
        name: str,
        labels: Any,
        scores: Any,
        *,
        classes: Sequence[str] | None = None,
        step: int | None = None,
    ) -> None:
        """Record precision by recall with the average precision; arguments as in :meth:`roc`."""
        self._record_samples(
            "pr",
            name,
            (labels, scores, classes, step),
            lambda true, given: pr(true, given, classes=classes),
        )

    def follow_position(self, position: Callable[[], tuple[int, int | None]]) -> None:
        """Take step and epoch of media from this function: steps done, and the epoch from 0."""
        self._position = position

    # --- For the monitor -----------------------------------------------------------------------

    def _may_record(self, what: str, name: str) -> None:
        """Raise unless a record of this name may be made now."""
        if self._ended():
            raise StateError(f"{what}() after finish(); make a new Monitor for another run")
        if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME:
            raise ValueError(
                f"{what}({name!r:.80}): the name is a text of 1 to {_LONGEST_NAME} characters"
            )

    def _record_samples(
        self,
        kind: MediaKind,
        name: str,
        given: tuple[Any, Any, Sequence[str] | None, int | None],
        evaluate: Callable[[Captured, Captured], Content],
    ) -> None:
        self._may_record(kind, name)
        labels, scores, classes, step = given
        true, found = Captured(labels), Captured(scores)
        check_samples(true, found, classes)
        make = (name, lambda: evaluate(true, found))
        self._record_later(kind, [make], step, true.bytes + found.bytes)

    def _record_later(
        self,
        kind: MediaKind,
        named: Sequence[tuple[str, Callable[[], Content]]],
        step: int | None,
        size: int,
    ) -> None:
        """Let the other thread make the contents and pass the records on."""
        now, epoch = (self._position or self._position_by_log)()
        step = now if step is None else int(step)
        with self._media_changed:
            full = self._media_waiting_bytes + size > MOST_WAITING_BYTES and self._media_waiting
            if full or self._media_waiting + len(named) > MOST_WAITING:
                self._media_dropped += len(named)
                return
            self._media_waiting += len(named)
            self._media_waiting_bytes += size

        def work() -> None:
            made = []
            try:
                for name, make in named:
                    try:
                        made.append(MediaRecord(name, kind, step, epoch, make()))
                    except Exception as error:
                        text = f"{kind} {name!r} at step {step} is left out: {error}"
                        self._complain(text, once=f"{kind} {name}")
                self._emit(made)
            finally:
                with self._media_changed:
                    self._media_waiting -= len(named)
                    self._media_waiting_bytes -= size
                    self._media_changed.notify_all()

        self._media_work.submit(work)

    def _settle_media(self, deadline: float) -> None:
        """Wait until all media so far are passed on, at most until a moment."""
        with self._media_changed:
            left = max(0.0, deadline - time.monotonic())
            self._media_changed.wait_for(lambda: not self._media_waiting, left)

    def _tell_dropped_media(self) -> None:
        if self._media_dropped:
            log.warning(
                f"monitor: {self._media_dropped} media records were left out, because they came "
                "faster than they could be encoded; record them less often"
            )

    def _complain(self, text: str, *, once: str) -> None:
        if once not in self._media_complaints:
            self._media_complaints.add(once)
            log.warning(f"monitor: {text}")

    def _ended(self) -> bool:
        raise NotImplementedError

    def _position_by_log(self) -> tuple[int, int | None]:
        raise NotImplementedError

    def _emit(self, records: Sequence[MediaRecord]) -> None:
        raise NotImplementedError
