"""Records of a run, in order: its facts, one record per epoch, and its end.

Sinks know only these records of a training. Every record has one JSON form. The report page and
programs that follow a run live share it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias, final, get_args

from fdl.base.units import in_json
from flodl.monitor.resources import ResourceSample

Status = Literal["complete", "interrupted", "diverged", "failed"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True)
class EpochMetrics:
    """Measurements of a trainer in one epoch."""

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
    """Share of each device in the batches of the epoch; ``[1.0]`` on one device."""
    per_rank: tuple[RankMetrics, ...] = ()
    """Measurements of each rank; empty if there is only one."""
    comm_ms: float = 0.0
    """Time each rank spent on exchanges."""
    wait_ms: float = 0.0
    """Time that a rank waited for the others, mean over the ranks."""
    anchor: int | None = None
    """Batches of the slowest rank between two averages, at the end of the epoch."""
    counts: tuple[int, ...] = ()
    """Batches of each rank between two averages, at the end of the epoch."""
    lr: float | None = None
    """Learning rate of the first parameter group at the end of the epoch."""
    grad_norm: float | None = None
    """Mean 2-norm of the gradients before clipping; None if the training does not clip."""

    @property
    def per_rank_throughput(self) -> tuple[float, ...]:
        """Samples per millisecond of busy time, by rank; nan if a rank was never busy."""
        return tuple(rank.throughput for rank in self.per_rank)

    @property
    def per_rank_batch_share(self) -> tuple[float, ...]:
        """Share of the epoch's batches, by rank; nan if no rank trained any."""
        return RankSummary(self.per_rank).shares

    @property
    def gpu_metrics(self) -> tuple[GpuMetrics, ...]:
        """Measurements of each GPU, by rank; empty if there is one rank or no GPU."""
        return RankSummary(self.per_rank).gpu_metrics

    def rank_summary(self) -> RankSummary | None:
        """Return the summary of the ranks for display; None if there is only one."""
        if len(self.per_rank) < 2:
            return None
        return RankSummary(self.per_rank, self.comm_ms, self.wait_ms, self.anchor, self.counts)


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Values of one quantity by step: a piece of a curve or the whole curve."""

    name: str
    steps: Sequence[int]
    """Optimizer steps, counted from 0 over the whole run, in rising order."""
    values: Sequence[float]
    """One value per step; may be nan or infinite."""
    clock: tuple[Sequence[int], Sequence[float]] = ((), ())
    """Steps, and the seconds since the monitor was created at which they were logged. A monitor
    sets it; one piece has those of all curves."""

    def as_json(self) -> dict[str, Any]:
        """Return ``{"name": …, "steps": […], "values": […]}``; nan and infinity as text."""
        return {
            "name": self.name,
            "steps": [int(step) for step in self.steps],
            "values": [in_json(float(value)) for value in self.values],
        }


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch, as all sinks get it."""

    epoch: int
    """Counted from 0; all displays count from 1."""
    total: int
    """Number of epochs that the run is to train."""
    seconds: float
    """Wall time of this epoch."""
    metrics: tuple[tuple[str, float], ...]
    """Names and values in the given order; values may be nan or infinite."""
    eta: float | None
    """Estimated remaining seconds; None after the last epoch."""
    resources: ResourceSample
    """Load of the machine at the end of the epoch."""
    elapsed: float
    """Seconds since the monitor was created."""
    throughput: float | None = None
    """Samples per millisecond, if the trainer knows it."""
    ranks: RankSummary | None = None
    """Summary of the ranks, if there are several."""
    steps_done: int | None = None
    """Optimizer steps of the run at the end of the epoch; None if no step was recorded."""
    lr: float | None = None
    """Learning rate at the end of the epoch, if the trainer knows it."""
    grad_norm: float | None = None
    """Mean norm of the gradients before clipping, if the trainer clips them."""

    @property
    def gpu_metrics(self) -> tuple[GpuMetrics, ...]:
        """Measurements of each GPU, by rank; empty if there is one rank or no GPU."""
        return self.ranks.gpu_metrics if self.ranks is not None else ()

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form: epoch from 1, times in seconds; nan and infinity as text."""
        form: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "total": self.total,
            "duration": finite(self.seconds),
            "elapsed": finite(self.elapsed),
            "metrics": {name: in_json(value) for name, value in self.metrics},
            **self.resources.as_json(),
        }
        if self.ranks is not None:
            form["ranks"] = self.ranks.as_json()
        if self.steps_done is not None:
            form["steps_done"] = self.steps_done
        for name, plain in _IF_KNOWN.items():
            if (value := getattr(self, name)) is not None:
                form[name] = plain(value)
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> EpochRecord:
        """Read the result of :meth:`as_json`; a null value becomes nan.

        Raises:
            ValueError: `form` is not such a record.
        """
        known: dict[str, Any] = {"eta": None}
        try:
            known |= {name: _number(form[name]) for name in _IF_KNOWN if name in form}
            return cls(
                epoch=int(form["epoch"]) - 1,
                total=int(form["total"]),
                seconds=_number(form["duration"]),
                metrics=tuple((str(name), _number(at)) for name, at in form["metrics"].items()),
                resources=ResourceSample.from_json(form),
                elapsed=_number(form["elapsed"]),
                ranks=RankSummary.from_json(form["ranks"]) if "ranks" in form else None,
                steps_done=int(form["steps_done"]) if "steps_done" in form else None,
                **known,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"record of an epoch: {type(error).__name__}: {error}; "
                "pass what EpochRecord.as_json() returned"
            ) from None


@dataclass(frozen=True)
class RunInfo:
    """Facts of a run other than measurements."""

    total: int
    """Number of epochs that the run is to train."""
    started: datetime
    """Local time with its offset."""
    label: str = ""
    """Name of the model or experiment."""
    run: str = ""
    """Name of this run, such as its directory."""
    hash: str = ""
    """Structural hash of the model."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON values; the keys ``config``, ``environment`` and ``parameters`` have their own section
    in the report. A configuration value may be ``{"value": …, "origin": "train/fdl.yml:9:13"}``."""
    svg: str = ""
    """Drawing of the model."""

    @property
    def title(self) -> str:
        """The title of a page of the run."""
        return " · ".join(part for part in (self.label or "Training run", self.run) if part)

    @property
    def names(self) -> dict[str, str]:
        """``run``, ``label`` and ``hash``, those that are known."""
        names = {"run": self.run, "label": self.label, "hash": self.hash}
        return {name: text for name, text in names.items() if text}

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        started = self.started.isoformat(timespec="seconds")
        return vars(self) | {"started": started, "metadata": dict(self.metadata)}


@dataclass(frozen=True, slots=True)
class BestEpoch:
    """The epoch with the best value of a metric."""

    metric: str
    """Name of the metric."""
    value: float
    """Its value in that epoch."""
    epoch: int
    """Counted from 0."""


@dataclass(frozen=True)
class Finish:
    """The end of a run."""

    status: Status
    """``complete``, or the reason why the run did not complete."""
    seconds: float
    """From the creation of the monitor to its end."""
    epochs: int
    """Epochs logged in this run."""
    metrics: tuple[tuple[str, float], ...]
    """Metrics of the last epoch."""
    ledger: Mapping[str, float] = field(default_factory=dict)
    """Seconds by account, from the last call of ``Monitor.log_ledger``."""
    best: BestEpoch | None = None
    """The best epoch, if the run kept one."""
    folder: str = ""
    """The run directory, as a user would type it."""

    @property
    def use(self) -> str:
        """How a program loads the best model; empty if the run kept none."""
        if self.best is None or not self.folder or self.status != "complete":
            return ""
        return f'load_best("{self.folder}", model)'

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form; a metric that is nan or infinite is text."""
        return {
            "status": self.status,
            "duration": finite(self.seconds),
            "epochs": self.epochs,
            "metrics": {name: in_json(value) for name, value in self.metrics},
            "ledger": {account: finite(seconds) for account, seconds in self.ledger.items()},
            "use": self.use,
        }


