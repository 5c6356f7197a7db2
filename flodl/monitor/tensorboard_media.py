"""Media as TensorBoard shows them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

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

_MOST_CLASSES = 50
_CELL = 16
_PR_POINTS = 127


def write_media(writer: Any, record: MediaRecord, walltime: float) -> None:
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
        cells = [[_shown(cell) for cell in row] for row in content.rows]
        writer.add_text(tag, markdown_table(content.columns, cells), step, walltime=walltime)
    elif isinstance(content, ConfusionMatrix):
        _add_image(writer, record, _picture(content), walltime)
        if len(content.classes) <= _MOST_CLASSES:
            rows = [
                [name, *map(str, row)]
                for name, row in zip(content.classes, content.counts, strict=True)
            ]
            heads = ["true \\ predicted", *content.classes]
            writer.add_text(tag, markdown_table(heads, rows), step, walltime=walltime)
    else:
        _curves(writer, record, content, walltime)


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


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


def _shown(cell: object) -> str:
    if cell is None:
        return ""
    return format_metric(cell) if isinstance(cell, float) else str(cell)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
