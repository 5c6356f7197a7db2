"""Curves and media for TensorBoard, written by TensorBoard's own writer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np

from fdl.base.units import format_metric
from flodl.monitor.media.classification import normalized
from flodl.monitor.media.images import encode_png
from flodl.monitor.media.records import (
    ConfusionMatrix,
    Curve,
    Curves,
    Histogram,
    Image,
    MediaRecord,
    Table,
    Text,
)
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries
from flodl.monitor.sinks import require

_MOST_CLASSES = 50
_CELL = 16
_PR_POINTS = 127


@final
class TensorBoardSink:
    """Metrics by epoch as ``epoch/NAME``, curves by step as ``step/NAME``, the run's facts as text.

    Epochs count from 1, steps from 0. Media have the number of steps done. Two more groups are
    written: ``epoch/seconds``, and the load of the machine as ``resources/…``. Show them with
    ``tensorboard --logdir FOLDER``.

    Args:
        folder: Folder for the event files of this run only; created if missing.

    Raises:
        FlodlError: The package ``tensorboard`` is not installed.
    """

    flush_seconds = 1.0

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("tensorboard", self, "'flodl[tensorboard]'")
        self._folder = Path(folder)
        self._writer: Any = None
        self._started = 0.0
        self._elapsed = 0.0
        self._texts: dict[str, str] = {}

    def __str__(self) -> str:
        return f"TensorBoard in {self._folder}"

    def open(self, info: RunInfo) -> None:
        """Begin the event file at the first call; write the facts that have changed."""
        if self._writer is None:
            # Imported in the sink's own thread, so that training does not wait for it.
            writer = import_module("torch.utils.tensorboard").SummaryWriter
            self._writer = writer(log_dir=str(self._folder))
            self._started = info.started.timestamp()
        for title, text in _facts(info):
            if self._texts.get(title) != text:
                self._texts[title] = text
                self._writer.add_text(title, text, walltime=self._started)

    def record(self, record: EpochRecord) -> None:
        """Write one epoch."""
        self._elapsed = record.elapsed
        load = record.resources
        values: dict[str, float | None] = {
            **{f"epoch/{name}": value for name, value in record.metrics},
            "epoch/seconds": record.seconds,
            "resources/cpu_percent": load.cpu,
            "resources/ram_bytes": load.ram_used,
            "resources/gpu_percent": load.gpu_util,
            "resources/vram_bytes": load.gpus[0].reserved if load.gpus else None,
        }
        for tag, value in values.items():
            if value is not None:
                self._add(tag, record.epoch + 1, value)

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Write pieces of curves."""
        for piece in series:
            tag = f"step/{piece.name}"
            for step, value in zip(piece.steps, piece.values, strict=True):
                self._add(tag, int(step), float(value))

    def media(self, record: MediaRecord) -> None:
        """Write an image, histogram, text, table or curve."""
        _write_media(self._writer, record, self._started + self._elapsed)

    def flush(self) -> None:
        """Pass the events to the system."""
        self._writer.flush()

    def finish(self, summary: Finish) -> None:
        """Write the end of the run and close the file."""
        end = f"{summary.status} after {summary.epochs} epochs"
        self._writer.add_text("end", end, walltime=self._started + summary.seconds)
        self._writer.close()

    def _add(self, tag: str, step: int, value: float) -> None:
        self._writer.add_scalar(tag, value, step, walltime=self._started + self._elapsed)


def _facts(info: RunInfo) -> Iterator[tuple[str, str]]:
    """Title and Markdown of the facts about the run."""
    if info.names:
        yield "run", _markdown_table(("fact", "value"), list(info.names.items()))
    for title, content in info.metadata.items():
        if isinstance(content, Mapping):
            rows = {name: _shown(value) for name, value in content.items()}
            if rows:
                yield title, _markdown_table(("name", "value"), list(rows.items()))
        else:
            yield title, _shown(content)


def _shown(value: object) -> str:
    """A value as text, with its origin if it has one."""
    origin = ""
    if isinstance(value, Mapping) and "value" in value:
        origin = f" ({value['origin']})" if value.get("origin") else ""
        value = value["value"]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{text}{origin}"


