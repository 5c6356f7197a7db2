"""The result of a finished training."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

import torch
from torch import nn

from flodl.checkpoint.sharded import become, fill, reshard, whole
from flodl.errors import ShapeMismatch, StateError
from flodl.graph import Graph
from flodl.monitor.drawing import facts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from flodl.monitor import EpochMetrics, Monitor
    from flodl.monitor.notebook import Frame
    from flodl.train.observers.ema import WeightAverage


@final
@dataclass(frozen=True, repr=False)
class TrainedState:
    """Copies of the trained tensors on the CPU, in the order of the model."""

    params: list[Tensor]
    """In the order of ``model.parameters()``."""

    buffers: list[Tensor]
    """In the order of ``model.buffers()``."""

    card: str | None = field(default=None, compare=False)
    """HTML of a summary of the training, which a notebook shows; None without a monitor."""

    def __repr__(self) -> str:
        values = sum(tensor.numel() for tensor in (*self.params, *self.buffers))
        return (
            f"<TrainedState: {len(self.params)} parameters, {len(self.buffers)} buffers, "
            f"{values:,} values>"
        )

    def _repr_html_(self) -> str | None:
        """Show the training as a summary with its curves in a notebook."""
        return self.card

    @classmethod
    def of(cls, model: nn.Module) -> TrainedState:
        """Copy the state of a model; call it in all processes that share a sharded model."""
        reshard(model)
        return cls(
            [whole(tensor).detach().to("cpu", copy=True) for tensor in model.parameters()],
            [whole(tensor).detach().to("cpu", copy=True) for tensor in model.buffers()],
        )

    @torch.no_grad()
    def load_into(self, model: nn.Module) -> None:
        """Copy the state into a model of the same architecture, on any device.

        Raises:
            ShapeMismatch: The model has other tensors; nothing was copied.
        """
        reshard(model)
        params = _pairs("parameters", model.named_parameters(), self.params)
        buffers = _pairs("buffers", model.named_buffers(), self.buffers)
        for target, value in (*params, *buffers):
            # A buffer that the training has resized gets its size here, too.
            (fill if target.shape == value.shape else become)(target, value)


def _pairs(
    kind: str, named: Iterable[tuple[str, Tensor]], values: list[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    targets = dict(named)
    if len(targets) != len(values):
        raise ShapeMismatch(
            f"the trained state has {len(values)} {kind} and the model {len(targets)}; build the "
            "model the way the trained one was built"
        )
    for (name, target), value in zip(targets.items(), values, strict=True):
        if target.shape != value.shape and isinstance(target, nn.Parameter):
            raise ShapeMismatch(
                f"{kind}: {name} has shape {list(target.shape)} in the model and "
                f"{list(value.shape)} in the trained state"
            )
    return list(zip(targets.values(), values, strict=True))


@final
class TrainerHandle:
    """The result of :meth:`TrainerBuilder.run`."""

    def __init__(
        self,
        model: nn.Module,
        metrics: Iterable[EpochMetrics],
        *,
        average: WeightAverage | None = None,
        averaged: TrainedState | None = None,
        stopped: str | None = None,
        devices: Sequence[str] = (),
        averages: int = 0,
        aborts: int = 0,
        monitor: Monitor | None = None,
        card: str | None = None,
    ) -> None:
        self._monitor = monitor
        self._card = card
        self._model = model
        self._unread = deque(metrics)
        self._average = average
        self._averaged = averaged
        self._stopped = stopped
        self._devices = list(devices) or [_device_of(model)]
        self._averages, self._aborts = averages, aborts

    @property
    def model(self) -> nn.Module:
        """The trained model itself, on its device; its modules have the modes of the training."""
        return self._model

    def _repr_html_(self) -> str | None:
        """Show the run as a summary with its curves in a notebook; None without a monitor."""
        return self._monitor._repr_html_() if self._monitor is not None else self._card

    def __repr__(self) -> str:
        ended = self._stopped or "complete"
        return f"<TrainerHandle of {type(self._model).__name__}: {ended}>"

    def live(self, height: int = 900) -> Frame:
        """Show the page of the run in a notebook where this is the last expression of a cell.

        Args:
            height: Pixels of the frame.

        Raises:
            StateError: The training had no monitor in this process, or the page cannot be served.
        """
        if self._monitor is None:
            raise StateError(
                "live(): the training had no monitor in this process; for one that ends, open "
                "report.html in its run directory, or type: fdl runs ui"
            )
        return self._monitor.live(height)

    @property
    def stopped(self) -> str | None:
        """The reason why training ended before its last epoch, or None."""
        return self._stopped

    @property
    def world_size(self) -> int:
        """Number of processes that trained."""
        return len(self._devices)

    @property
    def devices(self) -> list[str]:
        """The device of each process."""
        return list(self._devices)

    @property
    def version(self) -> int:
        """Number of averages of the ranks; 0 on one rank."""
        return self._averages

    @property
    def abort_count(self) -> int:
        """Averages that were skipped because a rank was late."""
        return self._aborts

    def poll_metrics(self) -> list[EpochMetrics]:
        """Return the epochs that were not returned before, and mark them as returned."""
        taken = list(self._unread)
        self._unread.clear()
        return taken

    def join(self) -> TrainedState:
        """Return the trained parameters and buffers after the last step."""
        return replace(TrainedState.of(self._model), card=self._repr_html_())

    def average(self) -> TrainedState:
        """Return the averaged weights of a training with ``ema``: the weights that were evaluated.

        ``model.fdl`` of the run directory holds the same weights.

        Raises:
            StateError: The training did not average weights.
        """
        if self._averaged is not None:
            return self._averaged
        if self._average is None:
            raise StateError("this training averaged no weights; ask for it with .ema(0.999)")
        with self._average.applied():
            return TrainedState.of(self._model)


def _device_of(model: nn.Module) -> str:
    return str(next((p.device for p in model.parameters()), torch.device("cpu")))


def introduce(model: nn.Module, monitor: Monitor) -> None:
    """Set the identity of a model and its parameter counts in a monitor; it draws a graph."""
    identity, parameters = facts_of(model)
    monitor.set_identity(**({"label": type(model).__name__} | identity))
    monitor.set_metadata({"parameters": parameters})
    if isinstance(model, Graph) and not monitor.draws:
        monitor.watch(model)
