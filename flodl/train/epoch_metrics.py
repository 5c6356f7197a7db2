"""Measurements of an epoch, on each rank, and the metrics computed from them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from flodl.monitor import EpochMetrics
from flodl.monitor.records import RankMetrics
from flodl.train.metrics import ScalarLog, StepCounter, Sums, merged, outside_of_step, reduced
from flodl.train.step.step_values import LossLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor

    from flodl.train.metrics import Reduction


@final
class EpochLog:
    """Measurements of one process in one epoch.

    Args:
        epoch: Counted from 0.
        counter: Provides the number of the current step.
        losses: The losses of the epoch.
        known: The :meth:`state` of an epoch that continues.
    """

    def __init__(
        self,
        epoch: int,
        counter: StepCounter,
        losses: LossLog,
        known: Mapping[str, Any],
    ) -> None:
        self.epoch = epoch
        self.losses = losses
        self.scalars = ScalarLog(counter, known.get("scalars"))
        self.batches = int(known.get("batches", 0))
        self.samples = int(known.get("samples", 0))
        self.busy_ms = float(known.get("busy_ms", 0.0))
        self.comm_ms = float(known.get("comm_ms", 0.0))
        self.wait_ms = float(known.get("wait_ms", 0.0))

    def state(self) -> dict[str, Any]:
        """Return sums and counts as JSON values; waits for the device."""
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
    """The logs of the unfinished epochs: at most the current one and the next.

    :func:`flodl.record_scalar` adds its values here, to the epoch of the current batch.

    Args:
        counter: Provides the number of the current step.
        device: The device of the losses.
        weighted: Whether every sample has the same weight, and a loss that is not finite is left
            to the other ranks; else every batch has, and such a loss ends the training.
    """

    def __init__(self, counter: StepCounter, device: torch.device, *, weighted: bool) -> None:
        self._counter = counter
        self._device, self._weighted = device, weighted
        self._open: dict[int, EpochLog] = {}
        self._loss_sink: Callable[[Sequence[float]], object] | None = None
        self._judged = False
        self._began_at = time.monotonic()
        self.current: EpochLog | None = None

    def of(self, epoch: int) -> EpochLog:
        """Return the log of an epoch and make it the current one."""
        log = self._open.get(epoch)
        if log is None:
            log = self._open[epoch] = self._made(epoch, {})
        self.current = log
        return log

    def _made(self, epoch: int, known: Mapping[str, Any]) -> EpochLog:
        sums = known.get("losses", (0.0, 0))
        losses = LossLog(
            epoch, sums, on_device=self._device.type != "cpu", by_samples=self._weighted
        )
        losses.record = self._loss_sink
        if self._judged:
            losses.keep_for_judge()
        return EpochLog(epoch, self._counter, losses, known)

    def record_losses(self, sink: Callable[[Sequence[float]], object] | None) -> None:
        """Pass the losses of all logs to a sink when they are taken; None for none."""
        self._loss_sink = sink
        for log in self._open.values():
            log.losses.record = sink

    def pass_on(self) -> None:
        """Let all losses count as taken, for a sink that begins with the next ones.

        Raises:
            DivergedError: A loss is not finite.
        """
        for log in self._open.values():
            log.losses.check()
            log.losses.take()

    def keep_for_judge(self) -> None:
        """Keep the losses of all logs from now on until they are judged."""
        self._judged = True
        for log in self._open.values():
            log.losses.keep_for_judge()

    def to_judge(self) -> list[tuple[int, list[float]]]:
        """Return the losses of each epoch since the last call; waits for the device.

        Raises:
            DivergedError: A loss is not finite, and no other rank can continue without this one.
        """
        return [
            (epoch, log.losses.to_judge(wait=True)) for epoch, log in sorted(self._open.items())
        ]

    def go_back(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Replace all logs by an earlier :meth:`state`."""
        self._open.clear()
        self.current = None
        self.load(states)

    def add(self, name: str, value: float | Tensor, reduce: Reduction = "mean") -> None:
        """Add one value of :func:`flodl.record_scalar`.

        Raises:
            StateError: No step of an epoch is running.
        """
        if self.current is None:
            raise outside_of_step(name)
        self.current.scalars.add(name, value, reduce)

    def take(self, epoch: int) -> tuple[EpochLog, float]:
        """Remove the log of a complete epoch; return it and the duration of the epoch in ms."""
        log = self.of(epoch)
        del self._open[epoch]
        self.current = None
        return log, (time.monotonic() - self._began_at) * 1000

    @property
    def seconds(self) -> float:
        """Time of the epoch so far."""
        return time.monotonic() - self._began_at

    def restart_clock(self, seconds: float = 0.0) -> None:
        """Start the time of the next epoch now; the work since the last epoch was not training.

        Args:
            seconds: Time of the epoch before a resume.
        """
        self._began_at = time.monotonic() - seconds

    def skip_time(self, seconds: float) -> None:
        """Do not count the time of a pause."""
        self._began_at += seconds

    def state(self) -> list[dict[str, Any]]:
        """Return the logs of the unfinished epochs as JSON values."""
        return [log.state() for _, log in sorted(self._open.items())]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from a state that :meth:`state` returned."""
        for known in states:
            epoch = int(known["epoch"])
            self._open[epoch] = self._made(epoch, known)


def add_up(states: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Combine the unfinished epochs of several ranks into one state, to resume on other ranks."""
    sums: dict[int, dict[str, Any]] = {}
    for state in states:
        for known in state:
            epoch = int(known["epoch"])
            if epoch not in sums:
                sums[epoch] = {**known, "scalars": dict(known["scalars"])}
                continue
            into = sums[epoch]
            into["losses"] = [a + b for a, b in zip(into["losses"], known["losses"], strict=True)]
            for name, sums_of in known["scalars"].items():
                before = into["scalars"].get(name)
                into["scalars"][name] = sums_of if before is None else merged(before, sums_of)
            for name in ("batches", "samples", "busy_ms", "comm_ms", "wait_ms"):
                into[name] += known[name]
    return [sums[epoch] for epoch in sorted(sums)]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class EpochShare:
    """Report of one rank about a complete epoch."""

    state: Mapping[str, Any]
    """A state that :meth:`EpochLog.state` returned."""
    device: str
    epoch_ms: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the model recorded itself."""


def epoch_metrics(
    epoch: int,
    shares: Sequence[EpochShare],
    *,
    anchor: int,
    counts: Sequence[int],
    lr: float | None = None,
    evaluated: Mapping[str, float],
) -> EpochMetrics:
    """Combine the reports of all ranks, each weighted by its samples (scalars by their count).

    Args:
        epoch: Number of the epoch, counted from 0.
        shares: One report per rank.
        anchor: Current batches of the slowest rank per window.
        counts: Current batches of each rank per window.
        lr: Learning rate of this rank.
        evaluated: Scalars measured on the averaged model.
    """
    alone = len(shares) == 1
    # The wall clock of rank 0, so that the metrics are the same on every rank.
    epoch_ms = shares[0].epoch_ms
    # The last rank to arrive did not wait: its time is the cost of the exchanges.
    comm_ms, spent = math.inf, 0.0
    batches = samples = weight = 0
    loss = 0.0
    sums: dict[str, Sums] = {}
    for share in shares:
        state = share.state
        comm_ms = min(comm_ms, state["comm_ms"])
        spent += state["comm_ms"] + state["wait_ms"]
        batches, samples = batches + int(state["batches"]), samples + int(state["samples"])
        loss, weight = loss + state["losses"][0], weight + state["losses"][1]
        for name, values in state["scalars"].items():
            sums[name] = merged(sums[name], values) if name in sums else values
    return EpochMetrics(
        epoch=epoch,
        avg_loss=loss / weight if weight else math.nan,
        scalars={**_observed(shares), **_values(sums), **evaluated},
        epoch_ms=epoch_ms,
        throughput=samples / epoch_ms if epoch_ms else 0.0,
        share=[one.state["batches"] / batches if batches else float(alone) for one in shares],
        per_rank=() if alone else tuple(map(_rank_metrics, shares)),
        comm_ms=comm_ms,
        wait_ms=spent / len(shares) - comm_ms,
        anchor=None if alone else anchor,
        counts=() if alone else tuple(counts),
        lr=lr,
    )


def _rank_metrics(share: EpochShare) -> RankMetrics:
    state = share.state
    total, count = state["losses"]
    return RankMetrics(
        loss=total / count if count else math.nan,
        scalars=_values(state["scalars"]),
        samples=int(state["samples"]),
        batches=int(state["batches"]),
        busy_ms=float(state["busy_ms"]),
        device=share.device,
    )


def _values(sums: Mapping[str, Sums]) -> dict[str, float]:
    return {name: value for name, of in sums.items() if (value := reduced(of)) is not None}


def _observed(shares: Sequence[EpochShare]) -> dict[str, float]:
    """Return the means of what the models have recorded, weighted by samples."""
    sums: dict[str, tuple[float, int]] = {}
    for share in shares:
        weight = int(share.state["samples"])
        for name, value in share.metrics.items():
            total, known = sums.get(name, (0.0, 0))
            sums[name] = total + value * weight, known + weight
    return {name: total / weight for name, (total, weight) in sums.items() if weight}


def device_name(device: torch.device, rank: int) -> str:
    """Return a readable name of a rank's device: ``cuda:1``, or ``cpu`` with the rank number."""
    return str(device) if device.type != "cpu" else f"cpu:{rank}"
