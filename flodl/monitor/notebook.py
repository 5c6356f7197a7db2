"""A run in a notebook: a summary with its curves, or the live page in a frame."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import final

from fdl.base.units import format_duration, format_metric
from flodl.monitor.records import EpochRecord, Finish, RunInfo

_CURVES = 6
_WIDTH, _HEIGHT = 160, 36


@final
class Frame:
    """Shows an address in a frame, where the last expression of a cell is it.

    Args:
        url: The address.
        height: Pixels.
    """

    def __init__(self, url: str, height: int) -> None:
        self.url = url
        """The address."""
        self.height = height
        """Pixels."""

    def _repr_html_(self) -> str:
        size = f'width="100%" height="{self.height}" style="border:0"'
        return f'<iframe title="Live page" src="{escape(self.url)}" {size}></iframe>'


def summary(
    info: RunInfo,
    history: Sequence[EpochRecord],
    finish: Finish | None,
    url: str | None,
    folder: Path | None,
) -> str:
    """Return a small summary: what the run is, its first curves, and a link to its page or report.

    Args:
        info: The facts.
        history: The epochs.
        finish: The end of the run, if it has ended.
        url: The address of the live page, if it is served.
        folder: The folder of the run, if it has one.
    """
    took = finish.seconds if finish is not None else history[-1].elapsed if history else 0.0
    facts = [
        finish.status if finish is not None else "running",
        f"epoch {history[-1].epoch + 1 if history else 0} of {info.total}",
        format_duration(took),
    ]
    report = folder / "report.html" if folder is not None else None
    if url is not None:
        facts.append(_link(url, "live page"))
    elif report is not None and report.is_file():
        facts.append(_link(os.path.relpath(report), "report"))
    names = list(dict.fromkeys(name for record in history for name, _ in record.metrics))
    curves = "".join(_curve(name, history) for name in names[:_CURVES])
    if len(names) > _CURVES:
        curves += f"<p>and {len(names) - _CURVES} more metrics</p>"
    box = "border:1px solid #8886;border-radius:10px;padding:10px 14px;max-width:760px"
    grid = "display:flex;flex-wrap:wrap;gap:10px 24px;margin-top:8px"
    title = f"<strong>{escape(info.title)}</strong>"
    return (
        f'<div style="{box}">{title}<br><small>{" · ".join(facts)}</small>'
        f'<div style="{grid}">{curves}</div></div>'
    )


def _link(address: str, text: str) -> str:
    return f'<a href="{escape(address)}" target="_blank" rel="noopener">{text}</a>'


def _curve(name: str, history: Sequence[EpochRecord]) -> str:
    """A metric with its last value, as a line over the epochs; other values leave gaps."""
    values = [dict(record.metrics).get(name, math.nan) for record in history]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    path, pen = "", "M"
    for place, value in enumerate(values):
        if not math.isfinite(value):
            pen = "M"
            continue
        x = _WIDTH * (place / max(1, len(values) - 1))
        y = (
            _HEIGHT / 2
            if high == low
            else 2 + (_HEIGHT - 4) * (high / 2 - value / 2) / (high / 2 - low / 2)
        )
        path += f"{pen}{x:.1f} {y:.1f}"
        pen = "L"
    if len(finite) == 1:
        path += "h1"
    drawing = (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(name)} by epoch">'
        f'<path d="{path}" fill="none" stroke="#2f6fd0" stroke-width="1.6"/></svg>'
    )
    return (
        f"<div><small>{escape(name)}</small> <b>{format_metric(values[-1])}</b><br>{drawing}</div>"
    )
