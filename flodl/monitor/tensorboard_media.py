"""Media as TensorBoard shows them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from fdl.base.units import format_metric
from flodl.monitor.media.classification import normalized
from flodl.monitor.media.png import encode_png
from flodl.monitor.media.records import (
    ConfusionMatrix,
    Curve,
    Curves,
    Histogram,
    Image,
    MediaRecord,
    Table,
    Text,
    areas,
)

Summary: TypeAlias = Any

_MOST_CLASSES = 50
_CELL = 16
_PR_POINTS = 127


def write_media(writer: Any, record: MediaRecord, walltime: float) -> None:
    """Write one record with a ``SummaryWriter`` of torch.

    An image, a histogram and a precision-recall curve have their own dashboards. A text, a table
    and a confusion matrix are Markdown; the matrix is also an image. An ROC curve is an image; the
    areas are scalars.
    """
    content, tag, step = record.content, record.name, record.step
    if isinstance(content, Image):
        _add(writer, _image(tag, content), step, walltime)
    elif isinstance(content, Histogram):
        _add(writer, _histogram(tag, content), step, walltime)
        if odd := content.nan + content.positive_infinite + content.negative_infinite:
            writer.add_scalar(f"{tag}/not_finite", odd, step, walltime=walltime)
    elif isinstance(content, Text):
        writer.add_text(tag, _verbatim(content.text), step, walltime=walltime)
    elif isinstance(content, Table):
        cells = [[_shown(cell) for cell in row] for row in content.rows]
        writer.add_text(tag, markdown_table(content.columns, cells), step, walltime=walltime)
    elif isinstance(content, ConfusionMatrix):
        _add(writer, _image(tag, _picture(content)), step, walltime)
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
    word = "auc" if record.kind == "roc" else "average_precision"
    for name, area in areas(content.curves).items():
        tag = f"{record.name}/{word}" + ("" if name == "area" else f"/{name}")
        writer.add_scalar(tag, area, record.step, walltime=walltime)
    if record.kind == "roc":
        _add(writer, _image(record.name, _roc_picture(content.curves)), record.step, walltime)
        return
    for curve in content.curves:
        if curve.positives:
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


def _add(writer: Any, summary: Summary, step: int, walltime: float) -> None:
    writer.file_writer.add_summary(summary, step, walltime)


def _new_summary() -> Summary:
    return import_module("tensorboard.compat.proto.summary_pb2").Summary()


def _image(tag: str, image: Image) -> Summary:
    summary = _new_summary()
    value = summary.value.add(tag=tag)
    value.image.height, value.image.width = image.height, image.width
    value.image.colorspace = image.channels
    value.image.encoded_image_string = image.png
    return summary


def _histogram(tag: str, histogram: Histogram) -> Summary:
    summary = _new_summary()
    value = summary.value.add(tag=tag).histo
    value.min, value.max, value.num = histogram.low, histogram.high, histogram.count
    value.sum, value.sum_squares = histogram.total, histogram.squares
    value.bucket_limit.extend(histogram.edges()[1:])
    value.bucket.extend(map(float, histogram.counts))
    return summary


def _picture(matrix: ConfusionMatrix) -> Image:
    """Return the shares of each true class: white for 0, dark blue for 1."""
    shares = normalized(matrix, "true")
    light, dark = np.array([255.0, 255.0, 255.0]), np.array([20.0, 50.0, 140.0])
    colours = light + np.sqrt(shares)[:, :, None] * (dark - light)
    size = _CELL if len(matrix.classes) <= 4 * _MOST_CLASSES else 1
    return _of(np.kron(colours.astype(np.uint8), np.ones((size, size, 1), np.uint8)))


def _roc_picture(curves: Sequence[Curve], size: int = 320) -> Image:
    """Return the curves as lines: false positive rate to the right, true positive rate up."""
    pixels = np.full((size, size, 3), 255, np.uint8)
    for at in range(size):
        pixels[size - 1 - at, at] = 200
    for number, curve in enumerate(curves):
        x, y = np.asarray(curve.x), np.asarray(curve.y)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            continue
        places = np.linspace(0, 1, 8 * size)
        path = np.r_[0.0, np.cumsum(np.hypot(np.diff(x), np.diff(y)))] / max(
            1e-12, float(np.hypot(np.diff(x), np.diff(y)).sum())
        )
        right = (np.interp(places, path, x) * (size - 2)).astype(int)
        up = (np.interp(places, path, y) * (size - 2)).astype(int)
        for shift in (0, 1):
            pixels[size - 1 - up - shift, right + shift] = _COLOURS[number % len(_COLOURS)]
    return _of(pixels)


_COLOURS = ((47, 95, 208), (209, 87, 11), (11, 128, 96), (168, 50, 157), (128, 100, 0))


def _of(pixels: Any) -> Image:
    height, width, channels = pixels.shape
    return Image(encode_png(pixels), width, height, channels)


def _verbatim(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _shown(cell: object) -> str:
    if cell is None:
        return ""
    return format_metric(cell) if isinstance(cell, float) else str(cell)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
