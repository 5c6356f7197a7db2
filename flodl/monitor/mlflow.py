"""A run in MLflow: epochs as metrics, the configuration as parameters."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from flodl.monitor.media.folder import MediaFolderSink
from flodl.monitor.media.records import MediaRecord
from flodl.monitor.metadata import config_and_facts
from flodl.monitor.records import EpochRecord, Finish, RunInfo, Status, StepSeries
from flodl.monitor.sinks import require

_STATUS: Mapping[Status, str] = {
    "complete": "FINISHED",
    "interrupted": "KILLED",
    "diverged": "FAILED",
    "failed": "FAILED",
}
# https://mlflow.org/docs/latest/api_reference/rest-api.html#request-limits
_METRICS_PER_CALL = 1000
_PARAMS_PER_CALL = 100
_LONGEST_PARAM = 6000

_FORBIDDEN = re.compile(r"[^\w\-. /]")


@final
class MlflowSink:
    """One MLflow run: metrics by epoch (from 1), curves by step (from 0) as ``step/NAME``.

    The configuration becomes parameters; environment and other facts become tags. Characters that
    MLflow does not allow in a name become ``_``. Media are artifacts under ``media/``, as files of
    the same names as in a run directory; areas under curves are metrics, too.

    Args:
        store: Where MLflow keeps runs: a tracking URI (``http://…``, ``sqlite:///mlflow.db``), or
            a folder for its offline file store. None uses ``MLFLOW_TRACKING_URI`` or MLflow's own
            default.
        experiment: The experiment for the run; created if missing.

    Raises:
        FlodlError: The package ``mlflow`` is not installed.
    """

    flush_seconds = 2.0

    def __init__(
        self, store: str | os.PathLike[str] | None = None, *, experiment: str = "flodl"
    ) -> None:
        require("mlflow", self, "mlflow")
        self._store = None if store is None else os.fspath(store)
        self._experiment = experiment
        self._client: Any = None
        self._entities: Any = None
        self._run = ""
        self._known: dict[str, str] = {}
        self._started_ms = 0
        self._elapsed_ms = 0
        self._pending: list[Any] = []
        self._media: tuple[TemporaryDirectory[str], MediaFolderSink] | None = None

    def __str__(self) -> str:
        return f"MLflow in {self._store}" if self._store else "MLflow"

    def open(self, info: RunInfo) -> None:
        """Begin the MLflow run at the first call; log the facts that are new."""
        if self._client is None:
            self._begin(info)
        config, facts = config_and_facts(info)
        params = _flat(config, "")
        tags = {f"flodl.{name}": text for name, text in info.names.items()} | _flat(facts, "")
        fresh = {name: text for name, text in params.items() if f"param {name}" not in self._known}
        self._known.update({f"param {name}": text for name, text in fresh.items()})
        entries = [self._entities.Param(name, text) for name, text in fresh.items()]
        for start in range(0, len(entries), _PARAMS_PER_CALL):
            self._client.log_batch(self._run, params=entries[start : start + _PARAMS_PER_CALL])
        for name, text in tags.items():
            if self._known.get(f"tag {name}") != text:
                self._known[f"tag {name}"] = text
                self._client.set_tag(self._run, name, text)

    def record(self, record: EpochRecord) -> None:
        """Keep one epoch for the next flush."""
        self._elapsed_ms = int(record.elapsed * 1000)
        for name, value in (*record.metrics, ("epoch_seconds", record.seconds)):
            self._add(name, value, record.epoch + 1)

    def steps(self, series: Sequence[StepSeries]) -> None:
        """Keep pieces of curves for the next flush."""
        for piece in series:
            for step, value in zip(piece.steps, piece.values, strict=True):
                self._add(f"step/{piece.name}", float(value), int(step))

    def media(self, record: MediaRecord) -> None:
        """Keep an image, histogram, text, table or curve for the next flush."""
        if self._media is None:
            folder = TemporaryDirectory(prefix="flodl-mlflow-")
            self._media = folder, MediaFolderSink(Path(folder.name) / "media")
        self._media[1].media(record)
        for name, area in record.areas().items():
            self._add(name, area, record.step)

    def flush(self) -> None:
        """Log the kept metrics and media."""
        self._upload_media()
        for start in range(0, len(self._pending), _METRICS_PER_CALL):
            some = self._pending[start : start + _METRICS_PER_CALL]
            self._client.log_batch(self._run, metrics=some)
        self._pending.clear()

    def finish(self, summary: Finish) -> None:
        """Log the rest and the end of the run."""
        self.flush()
        if self._media is not None:
            self._media[0].cleanup()
        end = self._started_ms + int(summary.seconds * 1000)
        self._client.set_terminated(self._run, status=_STATUS[summary.status], end_time=end)

    def _upload_media(self) -> None:
        """Write the kept media into a temporary folder, upload it and remove it."""
        if self._media is None:
            return
        folder, sink = self._media
        sink.flush()
        written = Path(folder.name) / "media"
        if written.exists():
            self._client.log_artifacts(self._run, str(written), "media")
            shutil.rmtree(written)

    def _begin(self, info: RunInfo) -> None:
        uri = self._store
        if uri is not None and "://" not in uri:
            uri = Path(uri).resolve().as_uri()
            # MLflow requires this setting before it writes into a folder.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # Imported in the sink's own thread, so that training does not wait for it.
        self._entities = import_module("mlflow.entities")
        self._client = import_module("mlflow").MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            found.experiment_id if found else self._client.create_experiment(self._experiment)
        )
        self._started_ms = int(info.started.timestamp() * 1000)
        run = self._client.create_run(
            experiment, start_time=self._started_ms, run_name=info.run or info.label or None
        )
        self._run = run.info.run_id

    def _add(self, name: str, value: float, step: int) -> None:
        moment = self._started_ms + self._elapsed_ms
        self._pending.append(self._entities.Metric(_name(name), float(value), moment, step))


def _flat(content: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Return dotted name -> text."""
    found: dict[str, str] = {}
    for key, value in content.items():
        name = _name(f"{prefix}{key}")
        if isinstance(value, Mapping) and value:
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found[name] = text[:_LONGEST_PARAM]
    return found


def _name(text: str) -> str:
    return _FORBIDDEN.sub("_", text)
