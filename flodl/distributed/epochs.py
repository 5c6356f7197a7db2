"""What the ranks measure in an epoch, and the metrics they make of it together."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from flodl.monitor import EpochMetrics
from flodl.monitor.records import RankMetrics
from flodl.train.losses import SampleLossLog
from flodl.train.metrics import ScalarLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from flodl.train.metrics import StepCounter


@final
class EpochLog:
    """What one rank has measured of one epoch."""

    def __init__(
        self,
        epoch: int,
        counter: StepCounter,
        *,
        on_device: bool = False,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        known = known or {}
        self.epoch = epoch
        self.losses = SampleLossLog(epoch, known.get("losses", (0.0, 0)), on_device=on_device)
        self.scalars = ScalarLog(counter, known.get("scalars"))
        self.batches = int(known.get("batches", 0))
        self.samples = int(known.get("samples", 0))
        self.busy_ms = float(known.get("busy_ms", 0.0))
        self.comm_ms = float(known.get("comm_ms", 0.0))
        self.wait_ms = float(known.get("wait_ms", 0.0))

    def state(self) -> dict[str, Any]:
        """Return sums and counts; waits for the device. JSON values."""
        return {
            "epoch": self.epoch,
            "losses": list(self.losses.state()),
            "scalars": self.scalars.state(),
            "batches": self.batches,
            "samples": self.samples,
            "busy_ms": self.busy_ms,
            "comm_ms": self.comm_ms,
            "wait_ms": self.wait_ms,
        }


@final
class EpochLogs:
    """The logs of the epochs under way: at most the current one and the next.

    Also where :func:`flodl.record_scalar` puts its values: into the epoch of the current batch.

    Args:
        counter: Knows the step under way.
        on_device: Whether losses are on an accelerator.
    """

    def __init__(self, counter: StepCounter, *, on_device: bool = False) -> None:
        self._counter = counter
        self._on_device = on_device
        self._open: dict[int, EpochLog] = {}
        self._began_at = time.monotonic()
        self.current: EpochLog | None = None

    def of(self, epoch: int) -> EpochLog:
        """Return the log of an epoch and make it the current one."""
        log = self._open.get(epoch)
        if log is None:
            log = self._open[epoch] = EpochLog(epoch, self._counter, on_device=self._on_device)
        self.current = log
        return log

    def add(self, name: str, value: float | Tensor) -> None:
        """Take one value of :func:`flodl.record_scalar`."""
        assert self.current is not None  # noqa: S101 - values come from batches
        self.current.scalars.add(name, value)

    def take(self, epoch: int) -> tuple[EpochLog, float]:
        """Remove the log of an epoch that is complete; return it and the epoch's milliseconds."""
        log = self.of(epoch)
        del self._open[epoch]
        return log, (time.monotonic() - self._began_at) * 1000

    def restart_clock(self) -> None:
        """Let the time of the next epoch begin now: what was done since the last is no training."""
        self._began_at = time.monotonic()

    def state(self) -> list[dict[str, Any]]:
        """Return what is known of the epochs under way; JSON values."""
        return [log.state() for _, log in sorted(self._open.items())]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from such a state."""
        for known in states:
            epoch = int(known["epoch"])
            self._open[epoch] = EpochLog(
                epoch, self._counter, on_device=self._on_device, known=known
            )


def add_up(states: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Make the open epochs of several ranks those of one, for a resume on other ranks."""
    sums: dict[int, dict[str, Any]] = {}
    for state in states:
        for known in state:
            into = sums.setdefault(int(known["epoch"]), _nothing(int(known["epoch"])))
            into["losses"] = [a + b for a, b in zip(into["losses"], known["losses"], strict=True)]
            for name, (total, count) in known["scalars"].items():
                before = into["scalars"].get(name, (0.0, 0))
                into["scalars"][name] = [before[0] + total, before[1] + count]
            for name in ("batches", "samples", "busy_ms", "comm_ms", "wait_ms"):
                into[name] += known[name]
    return [sums[epoch] for epoch in sorted(sums)]


def _nothing(epoch: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "losses": [0.0, 0],
        "scalars": {},
        "batches": 0,
        "samples": 0,
        "busy_ms": 0.0,
        "comm_ms": 0.0,
        "wait_ms": 0.0,
    }


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class EpochShare:
    """What one rank tells of an epoch that is complete."""

    state: Mapping[str, Any]
    """As :meth:`EpochLog.state` gives it."""
    device: str
    epoch_ms: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the model observed itself."""


def epoch_metrics(
    epoch: int,
    shares: Sequence[EpochShare],
    *,
    anchor: int,
    counts: Sequence[int],
    evaluated: Mapping[str, float],
) -> EpochMetrics:
    """Put the shares of all ranks together, each weighted by its samples (scalars by their count).

    Args:
        epoch: Counted from 0.
        shares: One per rank.
        anchor: Of the windows now.
        counts: Batches per window of each rank now.
        evaluated: Scalars measured on the averaged model.
    """
    ranks = [_rank_metrics(share) for share in shares]
    # The wall clock of rank 0: metrics are the same everywhere.
    epoch_ms = shares[0].epoch_ms
    # Whoever came last has waited for nobody: what it spent is the cost of the exchanges.
    spent = [share.state["comm_ms"] + share.state["wait_ms"] for share in shares]
    comm_ms = min(share.state["comm_ms"] for share in shares)
    batches = sum(rank.batches for rank in ranks)
    samples = sum(rank.samples for rank in ranks)
    losses = [share.state["losses"] for share in shares]
    weight = sum(count for _, count in losses)
    observed = _weighted([(share.metrics, rank.samples) for share, rank in zip(shares, ranks)])  # noqa: B905
    sums: dict[str, list[float]] = {}
    for share in shares:
        for name, (total, count) in share.state["scalars"].items():
            before = sums.setdefault(name, [0.0, 0.0])
            before[0] += total
            before[1] += count
    scalars = {name: total / count for name, (total, count) in sums.items() if count}
    return EpochMetrics(
        epoch=epoch,
        avg_loss=sum(total for total, _ in losses) / weight if weight else math.nan,
        scalars={**observed, **scalars, **evaluated},
        epoch_ms=epoch_ms,
        throughput=samples / epoch_ms if epoch_ms else 0.0,
        share=[rank.batches / batches if batches else 0.0 for rank in ranks],
        per_rank=tuple(ranks),
        comm_ms=comm_ms,
        wait_ms=sum(spent) / len(spent) - comm_ms,
        anchor=anchor,
        counts=tuple(counts),
    )


def _rank_metrics(share: EpochShare) -> RankMetrics:
    state = share.state
    total, count = state["losses"]
    return RankMetrics(
        loss=total / count if count else math.nan,
        scalars={name: s / n for name, (s, n) in state["scalars"].items() if n},
        samples=int(state["samples"]),
        batches=int(state["batches"]),
        busy_ms=float(state["busy_ms"]),
        device=share.device,
    )


def _weighted(parts: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    names = dict.fromkeys(name for metrics, _ in parts for name in metrics)
    found: dict[str, float] = {}
    for name in names:
        having = [(metrics[name], weight) for metrics, weight in parts if name in metrics]
        total = sum(weight for _, weight in having)
        if total:
            found[name] = sum(value * weight for value, weight in having) / total
    return found


def device_name(device: torch.device, rank: int) -> str:
    """Name a rank's device for people: ``cuda:1``, or ``cpu`` with its rank."""
    return str(device) if device.type != "cpu" else f"cpu:{rank}"
