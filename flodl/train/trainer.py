"""Three ways to train, with the same numbers: the builder, the set-up, the plain loop.

The builder owns the loop. The set-up chooses the device, moves the model and makes the optimizer,
and the loop is the user's. The plain loop is torch alone.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import nn

from flodl.data.adapters import as_batch_data_set
from flodl.data.loader import DataLoader, positive_integer
from flodl.distributed.builder import RankSettings
from flodl.log import msg
from flodl.nn.amp import GradScaler
from flodl.train.early_stop import EarlyStop, StopMode
from flodl.train.engines import ENGINES
from flodl.train.plan import TrainingPlan
from flodl.train.setup import SetupConfig, TrainingSetup, model_of, prepare, summary
from flodl.train.watched import Best

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Self

    from torch import Tensor

    from flodl.distributed.config import DdpConfig
    from flodl.graph import Graph
    from flodl.monitor import EpochMetrics, Monitor
    from flodl.monitor.timeline import Timeline
    from flodl.train.callbacks import Callback
    from flodl.train.engines.base import LossScaler, TrainFn
    from flodl.train.handle import TrainerHandle
    from flodl.train.plan import ModelFactory, OptimizerFactory, Worker
    from flodl.train.rate import Schedule
    from flodl.train.run_directory import RunDirectory
    from flodl.train.setup import HasGraph


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
        factory: ModelFactory | None,
        optimizer: OptimizerFactory,
        *,
        device: torch.device | str | None = None,
    ) -> TrainingSetup:
        """Prepare a model for a loop of the user's own.

        Moves the model to the device, makes the optimizer (attached to the model where it has
        ``set_optimizer``, as a Graph does), and switches to training mode. In the loop, compute a
        loss, call ``loss.backward()``, then ``step()`` of the set-up; for a Graph ``model.step()``
        is the same.

        Where a launcher has started several of this process, the same loop trains on all of them,
        see :class:`~flodl.train.setup.TrainingSetup`: they begin with the parameters of the first,
        and windows adapt where their devices differ.

        Args:
            model: Any module, wherever it is.
            factory: ``(device) -> module``; called only if the model cannot be moved, as on the
                device ``"meta"``.
            optimizer: ``(parameters) -> optimizer``.
            device: Default: that of this rank; without ranks the best usable CUDA device, else the
                CPU.

        Raises:
            ValueError: The device does not exist here.
            DistributedError: The models of the ranks differ.
        """
        return Trainer.setup_with(model, factory, optimizer, SetupConfig(device=device))

    @staticmethod
    def setup_with(
        model: nn.Module,
        factory: ModelFactory | None,
        optimizer: OptimizerFactory,
        config: SetupConfig | DdpConfig,
    ) -> TrainingSetup:
        """Prepare a model as :meth:`setup` does, with more settings.

        With a :class:`~flodl.distributed.config.DdpConfig`, windows always adapt to the speed of
        the ranks.

        Raises:
            ValueError: The device does not exist here.
            DistributedError: The models of the ranks differ.
        """
        return prepare(model, factory, optimizer, config)

    @staticmethod
    def setup_head(
        head: HasGraph | Graph,
        factory: ModelFactory | None,
        optimizer: OptimizerFactory,
        *,
        config: SetupConfig | DdpConfig | None = None,
    ) -> TrainingSetup:
        """Prepare an object that wraps a model as its ``graph``, such as a task head, or a Graph.

        As :meth:`setup`, and tells on rank 0 where it is trained. The loop is the same on one
        device and on many::

            Trainer.setup_head(head, None, lambda parameters: AdamW(parameters, lr=5e-5))
            for enc, labels in batches:
                head.compute_loss(enc, labels).backward()
                clip_grad_norm(head.graph.parameters(), 1.0)
                head.graph.step()

        Args:
            head: Its graph is moved to the device and put into training mode.
            factory: ``(device) -> model`` for further devices of this process. It has none: where
                a launcher started several ranks, each has made its head itself.
            optimizer: ``(parameters) -> optimizer``.
            config: Settings.

        Raises:
            ValueError: The device does not exist here, or the graph's parameters have no values.
            TypeError: ``head.graph`` is no module.
            DistributedError: The models of the ranks differ.
        """
        return Trainer.setup_head_with(head, factory, optimizer, config or SetupConfig())

    @staticmethod
    def setup_head_with(
        head: HasGraph | Graph,
        factory: ModelFactory | None,
        optimizer: OptimizerFactory,
        config: SetupConfig | DdpConfig,
    ) -> TrainingSetup:
        """Prepare a head as :meth:`setup_head` does, with the settings of :meth:`setup_with`."""
        setup = Trainer.setup_with(model_of(head), factory, optimizer, config)
        if setup.rank == 0:
            msg(summary(setup))
        return setup


@final
class TrainerBuilder(RankSettings):
    """Collects the settings of a training; :meth:`run` carries it out.

    Required: :meth:`dataset`, :meth:`batch_size`, :meth:`num_epochs`. The same program trains on
    one device and in many ranks; settings of ranks have no effect on one device.
    """

    def __init__(
        self, model_factory: ModelFactory, optimizer_factory: OptimizerFactory, train_fn: TrainFn
    ) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {
            "model_factory": _callable("model_factory", model_factory),
            "optimizer_factory": _callable("optimizer_factory", optimizer_factory),
            "train_fn": _callable("train_fn", train_fn),
        }

    def dataset(self, dataset: object) -> Self:
        """Train on this data set: a DataSet, a BatchDataSet, or a map-style one of torch."""
        return self._set("dataset", dataset)

    def batch_size(self, batch_size: int) -> Self:
        """Samples per batch; what remains of an epoch is a smaller batch.

        A single remaining sample joins the batch before it.
        """
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

    def loader_options(self, **options: object) -> Self:
        """Pass settings of the :class:`~flodl.data.DataLoader` on, such as ``streaming=True``.

        ``drop_last=True`` leaves an incomplete last batch out.
        """
        known = set(inspect.signature(DataLoader).parameters) - _OWN_LOADER_SETTINGS
        for name in options:
            if name not in known:
                raise ValueError(
                    f"loader_options({name}=…): use one of {', '.join(sorted(known))}; "
                    f"{', '.join(sorted(_OWN_LOADER_SETTINGS))} have methods of their own"
                )
        return self._set("loader_options", options)

    def engine(self, name: str) -> Self:
        """Choose who carries out the steps: auto, eager, compiled or cuda_graph.

        All give the same numbers up to rounding; ``"auto"``, the default, begins with eager and
        keeps whichever is measured to be the fastest.
        """
        return self._choose("engine", name, ENGINES)

    def deterministic(self, on: bool = True) -> Self:
        """Give the same bits in every run: the eager engine and deterministic algorithms only.

        An operation that has no such algorithm raises ``RuntimeError``.
        """
        return self._set("deterministic", bool(on))

    def memory(self, policy: Literal["auto", "default"]) -> Self:
        """Let the engine arrange memory where that is faster (auto), or leave it as torch does."""
        return self._choose("memory", policy, ("auto", "default"))

    def accumulate(self, batches: int) -> Self:
        """Make one optimizer step out of so many batches: their mean loss.

        The last step of an epoch takes what is left. Schedule and ``checkpoint_steps`` count
        optimizer steps.
        """
        return self._set("accumulate", positive_integer("accumulate", batches))

    def autocast(self, dtype: torch.dtype) -> Self:
        """Compute the forward pass in bfloat16 or float16 where torch deems that safe.

        float16 brings a :class:`~flodl.GradScaler`, see :meth:`grad_scaler`.
        """
        return self._choose("autocast", dtype, (torch.bfloat16, torch.float16))

    def grad_scaler(self, scaler: LossScaler | None) -> Self:
        """Scale the loss with this; None for no scaling, also in float16."""
        return self._set("scaler", scaler)

    def ema(self, decay: float) -> Self:
        """Average the weights over the steps, and evaluate with the average.

        ``model.fdl`` of the run directory holds the average, ``last.fdl`` both; the handle gives
        the weights of the last step by ``join()`` and the average by ``average()``.
        """
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"ema={decay!r}: it must be at least 0 and below 1, such as 0.999")
        return self._set("ema", float(decay))

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

    def callbacks(self, *callbacks: Callback) -> Self:
        """Call the hooks of these; see :class:`~flodl.train.callbacks.Callback`.

        Several calls add up.
        """
        return self._set("callbacks", (*self._settings.get("callbacks", ()), *callbacks))

    def early_stop(
        self,
        metric: str = "loss",
        *,
        window: int = 5,
        tolerance: float = 1e-3,
        mode: StopMode = "stalled",
        patience: int = 1,
        higher_is_better: bool = False,
    ) -> Self:
        """End the training when the trend of a metric has settled.

        See :class:`~flodl.train.early_stop.EarlyStop`.
        """
        return self.callbacks(
            EarlyStop(
                metric,
                window=window,
                tolerance=tolerance,
                mode=mode,
                patience=patience,
                higher_is_better=higher_is_better,
            )
        )

    def checkpoint_every(self, epochs: int) -> Self:
        """Keep a checkpoint every so many epochs; every epoch without this call."""
        return self._set("checkpoint_every", positive_integer("checkpoint_every", epochs))

    def checkpoint_steps(self, steps: int) -> Self:
        """Keep a checkpoint every so many optimizer steps as well, also inside an epoch."""
        return self._set("checkpoint_steps", positive_integer("checkpoint_steps", steps))

    def keep_best(self, metric: str = "loss", *, higher_is_better: bool = False) -> Self:
        """Keep the model of the best epoch as ``best.fdl`` of the run directory.

        With :meth:`ema` it holds the averaged weights, which were evaluated.

        Args:
            metric: ``"loss"`` for the mean loss of the epoch, else the name of a scalar, such as
                one that ``eval_fn`` returns.
            higher_is_better: The metric improves upwards, as an accuracy does.
        """
        return self._set("best", Best(metric, higher_is_better))

    def resume(self, source: str | os.PathLike[str] | None) -> Self:
        """Continue a training exactly where a checkpoint was written; None starts anew.

        Args:
            source: A ``last.fdl``, or ``"last"`` for that of the newest run beside the run
                directory that did not get to its end.
        """
        return self._set("resume", source)

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

    def live(self, port: int = 0, host: str = "127.0.0.1") -> Self:
        """Serve the live page while training; port 0 picks a free one and its address is told."""
        return self._set("live", (port, host))

    def timeline(self, timeline: Timeline | bool) -> Self:
        """Mark epochs there, and in many ranks every exchange.

        True makes a timeline of each rank for this training, samples its machine, and writes the
        timeline of all ranks into the run directory.
        """
        if isinstance(timeline, bool):
            return self._set("record_timeline", timeline)
        return self._set("timeline", timeline)

    def sharded(self, on: bool = True) -> Self:
        """Leave the ranks to FSDP: the model factory calls ``fully_shard``.

        Each rank goes through the data set it is given, which is its part of the data and equally
        long on all ranks; FSDP averages the gradients. Nothing else is exchanged but checkpoints:
        all ranks gather, the lowest one writes its run directory, and buffers, which FSDP does not
        share, are its own. SIGTERM and Ctrl-C leave the last checkpoint as it is.
        """
        return self._set("sharded", bool(on))

    def progress(self, on: bool | None) -> Self:
        """Show how far an epoch has come: a line that renews itself, or a few lines in a pipe.

        Args:
            on: None: on a terminal, and in a pipe if a monitor tells the epochs there. Never where
                ``FLODL_VERBOSITY`` is quiet.
        """
        return self._set("progress", on)

    def run(self) -> TrainerHandle:
        """Train, and return when it is done.

        Launched by torchrun, ``fdl train --ranks`` or a batch system, with all the other ranks;
        otherwise alone, or in processes of its own where ``ranks`` says so or several GPUs are
        usable and no device was chosen.

        Ctrl-C and SIGTERM stop at the next step boundary with a checkpoint; a second one stops at
        once.

        Raises:
            ValueError: A required setting is missing, no batch would ever be full though
                ``drop_last=True``, or ``train_fn`` does not return a scalar loss.
            DataError: The data set is empty, malformed or too large.
            DivergedError: A loss or a parameter is no longer finite.
            CheckpointError: The checkpoint to resume from cannot be used.
            DistributedError: The ranks cannot go on together.
            WorkersFailed: A rank that this call started failed too often.
            KeyboardInterrupt: Ctrl-C; the message names the checkpoint.
            Terminated: SIGTERM; it is a ``SystemExit`` with code 143.
        """
        missing = [name for name in _REQUIRED if name not in self._settings]
        if missing:
            calls = ", ".join(f".{name}(…)" for name in missing)
            raise ValueError(f"Trainer.builder needs {calls} before .run()")
        ranks, outside = self._rank_settings()
        settings = {**outside, **self._settings, "distributed": ranks}
        samples = len(as_batch_data_set(settings["dataset"]))
        drop_last = settings.get("loader_options", {}).get("drop_last", False)
        if drop_last and 0 < samples < settings["batch_size"]:
            raise ValueError(
                f"batch_size={settings['batch_size']} is larger than the data set "
                f"({samples} samples): no batch would ever be full"
            )
        if settings.get("deterministic"):
            if settings.get("engine", "auto") not in ("auto", "eager"):
                raise ValueError(
                    f"engine={settings['engine']!r} together with deterministic(): only the eager "
                    "engine repeats itself to the bit; leave one of the two out"
                )
            settings = {**settings, "engine": "eager"}
        if settings.get("autocast") == torch.float16 and "scaler" not in settings:
            settings = {**settings, "scaler": GradScaler()}
        # Not with the module: what only many ranks need takes a moment to import.
        from flodl.distributed.carry_out import carry_out

        return carry_out(TrainingPlan(**settings))

    def _choose(self, name: str, value: Any, choices: tuple[Any, ...]) -> Self:
        if value not in choices:
            raise ValueError(f"{name}={value!r}: it must be one of {', '.join(map(repr, choices))}")
        return self._set(name, value)

    def _set(self, name: str, value: object) -> Self:
        self._settings[name] = value
        return self


_REQUIRED = ("dataset", "batch_size", "num_epochs")
_OWN_LOADER_SETTINGS = {"dataset", "batch_size", "device", "seed"}


def _callable(name: str, value: Any) -> Any:
    if not callable(value):
        raise ValueError(f"{name}={value!r}: it must be a function")
    return value