def _write_media(writer: Any, record: MediaRecord, walltime: float) -> None:
    """Write one record with a ``SummaryWriter`` of torch.

    An image, a histogram and a precision-recall curve have their own dashboards. A text, a table
    and a confusion matrix are Markdown; the matrix is also an image. Areas are scalars. There is no
    dashboard for an ROC curve, so only its area is written.
    """
    content, tag, step = record.content, record.name, record.step
    if isinstance(content, Image):
        _add_image(writer, record, content, walltime)
    elif isinstance(content, Histogram):
        facts = (content.low, content.high, content.count, content.total, content.squares)
        bins = (content.edges()[1:], list(map(float, content.counts)))
        writer.add_histogram_raw(tag, *facts, *bins, step, walltime=walltime)
        if odd := content.nan + content.positive_infinite + content.negative_infinite:
            writer.add_scalar(f"{tag}/not_finite", odd, step, walltime=walltime)
    elif isinstance(content, Text):
        writer.add_text(tag, _verbatim(content.text), step, walltime=walltime)
    elif isinstance(content, Table):
        cells = [[_cell_text(cell) for cell in row] for row in content.rows]
        writer.add_text(tag, _markdown_table(content.columns, cells), step, walltime=walltime)
    elif isinstance(content, ConfusionMatrix):
        _add_image(writer, record, _picture(content), walltime)
        if len(content.classes) <= _MOST_CLASSES:
            rows = [
                [name, *map(str, row)]
                for name, row in zip(content.classes, content.counts, strict=True)
            ]
            heads = ["true \\ predicted", *content.classes]
            writer.add_text(tag, _markdown_table(heads, rows), step, walltime=walltime)
    else:
        _curves(writer, record, content, walltime)


def _markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _curves(writer: Any, record: MediaRecord, content: Curves, walltime: float) -> None:
    for tag, area in record.areas().items():
        writer.add_scalar(tag, area, record.step, walltime=walltime)
    for curve in content.curves:
        if record.kind == "pr" and curve.positives:
            tag = record.name + (f"/{curve.name}" if curve.name else "")
            numbers = _pr_numbers(curve)
            writer.add_pr_curve_raw(
                tag, *numbers, record.step, num_thresholds=numbers.shape[1], walltime=walltime
            )


def _pr_numbers(curve: Curve) -> Any:
    """Return true and false positives, true and false negatives, precision and recall."""
    places = np.linspace(0, len(curve.x) - 1, min(_PR_POINTS, len(curve.x))).round().astype(int)
    recall, precision = np.asarray(curve.x)[places], np.asarray(curve.y)[places]
    true = recall * curve.positives
    false = np.divide(true, precision, out=np.zeros_like(true), where=precision > 0) - true
    return np.stack(
        [true, false, curve.negatives - false, curve.positives - true, precision, recall]
    )


def _add_image(writer: Any, record: MediaRecord, image: Image, walltime: float) -> None:
    """Write a PNG file as it is, which `add_image` cannot do."""
    summary = import_module("tensorboard.compat.proto.summary_pb2").Summary()
    value = summary.value.add(tag=record.name)
    value.image.height, value.image.width = image.height, image.width
    value.image.colorspace = image.channels
    value.image.encoded_image_string = image.png
    writer.file_writer.add_summary(summary, record.step, walltime)


def _picture(matrix: ConfusionMatrix) -> Image:
    """Return the shares of each true class: white for 0, dark blue for 1."""
    shares = normalized(matrix, "true")
    light, dark = np.array([255.0, 255.0, 255.0]), np.array([20.0, 50.0, 140.0])
    colours = light + np.sqrt(shares)[:, :, None] * (dark - light)
    size = _CELL if len(matrix.classes) <= 4 * _MOST_CLASSES else 1
    pixels = np.kron(colours.astype(np.uint8), np.ones((size, size, 1), np.uint8))
    return Image(encode_png(pixels), pixels.shape[1], pixels.shape[0], 3)


def _verbatim(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _cell_text(cell: object) -> str:
    if cell is None:
        return ""
    return format_metric(cell) if isinstance(cell, float) else str(cell)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