def finite(value: float | None) -> float | None:
    """Return `value`, or None for values that JSON lacks (nan, infinities)."""
    return value if value is not None and math.isfinite(value) else None


_IF_KNOWN: Mapping[str, Callable[[float], object]] = {
    "eta": finite, "throughput": finite, "lr": in_json, "grad_norm": in_json
}  # fmt: skip
"""Fields of an epoch that are in its JSON form if they are known, and their form."""


def to_json(form: object) -> str:
    """Return compact ASCII JSON that is also safe between ``<script>`` tags.

    A name such as ``</script>`` is safe: every ``<`` is written as an escape.

    Raises:
        ValueError: `form` contains a non-finite number; use the JSON form of a record instead.
    """
    text = json.dumps(form, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


_SHARES_IN_WORDS = 8
"""Largest number of ranks for which a line shows the share of each."""


@final
@dataclass(frozen=True, slots=True)
class RankMetrics:
    """Measurements of one rank in one epoch."""

    loss: float
    """Mean over its samples; nan without samples."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Further values by name, means over its samples."""
    samples: int = 0
    batches: int = 0
    busy_ms: float = 0.0
    """Time it spent on its batches, without waiting and without exchanges."""
    device: str = "cpu"
    """The device it trains on, such as ``cuda:1``."""

    @property
    def throughput(self) -> float:
        """Samples per millisecond of busy time; nan without busy time."""
        return self.samples / self.busy_ms if self.busy_ms > 0 else math.nan

    @property
    def device_index(self) -> int | None:
        """Number of the device; None for a CPU."""
        kind, _, number = self.device.partition(":")
        return None if kind == "cpu" else int(number or 0)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form; a loss or scalar that is nan or infinite is text."""
        return {
            "loss": in_json(self.loss),
            "scalars": {name: in_json(value) for name, value in self.scalars.items()},
            "samples": self.samples,
            "batches": self.batches,
            "busy_ms": finite(self.busy_ms),
            "device": self.device,
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> RankMetrics:
        """Read the result of :meth:`as_json`; a null value becomes nan.

        Raises:
            KeyError, TypeError, ValueError: `form` is something else.
        """
        return cls(
            loss=_number(form["loss"]),
            scalars={str(name): _number(value) for name, value in form["scalars"].items()},
            samples=int(form["samples"]),
            batches=int(form["batches"]),
            busy_ms=_number(form["busy_ms"]),
            device=str(form["device"]),
        )


@final
@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """Measurements of one GPU in one epoch of a training on several ranks.

    Its load and memory are in :class:`~flodl.GpuSnapshot`.
    """

    device: int
    """Number of the GPU on the host of its rank."""
    rank: int
    """The rank that trains on it; GPUs of several hosts may have the same number."""
    throughput: float
    """Samples per millisecond of busy time; nan if it was never busy."""
    chunk_ratio: float
    """Share of the epoch's batches, in [0, 1]; nan if no rank trained any."""
    shard_size: int
    """Number of samples it trained in the epoch."""


@final
@dataclass(frozen=True, slots=True)
class RankSummary:
    """One epoch of several ranks, for display."""

    per_rank: tuple[RankMetrics, ...]
    comm_ms: float = 0.0
    """Time each rank spent on exchanges."""
    wait_ms: float = 0.0
    """Time that a rank waited for the others, mean over the ranks."""
    anchor: int | None = None
    """Batches of the slowest rank between two averages, at the end of the epoch."""
    counts: tuple[int, ...] = ()
    """Batches of each rank between two averages, at the end of the epoch."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the batches of each rank; all nan if there were no batches."""
        total = sum(rank.batches for rank in self.per_rank)
        return tuple(rank.batches / total if total else math.nan for rank in self.per_rank)

    @property
    def gpu_metrics(self) -> tuple[GpuMetrics, ...]:
        """Measurements of each GPU, by rank; ranks on CPUs are left out."""
        shares = self.shares
        return tuple(
            GpuMetrics(each.device_index, rank, each.throughput, shares[rank], each.samples)
            for rank, each in enumerate(self.per_rank)
            if each.device_index is not None
        )

    def text(self, seconds: float) -> str:
        """Return ``share 71/29  anchor 10  wait 4%``.

        Args:
            seconds: Length of the epoch.
        """
        percent = [f"{100 * share:.0f}" for share in self.shares]
        if len(percent) > _SHARES_IN_WORDS:
            ordered = sorted(self.shares)
            percent = [f"{100 * ordered[0]:.1f}…{100 * ordered[-1]:.1f} ({len(ordered)} ranks)"]
        parts = [f"share {'/'.join(percent)}"]
        if self.anchor is not None:
            parts.append(f"anchor {self.anchor}")
        if seconds > 0:
            parts.append(f"wait {self.wait_ms / (10 * seconds):.0f}%")
        return "  ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "each": [rank.as_json() for rank in self.per_rank],
            "comm_ms": finite(self.comm_ms),
            "wait_ms": finite(self.wait_ms),
            "anchor": self.anchor,
            "counts": list(self.counts),
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> RankSummary:
        """Read the result of :meth:`as_json`; a null value becomes nan.

        Raises:
            KeyError, TypeError, ValueError: `form` is something else.
        """
        return cls(
            per_rank=tuple(RankMetrics.from_json(rank) for rank in form["each"]),
            comm_ms=_number(form["comm_ms"]),
            wait_ms=_number(form["wait_ms"]),
            anchor=None if form["anchor"] is None else int(form["anchor"]),
            counts=tuple(int(count) for count in form["counts"]),
        )


def _number(value: object) -> float:
    """Read a number; null means nan, and text is the name of a non-finite value."""
    return math.nan if value is None else float(value)  # type: ignore[arg-type]


Phase: TypeAlias = Literal["training", "evaluating", "paused"]


@final
@dataclass(frozen=True, slots=True)
class StepProgress:
    """The position of a training; only the newest one counts."""

    epoch: int
    """Counted from 0; all displays count from 1."""
    total: int
    """Number of epochs that the run is to train."""
    step: int
    """Batches of this epoch that are done."""
    steps: int | None
    """Batches of the whole epoch; None if unknown."""
    rate: float | None
    """Samples per second in this epoch; None if unknown."""
    eta: float | None
    """Estimated remaining seconds of the training; None if unknown."""
    elapsed: float
    """Seconds since the monitor was created."""
    phase: Phase = "training"
    """What the training does now."""
    resources: ResourceSample = field(default_factory=ResourceSample)
    """Load of the machine now."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form: epoch from 1, unknown values left out."""
        form: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "total": self.total,
            "step": self.step,
            "elapsed": finite(self.elapsed),
            "phase": self.phase,
            **self.resources.as_json(),
        }
        known = {"steps": self.steps, "rate": self.rate, "eta": self.eta}
        return form | {name: finite(value) for name, value in known.items() if value is not None}
