"""Curves for TensorBoard, written by TensorBoard's own writer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

from flodl.monitor.media.records import MediaRecord
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries
from flodl.monitor.sinks import require
from flodl.monitor.tensorboard_media import markdown_table, write_media


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
        write_media(self._writer, record, self._started + self._elapsed)

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
        yield "run", markdown_table(("fact", "value"), list(info.names.items()))
    for title, content in info.metadata.items():
        if isinstance(content, Mapping):
            rows = {name: _shown(value) for name, value in content.items()}
            if rows:
                yield title, markdown_table(("name", "value"), list(rows.items()))
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
