"""Run directories of many trainings that never happened, in the format of real ones.

The files of step curves are written by the sink that a run directory attaches.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

from flodl.monitor import RunInfo, StepSeries
from flodl.monitor.records import EpochRecord
from flodl.monitor.resources import ResourceSample
from flodl.monitor.step_files import StepFilesSink

EPOCHS = 20
_STATES = ("complete",) * 12 + ("failed", "interrupted", "diverged")
_BEGAN = datetime(2026, 5, 4, 8, 0, tzinfo=timezone(timedelta(hours=2)))


def make_runs(folder: Path, runs: int, points: int) -> list[Path]:
    """Write runs, each with a loss of ``points`` steps and four metrics of 20 epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_make_run(folder, number, points) for number in range(runs)]


def settings(number: int) -> dict[str, tuple[object, str]]:
    """The settings of a run, with their origins; seeds vary fastest."""
    draw = random.Random(number // 5)
    lr = draw.choice([1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2])
    return {
        "lr": (lr, "train/fdl.yml:9:9"),
        "batch_size": (draw.choice([32, 64, 128, 256]), "train/fdl.yml:10:17"),
        "optimizer": (draw.choice(["adam", "sgd", "lion"]), "train/fdl.yml:12:16"),
        "width": (draw.choice([64, 128, 256, 512]), "fdl.cluster.yml:4:12"),
        "dropout": (draw.choice([0.0, 0.1, 0.3]), "default"),
        "epochs": (EPOCHS, "train/fdl.yml:8:11"),
        "seed": (number % 5, "--each"),
    }


def losses(number: int, points: int) -> np.ndarray:
    """A noisy loss by step, shape ``[points]``; how far it falls depends on the settings."""
    chosen = settings(number)
    rate = math.log10(float(str(chosen["lr"][0]))) + 2.7
    floor = 0.08 + 0.12 * rate**2 + 0.02 * float(str(chosen["dropout"][0]))
    noise = np.random.default_rng(number)
    at = np.arange(1, points + 1) / points
    clean = floor + 2.2 * np.exp(-(6 + 2 * rate) * at) + 0.01 * (number % 5)
    return np.asarray(clean * np.exp(noise.normal(0, 0.12, points)))


def pieces(values: np.ndarray, size: int = 10_000) -> Iterator[StepSeries]:
    """A curve as a monitor hands it over."""
    for start in range(0, len(values), size):
        part = values[start : start + size]
        yield StepSeries("loss", range(start, start + len(part)), part)  # type: ignore[arg-type]


def _make_run(folder: Path, number: int, points: int) -> Path:
    began = _BEGAN + timedelta(minutes=17 * number)
    run = folder / f"{began:%Y-%m-%dT%H-%M-%S}"
    run.mkdir()
    seconds = 600 + 40 * (number % 13)
    values = losses(number, points)
    record = {
        "state": _STATES[number % len(_STATES)],
        "started": began.isoformat(),
        "finished": (began + timedelta(seconds=seconds)).isoformat(),
        "epochs": EPOCHS,
        "error": None,
    }
    config = {
        name: {"value": value, "origin": origin}
        for name, (value, origin) in settings(number).items()
    }
    environment = {"python": "3.12.4", "torch": "2.13.0", "git_commit": f"{number // 50:07x}"}
    for name, content in (
        ("run", record), ("config", config), ("environment", environment),
    ):  # fmt: skip
        (run / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    if number % 7 == 0:
        notes = {"tags": ["baseline"] if number % 2 else ["wide", "paper"], "note": "to repeat"}
        (run / "notes.json").write_text(json.dumps(notes), encoding="utf-8")
    (run / "metrics.csv").write_text(_table(values, seconds), encoding="utf-8")
    (run / "report.html").write_text("<!doctype html><title>Report</title>", encoding="utf-8")
    _write_steps(run / "steps", values, began.timestamp(), seconds)
    return run


def _table(values: np.ndarray, seconds: float) -> str:
    names = ("epoch", "duration_s", "loss", "val_loss", "accuracy", "lr")
    rows = [",".join((*names, "cpu_pct", "ram_used", "gpu_pct", "vram_alloc", "vram_spill"))]
    for epoch, part in enumerate(np.array_split(values, EPOCHS), 1):
        loss = part.mean()
        cells = (loss, loss * 1.1 + 0.02, math.exp(-loss), 1e-3 * (1 - epoch / EPOCHS))
        measured = ",".join(f"{cell:.8f}" for cell in cells)
        rows.append(f"{epoch},{seconds / EPOCHS:.3f},{measured},90.0,1073741824,,,")
    return "\n".join(rows) + "\n"


def _write_steps(folder: Path, values: np.ndarray, began: float, seconds: float) -> None:
    done = 0
    sink = StepFilesSink(folder, clock=lambda: began + seconds * done / len(values))
    sink.open(RunInfo(EPOCHS, datetime.fromtimestamp(began).astimezone()))
    for piece in pieces(values):
        done += len(piece.steps)
        sink.steps([piece])
    for epoch in range(EPOCHS):
        steps = round((epoch + 1) * len(values) / EPOCHS)
        sink.record(
            EpochRecord(
                epoch, EPOCHS, seconds / EPOCHS, (), None, ResourceSample(), 0.0, steps_done=steps
            )
        )
    sink.flush()
