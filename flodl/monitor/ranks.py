"""Measurements of each rank of a distributed training in one epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

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
        """Return the JSON form, non-finite values as null."""
        return {
            "loss": _json_number(self.loss),
            "scalars": {name: _json_number(value) for name, value in self.scalars.items()},
            "samples": self.samples,
            "batches": self.batches,
            "busy_ms": _json_number(self.busy_ms),
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
        return shares_of(self.per_rank)

    @property
    def gpu_metrics(self) -> tuple[GpuMetrics, ...]:
        """Measurements of each GPU, by rank; ranks on CPUs are left out."""
        return gpu_metrics_of(self.per_rank)

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
            "comm_ms": _json_number(self.comm_ms),
            "wait_ms": _json_number(self.wait_ms),
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


def shares_of(per_rank: tuple[RankMetrics, ...]) -> tuple[float, ...]:
    """Return the share of the batches of each rank; nan if no rank trained any."""
    total = sum(rank.batches for rank in per_rank)
    return tuple(rank.batches / total if total else math.nan for rank in per_rank)


def gpu_metrics_of(per_rank: tuple[RankMetrics, ...]) -> tuple[GpuMetrics, ...]:
    """Return the measurements of each GPU, by rank; ranks on CPUs are left out."""
    shares = shares_of(per_rank)
    return tuple(
        GpuMetrics(each.device_index, rank, each.throughput, shares[rank], each.samples)
        for rank, each in enumerate(per_rank)
        if each.device_index is not None
    )


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: object) -> float:
    """Read a number; null means nan, and text is the name of a non-finite value."""
    return math.nan if value is None else float(value)  # type: ignore[arg-type]
