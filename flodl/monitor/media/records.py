"""Media of a run: images, histograms, texts, tables and curves, each at one step."""

from __future__ import annotations

import base64
import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

from fdl.base.units import in_json
from flodl.monitor.records import finite, to_json

MediaKind = Literal["image", "histogram", "text", "table", "confusion_matrix", "roc", "pr"]

Cell: TypeAlias = "str | int | float | bool | None"
"""One value of a table."""


@final
@dataclass(frozen=True, slots=True)
class Image:
    """An image as a PNG file."""

    png: bytes
    width: int
    height: int
    channels: int
    """1 grey, 2 grey with opacity, 3 red-green-blue, 4 with opacity."""
    count: int = 1
    """Images in the grid, read from left to right and from top to bottom."""

    def as_json(self) -> dict[str, Any]:
        """Return the size, and the file as a ``data:`` address under ``src``."""
        return self.facts() | {
            "src": f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
        }

    def facts(self) -> dict[str, Any]:
        """Return the JSON form without the pixels."""
        return {"width": self.width, "height": self.height, "count": self.count}

    @property
    def size(self) -> int:
        """Bytes in a page, about."""
        return len(self.png) * 4 // 3 + 200


@final
@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values fall into bins of equal width."""

    low: float
    """Left edge of the first bin: the smallest finite value."""
    high: float
    """Right edge of the last bin: the largest finite value."""
    counts: tuple[int, ...]
    """Finite values by bin; the last bin includes its right edge."""
    total: float
    """Sum of the finite values."""
    squares: float
    """Sum of the squares of the finite values."""
    nan: int = 0
    """Values that are not a number; in no bin."""
    positive_infinite: int = 0
    negative_infinite: int = 0

    @property
    def count(self) -> int:
        """Number of finite values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean of the finite values; None if there are none."""
        return self.total / self.count if self.count else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the finite values; None if there are none."""
        mean = self.mean
        if mean is None:
            return None
        return math.sqrt(max(0.0, self.squares / self.count - mean * mean))

    def edges(self) -> list[float]:
        """Return the edges of the bins: one more than bins."""
        bins = len(self.counts)
        # Two products, because high - low may be infinite.
        return [self.low * (1 - at / bins) + self.high * (at / bins) for at in range(bins + 1)]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "low": self.low,
            "high": self.high,
            "counts": list(self.counts),
            "mean": finite(self.mean),
            "std": finite(self.deviation),
            "nan": self.nan,
            "posinf": self.positive_infinite,
            "neginf": self.negative_infinite,
        }


@final
@dataclass(frozen=True, slots=True)
class Text:
    """A text sample."""

    text: str
    left_out: int = 0
    """Characters that were cut off at the end."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"text": self.text, "left_out": self.left_out}


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0
    """Rows that were cut off at the end."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form; a number that is not finite is its name."""
        return {
            "columns": list(self.columns),
            "rows": [
                [in_json(cell) if isinstance(cell, float) else cell for cell in row]
                for row in self.rows
            ],
            "left_out": self.left_out,
        }


@final
@dataclass(frozen=True, slots=True)
class ConfusionMatrix:
    """How often each class was predicted for samples of each class."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """``counts[i][j]`` samples of class ``i`` were predicted as class ``j``."""
    normalize: str | None = None
    """What a page shows first: None the counts; ``true``, ``pred`` or ``all`` the shares of the
    samples of a class, of the predictions of a class, or of all samples."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "classes": list(self.classes),
            "counts": [list(row) for row in self.counts],
            "normalize": self.normalize,
        }


@final
@dataclass(frozen=True, slots=True)
class Curve:
    """The curve of one class against all others."""

    name: str
    """Name of the class; empty if there are only two classes."""
    x: tuple[float, ...]
    """False positive rate of an ROC curve, rising; recall of a PR curve, falling."""
    y: tuple[float, ...]
    """True positive rate of an ROC curve; precision of a PR curve."""
    thresholds: tuple[float, ...]
    """A sample is positive if its score is at least this; infinite for none."""
    area: float
    """Area under an ROC curve; average precision of a PR curve. nan if a class has no samples."""
    positives: int
    negatives: int

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form; the thresholds are left out."""
        return {
            "name": self.name,
            "x": [finite(value) for value in self.x],
            "y": [finite(value) for value in self.y],
            "area": finite(self.area),
            "positives": self.positives,
            "negatives": self.negatives,
        }


@final
@dataclass(frozen=True, slots=True)
class Curves:
    """ROC or precision-recall curves of one step."""

    curves: tuple[Curve, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"curves": [curve.as_json() for curve in self.curves]}


Content: TypeAlias = Image | Histogram | Text | Table | ConfusionMatrix | Curves


@final
@dataclass(frozen=True)
class MediaRecord:
    """One piece of media, as all sinks get it."""

    name: str
    """The part before the first ``/`` groups records on the page."""
    kind: MediaKind
    step: int
    """Optimizer steps done when it was recorded; 0 is before the training."""
    epoch: int | None
    """Counted from 0; all displays count from 1. None if unknown."""
    content: Content

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name: records with the same key follow each other."""
        return self.kind, self.name

    @functools.cached_property
    def json(self) -> str:
        """The JSON form as text: step, epoch from 1, and the content."""
        epoch = None if self.epoch is None else self.epoch + 1
        return to_json({"step": self.step, "epoch": epoch, **self.content.as_json()})

    @property
    def size(self) -> int:
        """Bytes that the record takes in a file, about."""
        size: int = getattr(self.content, "size", None) or len(self.json)
        return size

    def areas(self) -> dict[str, float]:
        """Return the areas under curves as metrics: ``NAME/auc``, or of classes ``NAME/auc/CLASS``.

        Several classes have their mean as ``NAME/auc/mean``. Those of precision-recall curves are
        called ``average_precision``. Other media have none.
        """
        if not isinstance(self.content, Curves):
            return {}
        name = f"{self.name}/{'auc' if self.kind == 'roc' else 'average_precision'}"
        curves = self.content.curves
        found = {f"{name}/{one.name}" if one.name else name: one.area for one in curves}
        defined = [area for area in found.values() if finite(area) is not None]
        if len(curves) > 1 and defined:
            found[f"{name}/mean"] = sum(defined) / len(defined)
        return found
