"""A run in Weights & Biases: metrics, configuration and media."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from importlib import import_module
from netrc import NetrcParseError, netrc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, final
from urllib.parse import urlsplit

from flodl import log
from flodl.errors import FlodlError
from flodl.monitor.media.records import (
    ConfusionMatrix,
    Curves,
    Histogram,
    Image,
    MediaRecord,
    Table,
    Text,
)
from flodl.monitor.metadata import config_and_facts
from flodl.monitor.records import EpochRecord, Finish, RunInfo, StepSeries
from flodl.monitor.sinks import require

Mode = Literal["online", "offline", "disabled"]


@final
class WandbSink:
    """One run of Weights & Biases: metrics by epoch (from 1), curves by step (from 0), media.

    Metrics are ``epoch/NAME`` and ``step/NAME``; media have their own names and the number of steps
    done. The configuration becomes the run's config; environment and other facts are under
    ``flodl``. Nothing is printed or asked on the terminal.

    Args:
        project: The project of the run; made if missing.
        folder: Folder for local files; None for ``wandb/`` in the working directory.
        name: Name of the run; None for that of the run directory.
        run_id: Identifies the run in its project. If there is such a run, it is continued: of its
            epochs, those that were logged from this folder are not logged again.
        entity: User or team; None for the default of your account.
        mode: ``online``, ``offline`` (only local files; upload them with ``wandb sync``) or
            ``disabled``. None takes ``WANDB_MODE``, else ``online``.

    Raises:
        FlodlError: The package ``wandb`` is not installed.
    """

    def __init__(
        self,
        project: str = "flodl",
        *,
        folder: str | os.PathLike[str] | None = None,
        name: str | None = None,
        run_id: str | None = None,
        entity: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        require("wandb", self, "wandb")
        self._project, self._entity, self._name, self._run_id = project, entity, name, run_id
        self._folder = None if folder is None else os.fspath(folder)
        self._mode = mode
        self._wandb: Any = None
        self._run: Any = None
        self._config: dict[str, Any] = {}
        self._named: set[str] = set()
        self._logged: set[str] = set()

    def __str__(self) -> str:
        return f"Weights & Biases project {self._project}"

    def open(self, info: RunInfo) -> None:
        """Begin or continue the run at the first call; set the configuration that has changed."""
        if self._run is None:
            self._begin(info)
        config, facts = config_and_facts(info)
        if known := info.names | facts:
            config["flodl"] = known
        fresh = {name: value for name, value in config.items() if self._config.get(name) != value}
        if fresh:
            self._run.config.update(fresh, allow_val_change=True)
            self._config |= fresh

    def record(self, record: EpochRecord) -> None:
        """Log one epoch."""
        values = {f"epoch/{name}": value for name, value in record.metrics}
        row = {"epoch": record.epoch + 1, "epoch/seconds": record.seconds, **values}
        if self._run_id is None:
            self._run.log(row)
            return
        # A resumed training passes on the epochs before it, with the same values to the bit.
        digest = hashlib.sha256(repr(sorted(row.items())).encode()).hexdigest()[:16]
        if digest in self._logged:
            return
        self._run.log(row)
        self._logged.add(digest)
        with self._epochs_file.open("a", encoding="ascii") as file:
            file.write(f"{digest}\n")

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Log pieces of curves, all values of a step together."""
        rows: dict[int, dict[str, float]] = {}
        for piece in series:
            for step, value in zip(piece.steps, piece.values, strict=True):
                rows.setdefault(int(step), {})[f"step/{piece.name}"] = float(value)
        for step in sorted(rows):
            self._run.log({"step": step, **rows[step]})

    def media(self, record: MediaRecord) -> None:
        """Log an image, histogram, text, table or curve."""
        with TemporaryDirectory(prefix="flodl-wandb-") as folder:
            values = self._values(record, Path(folder))
            for name in values.keys() - self._named:
                self._named.add(name)
                self._run.define_metric(name, step_metric="step")
            self._run.log({"step": record.step, **values})

    def finish(self, summary: Finish) -> None:
        """End the run; only a complete one counts as successful."""
        self._run.summary["status"] = summary.status
        if summary.best is not None:
            best = summary.best
            self._run.summary[f"best/{best.metric}"] = best.value
            self._run.summary["best/epoch"] = best.epoch + 1
        self._run.finish(exit_code=0 if summary.status == "complete" else 1)

    def _begin(self, info: RunInfo) -> None:
        # Imported in the sink's own thread, so that training does not wait for it.
        self._wandb = wandb = import_module("wandb")
        settings = wandb.Settings(console="off", silent=True)
        mode = self._mode or os.environ.get("WANDB_MODE") or "online"
        if mode == "online" and not _has_key(wandb):
            raise FlodlError(
                "Weights & Biases has no API key: type wandb login, or use mode='offline'"
            )
        if self._folder is not None:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            name=self._name or info.run or None,
            id=self._run_id,
            resume="allow" if self._run_id is not None else None,
            dir=self._folder,
            mode=mode,
            reinit="create_new",
            settings=settings,
        )
        if self._run_id is not None:
            self._epochs_file.parent.mkdir(parents=True, exist_ok=True)
            if self._epochs_file.exists():
                self._logged = set(self._epochs_file.read_text("ascii").split())
        for unit in ("epoch", "step"):
            self._run.define_metric(unit, hidden=True)
            self._run.define_metric(f"{unit}/*", step_metric=unit)
        if mode == "online" and self._run.url:
            log.msg(f"  Weights & Biases: {self._run.url}")

    @property
    def _epochs_file(self) -> Path:
        """Digests of the epochs that were logged to the run of this id, one per line."""
        return Path(self._folder or ".") / "wandb" / f"flodl-{self._run_id}.epochs"

    def _values(self, record: MediaRecord, folder: Path) -> dict[str, Any]:
        """Return what is logged for a record, by name."""
        name, content, wandb = record.name, record.content, self._wandb
        if isinstance(content, Image):
            file = folder / "image.png"
            file.write_bytes(content.png)
            return {name: wandb.Image(str(file))}
        if isinstance(content, Histogram):
            odd = content.nan + content.positive_infinite + content.negative_infinite
            found = {f"{name}/not_finite": odd} if odd else {}
            counts = (list(content.counts), content.edges())
            return found | ({name: wandb.Histogram(np_histogram=counts)} if content.count else {})
        if isinstance(content, Text):
            return {name: wandb.Table(columns=["text"], data=[[content.text]])}
        if isinstance(content, Table):
            rows = [list(row) for row in content.rows]
            return {
                name: wandb.Table(columns=list(content.columns), data=rows, allow_mixed_types=True)
            }
        if isinstance(content, ConfusionMatrix):
            return {name: self._matrix(name, content)}
        return self._curves(record, content)

    def _matrix(self, name: str, matrix: ConfusionMatrix) -> Any:
        fields = ("Actual", "Predicted", "nPredictions")
        rows = [
            [true, predicted, count]
            for true, row in zip(matrix.classes, matrix.counts, strict=True)
            for predicted, count in zip(matrix.classes, row, strict=True)
        ]
        return self._wandb.plot_table(
            "wandb/confusion_matrix/v1",
            self._wandb.Table(columns=list(fields), data=rows),
            {field: field for field in fields},
            {"title": name},
        )

    def _curves(self, record: MediaRecord, content: Curves) -> dict[str, Any]:
        roc = record.kind == "roc"
        across, up = ("fpr", "tpr") if roc else ("recall", "precision")
        rows = [
            [curve.name or "1", x, y]
            for curve in content.curves
            for x, y in zip(curve.x, curve.y, strict=True)
        ]
        plot = self._wandb.plot_table(
            "wandb/area-under-curve/v0",
            self._wandb.Table(columns=["class", across, up], data=rows),
            {"x": across, "y": up, "class": "class"},
            {"title": record.name, "x-axis-title": across, "y-axis-title": up},
        )
        return {record.name: plot, **record.areas()}


def run_identity(folder: Path) -> str:
    """Return an identity for the run of a run directory: its name, and where it is."""
    place = f"{socket.gethostname()}:{folder.absolute()}"
    return f"{folder.name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def _has_key(wandb: Any) -> bool:
    """Whether W&B can log in without a question on the terminal, which belongs to the training."""
    settings = wandb.setup().settings
    if settings.api_key or settings.identity_token_file:
        return True
    try:
        host = urlsplit(settings.base_url).hostname or ""
        known = netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, NetrcParseError):
        return False
    return known is not None
