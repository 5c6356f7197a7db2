"""Three ways to train, with the same numbers: the builder, the set-up, the plain loop.

The builder owns the loop. The set-up chooses the device, moves the model and makes the optimizer,
and the loop is the user's. The plain loop is torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from torch import nn

from flodl.data.dataset import as_batch_data_set
from flodl.data.loader import positive_integer
from flodl.train.device import select_device
from flodl.train.loop import TrainingPlan, build_optimizer, train

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    import torch
    from torch import Tensor

    from flodl.monitor import EpochMetrics, Monitor
    from flodl.train.engine import TrainFn
    from flodl.train.handle import TrainerHandle
    from flodl.train.loop import ModelFactory, OptimizerFactory, Worker
    from flodl.train.rate import Schedule
    from flodl.train.run_directory import RunDirectory


@final
class Trainer:
    """Where a training starts."""

    @staticmethod
    def builder(
        model_factory: ModelFactory, optimizer_factory: OptimizerFactory, train_fn: TrainFn
    ) -> TrainerBuilder:
        """Describe a training that the framework carries out.

        Args:
            model_factory: ``(device) -> module``; called once.
            optimizer_factory: ``(parameters) -> optimizer``; called once, after the model is on
                its device.
            train_fn: ``(model, batch) -> loss``, one step: the forward pass and a scalar loss.
        """
        return TrainerBuilder(model_factory, optimizer_factory, train_fn)

    @staticmethod
    def setup(
        model: nn.Module,
        factory: ModelFactory | None,  # noqa: ARG004 - replicas exist on several devices only
        optimizer: OptimizerFactory,
        *,
        device: torch.device | str | None = None,
    ) -> TrainingSetup:
        """Prepare a model for a loop of the user's own.

        Moves the model to the device, makes the optimizer (attached to the model where it has
        ``set_optimizer``, as a Graph does), and switches to training mode. In the loop, compute a
        loss, call ``loss.backward()``, then ``step()`` of the set-up; for a Graph ``model.step()``
        is the same.

        Args:
            model: Any module, wherever it is.
            factory: ``(device) -> module``, for replicas; not called on one device.
            optimizer: ``(parameters) -> optimizer``.
            device: Default: the first usable CUDA device, else the CPU.

        Raises:
            ValueError: The device does not exist here.
        """
        chosen = select_device(device)
        model.to(chosen)
        made = build_optimizer(optimizer, model)
        attach = getattr(model, "set_optimizer", None)
        if callable(attach):
            attach(lambda _: made)
        model.train()
        return TrainingSetup(model, made, chosen)


@final
class TrainingSetup:
    """A model that is ready for a loop of the user's own."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._device = device
        attached = callable(getattr(model, "set_optimizer", None))
        self._model_step: Callable[[], object] | None = (
            getattr(model, "step", None) if attached else None
        )

    @property
    def model(self) -> nn.Module:
        """The model, on its device."""
        return self._model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer over its parameters."""
        return self._optimizer

    @property
    def device(self) -> torch.device:
        """Where the model is, and the batches belong."""
        return self._device

    def step(self) -> None:
        """Move the parameters and clear the gradients: once after each ``loss.backward()``."""
        if self._model_step is not None:
            self._model_step()
            return
        self._optimizer.step()
        self._optimizer.zero_grad()


@final
class TrainerBuilder:
    """Collects the settings of a training; :meth:`run` carries it out.

    Required: :meth:`dataset`, :meth:`batch_size`, :meth:`num_epochs`.
    """

    def __init__(
        self, model_factory: ModelFactory, optimizer_factory: OptimizerFactory, train_fn: TrainFn
    ) -> None:
        self._settings: dict[str, Any] = {
            "model_factory": _callable("model_factory", model_factory),
            "optimizer_factory": _callable("optimizer_factory", optimizer_factory),
            "train_fn": _callable("train_fn", train_fn),
        }

    def dataset(self, dataset: object) -> Self:
        """Train on this data set: a DataSet, a BatchDataSet, or a map-style one of torch."""
        return self._set("dataset", dataset)

    def batch_size(self, batch_size: int) -> Self:
        """Samples per step; an incomplete last batch is left out."""
        return self._set("batch_size", positive_integer("batch_size", batch_size))

    def num_epochs(self, num_epochs: int) -> Self:
        """How often the data set is gone through."""
        return self._set("num_epochs", positive_integer("num_epochs", num_epochs))

    def seed(self, seed: int) -> Self:
        """Seed of torch's generators and of the order of the samples; 42 without this call."""
        return self._set("seed", seed)

    def device(self, device: torch.device | str) -> Self:
        """Train there; default: the first usable CUDA device, else the CPU."""
        return self._set("device", device)

    def scheduler(self, factory: Callable[[int], Schedule]) -> Self:
        """Learning rate by step: ``factory(world_size)`` gives an object with ``lr(step)``."""
        return self._set("scheduler", _callable("scheduler", factory))

    def max_grad_norm(self, max_norm: float) -> Self:
        """Clip the gradients of each step to this total 2-norm."""
        if not max_norm > 0:
            raise ValueError(f"max_grad_norm={max_norm!r}: it must be greater than 0")
        return self._set("max_grad_norm", float(max_norm))

    def epoch_fn(self, callback: Callable[[int, Worker], object]) -> Self:
        """Call ``callback(epoch, worker)`` before each epoch; what it raises ends the training."""
        return self._set("epoch_fn", _callable("epoch_fn", callback))

    def metrics_fn(self, callback: Callable[[EpochMetrics], object]) -> Self:
        """Call ``callback(metrics)`` after each epoch; what it raises is only reported."""
        return self._set("metrics_fn", _callable("metrics_fn", callback))

    def eval_fn(self, callback: Callable[[Any], Mapping[str, float | Tensor]]) -> Self:
        """Call ``callback(model)`` after each epoch, in eval mode and without gradients.

        What it returns joins the epoch's scalars. What it raises ends the training: hours without
        the numbers one wanted are worse than a restart.
        """
        return self._set("eval_fn", _callable("eval_fn", callback))

    def checkpoint_every(self, epochs: int) -> Self:
        """Keep a checkpoint every so many epochs; every epoch without this call."""
        return self._set("checkpoint_every", positive_integer("checkpoint_every", epochs))

    def checkpoint_fn(self, callback: Callable[[int, Any], object]) -> Self:
        """Call ``callback(version, model)`` when a checkpoint is due; version = epoch + 1.

        What it raises is only reported.
        """
        return self._set("checkpoint_fn", _callable("checkpoint_fn", callback))

    def monitor(self, monitor: Monitor) -> Self:
        """Log every epoch there, and finish it with the training."""
        return self._set("monitor", monitor)

    def run_dir(self, run: RunDirectory) -> Self:
        """Write checkpoints, metrics, log and report into this run directory.

        Without a monitor of one's own, one is made, which also tells the epochs on the terminal.
        """
        return self._set("run_dir", run)

    def policy(self, policy: object) -> Self:  # noqa: ARG002 - see below
        """How several devices agree; without effect on one."""
        return self

    def backend(self, backend: object) -> Self:  # noqa: ARG002 - see below
        """How several devices talk; without effect on one."""
        return self

    def run(self) -> TrainerHandle:
        """Train, and return when it is done.

        Ctrl-C stops at the next step boundary with a checkpoint; a second one stops at once.

        Raises:
            ValueError: A required setting is missing, the batch is larger than the data set, or
                ``train_fn`` does not return a scalar loss.
            DataError: The data set is empty, malformed or too large.
            DivergedError: A loss or a parameter is no longer finite.
            KeyboardInterrupt: Ctrl-C; the message names the checkpoint.
        """
        missing = [name for name in _REQUIRED if name not in self._settings]
        if missing:
            calls = ", ".join(f".{name}(…)" for name in missing)
            raise ValueError(f"Trainer.builder needs {calls} before .run()")
        samples = len(as_batch_data_set(self._settings["dataset"]))
        if 0 < samples < self._settings["batch_size"]:
            raise ValueError(
                f"batch_size={self._settings['batch_size']} is larger than the data set "
                f"({samples} samples): no batch would ever be full"
            )
        return train(TrainingPlan(**self._settings))

    def _set(self, name: str, value: object) -> Self:
        self._settings[name] = value
        return self


_REQUIRED = ("dataset", "batch_size", "num_epochs")


def _callable(name: str, value: Any) -> Any:
    if not callable(value):
        raise ValueError(f"{name}={value!r}: it must be a function")
    return value
