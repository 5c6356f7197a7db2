"""What a run emits, in order: its facts, one record per epoch, and how it ended.

Sinks know nothing else of training. Every record has one JSON form, shared by the report page and
by anything that follows a run live.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from flodl.monitor.ranks import GpuMetrics, RankSummary, gpu_metrics_of, shares_of
from flodl.monitor.ranks import RankMetrics as RankMetrics
from flodl.monitor.resources import ResourceSample

Status = Literal["complete", "interrupted", "diverged", "failed"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True)
class EpochMetrics:
    """What a trainer measured in one epoch."""

    epoch: int
    """Counted from 0."""
    avg_loss: float
    """Mean over the epoch's batches."""
    scalars: Mapping[str, float]
    """Further values by name."""
    epoch_ms: float
    """Wall time of the epoch in milliseconds."""
    throughput: float
    """Samples per millisecond."""
    share: list[float]
    """Part of the samples each device took; ``[1.0]`` on one device."""
    per_rank: tuple[RankMetrics, ...] = ()
    """What each rank measured; empty where there is one."""
    comm_ms: float = 0.0
    """Time each rank spent on exchanges."""
    wait_ms: float = 0.0
    """Time a rank waited for the others, mean over the ranks."""
    anchor: int | None = None
    """Batches of the slowest rank between two averages, at the end of the epoch."""
    counts: tuple[int, ...] = ()
    """Batches of each rank between two averages, at the end of the epoch."""

    @property
    def per_rank_throughput(self) -> tuple[float, ...]:
        """Samples per millisecond of busy time, by rank; nan where a rank was never busy."""
        return tuple(rank.throughput for rank in self.per_rank)

    @property
    def per_rank_batch_share(self) -> tuple[float, ...]:
        """Part of the epoch's batches, by rank; nan where nobody trained any."""
        return shares_of(self.per_rank)

    @property
    def device_indices(self) -> tuple[int | None, ...]:
        """Number of the device, by rank; None for a processor."""
        return tuple(rank.device_index for rank in self.per_rank)

    @property
    def gpu_metrics(self) -> tuple[GpuMetrics, ...]:
        """What each GPU did, by rank; empty where there is one rank, or none on a GPU."""
        return gpu_metrics_of(self.per_rank)

    def rank_summary(self) -> RankSummary | None:
        """Return what is shown of the ranks; None where there is one."""
        if len(self.per_rank) < 2:
            return None
        return RankSummary(self.per_rank, self.comm_ms, self.wait_ms, self.anchor, self.counts)


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Values of one quantity, step by step; one piece of a curve or all of it."""

    name: str
    steps: Sequence[int]
    """Optimizer steps, counted from 0 over the whole run and rising."""
    values: Sequence[float]
    """One value per step; may be nan or infinite."""

    def as_json(self) -> dict[str, Any]:
        """Return ``{"name": …, "steps": […], "values": […]}``, non-finite values as null."""
        return {
            "name": self.name,
            "steps": [int(step) for step in self.steps],
            "values": [finite(float(value)) for value in self.values],
        }


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch as every sink sees it."""

    epoch: int
    """Counted from 0; everything shown to people counts from 1."""
    total: int
    """Epochs the run intends to train."""
    seconds: float
    """Wall time of this epoch."""
    metrics: tuple[tuple[str, float], ...]
    """Names and values in the order they were given; values may be nan or infinite."""
    eta: float | None
    """Estimated seconds to go; None after the last epoch."""
    resources: ResourceSample
    """Load of the machine at the end of the epoch."""
    elapsed: float
    """Seconds since the monitor was made."""
    throughput: float | None = None
    """Samples per millisecond, where the trainer knows it."""
    ranks: RankSummary | None = None
    """What the ranks did, where there are several."""

    @property
    def gpu_metrics(self) -> tuple[GpuMetrics, ...]:
        """What each GPU did, by rank; empty where there is one rank, or none on a GPU."""
        return self.ranks.gpu_metrics if self.ranks is not None else ()

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form: epoch from 1, times in seconds, non-finite values as null."""
        form: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "total": self.total,
            "duration": finite(self.seconds),
            "elapsed": finite(self.elapsed),
            "metrics": {name: finite(value) for name, value in self.metrics},
            **self.resources.as_json(),
        }
        if self.eta is not None:
            form["eta"] = finite(self.eta)
        if self.throughput is not None:
            form["throughput"] = finite(self.throughput)
        if self.ranks is not None:
            form["ranks"] = self.ranks.as_json()
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> EpochRecord:
        """Read what :meth:`as_json` wrote; a null value comes back as nan.

        Raises:
            ValueError: `form` is not such a record.
        """
        try:
            return cls(
                epoch=int(form["epoch"]) - 1,
                total=int(form["total"]),
                seconds=_or_nan(form["duration"]),
                metrics=tuple((str(name), _or_nan(at)) for name, at in form["metrics"].items()),
                eta=_or_nan(form["eta"]) if "eta" in form else None,
                resources=ResourceSample.from_json(form),
                elapsed=_or_nan(form["elapsed"]),
                throughput=_or_nan(form["throughput"]) if "throughput" in form else None,
                ranks=RankSummary.from_json(form["ranks"]) if "ranks" in form else None,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"record of an epoch: {type(error).__name__}: {error}; "
                "pass what EpochRecord.as_json() returned"
            ) from None


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run that are not measurements."""

    total: int
    """Epochs the run intends to train."""
    started: datetime
    """Local time with its offset."""
    label: str = ""
    """Name of the model or experiment."""
    run: str = ""
    """Name of this run, such as its directory."""
    hash: str = ""
    """Structural hash of the model."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON values; the keys ``config``, ``environment`` and ``parameters`` have their own place in
    the report. A configuration value may be ``{"value": …, "origin": "train/fdl.yml:9:13"}``."""
    svg: str = ""
    """Drawing of the model."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "total": self.total,
            "started": self.started.isoformat(timespec="seconds"),
            "label": self.label,
            "run": self.run,
            "hash": self.hash,
            "metadata": dict(self.metadata),
            "svg": self.svg,
        }


@dataclass(frozen=True)
class Finish:
    """How a run ended."""

    status: Status
    """``complete``, or what kept it from completing."""
    seconds: float
    """From the making of the monitor to its end."""
    epochs: int
    """Epochs logged in this run."""
    metrics: tuple[tuple[str, float], ...]
    """Metrics of the last epoch."""
    ledger: Mapping[str, float] = field(default_factory=dict)
    """Seconds by account, as last given to ``Monitor.log_ledger``."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form, non-finite values as null."""
        return {
            "status": self.status,
            "duration": finite(self.seconds),
            "epochs": self.epochs,
            "metrics": {name: finite(value) for name, value in self.metrics},
            "ledger": {account: finite(seconds) for account, seconds in self.ledger.items()},
        }


def finite(value: float) -> float | None:
    """Return `value`, or None for what JSON cannot say (nan, infinities)."""
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def to_json(form: object) -> str:
    """Return compact JSON in plain ASCII that is also safe between ``<script>`` tags.

    A name such as ``</script>`` survives: every ``<`` is written as an escape.

    Raises:
        ValueError: `form` holds a non-finite number; take the JSON form of a record instead.
    """
    text = json.dumps(form, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
