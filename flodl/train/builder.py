"""The settings of a training, collected one call at a time, and its start."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
import torch.utils.data
from torch import nn

from flodl.data.adapters import as_batch_data_set, is_iterable
from flodl.data.iterable import check_epochs, settled_batch_size
from flodl.data.loader import DataLoader, positive_integer
from flodl.nn.amp import GradScaler
from flodl.ranks.rank_settings import RankSettings
from flodl.train.plan import TrainingPlan
from flodl.train.repeat import repeat_wanted
from flodl.train.run.own_state import lacking
from flodl.train.run.resume import resume_source
from flodl.train.settings.guard_settings import GuardSettings, settled_guards
from flodl.train.settings.learning_rate_settings import RateSettings
from flodl.train.settings.record_settings import RecordSettings
from flodl.train.settings.setting_checks import (
    check_batch_size,
    check_files,
    check_schedules,
    factories,
    is_first_rank,
    takes,
)
from flodl.train.settings.setting_methods import callable_setting
from flodl.train.step import ENGINES
from flodl.train.step.precision import Precision, settled_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from torch import Tensor

    from flodl.monitor import EpochMetrics
    from flodl.train.handle import TrainerHandle
    from flodl.train.plan import ModelFactory, OptimizerFactory, Worker
    from flodl.train.step.base import LossScaler, TrainFn

    Runner: TypeAlias = Callable[[TrainingPlan], TrainerHandle]
    """Carries out a plan, on one rank or several."""


@final
class TrainerBuilder(RankSettings, RateSettings, RecordSettings, GuardSettings):
    """Collects the settings of a training; :meth:`run` passes them to a runner as one plan.

    Required: :meth:`dataset`, :meth:`batch_size`, :meth:`num_epochs`. The same program trains on
    one device and on many ranks; settings of ranks have no effect on one device.
    """

    def __init__(
        self,
        model: ModelFactory | nn.Module,
        optimizer: OptimizerFactory | torch.optim.Optimizer,
        train_fn: TrainFn,
        runner: Runner,
    ) -> None:
        super().__init__()
        self._runner = runner
        self._given, model_factory, optimizer_factory = factories(model, optimizer)
        self._settings: dict[str, Any] = {
            "model_factory": model_factory,
            "optimizer_factory": optimizer_factory,
            "train_fn": takes("train_fn", train_fn, "model", "batch"),
        }

    def dataset(self, dataset: object) -> Self:
        """Train on this data set.

        * Tensors or arrays: ``(X, Y)``, ``{"x": X, "y": Y}``, a ``TensorDataset`` of torch, NumPy
          arrays, or the data sets of :mod:`flodl.data`. They stay in memory.
        * Samples with numbers, which can be read in any order: a ``DataSet``, a ``BatchDataSet``, a
          map-style data set of torch, a ``Dataset`` of the ``datasets`` library. Each sample is
          read once per epoch.
        * On one device, data that can only be iterated. The batches of a ``DataLoader`` of torch
          are handed over as they are, and so are those of any iterable with a function as
          :meth:`batch_size`. Samples are put into batches in their order: those of an
          ``IterableDataset``, of a streamed data set of the ``datasets`` library, or of a function
          that returns an iterator. See :class:`~flodl.data.IterableLoader`.
        """
        return self._set("dataset", dataset)

    def cache(self, most_bytes: bool | int = True) -> Self:
        """Keep samples in memory once the first epoch has read them; later epochs reuse them.

        A random transform in the data set then draws once per sample instead of once per epoch.

        Args:
            most_bytes: Limit on the memory of this host, for all its ranks together; True for half
                of the available memory. Samples that do not fit are read in each epoch.
        """
        if not isinstance(most_bytes, bool):
            positive_integer("cache", most_bytes)
        return self._set("cache", most_bytes)

    def batch_size(self, batch_size: int | Callable[[Any], int]) -> Self:
        """Set the samples per batch; the last batch of an epoch may be smaller.

        A single remaining sample joins the batch before it. A ``DataLoader`` of torch has its own
        batch size: leave this call out, or give the same number.

        With a function, the data are batches already, as of any loader. The function gets a batch
        and returns the number of its samples; reports use it. Without it, the number is the length
        of the first tensor of a batch.
        """
        counts = callable(batch_size)
        self._set("count_samples", batch_size if counts else None)
        size = None if counts else positive_integer("batch_size", batch_size)
        return self._set("batch_size", size)

    def num_epochs(self, num_epochs: int) -> Self:
        """Set the number of passes through the data set."""
        return self._set("num_epochs", positive_integer("num_epochs", num_epochs))

    def seed(self, seed: int) -> Self:
        """Seed torch's generators and the order of the samples; default 42."""
        return self._set("seed", seed)

    def device(self, device: torch.device | str) -> Self:
        """Train on this device; default: the first usable CUDA device, else the CPU."""
        return self._set("device", device)

    def loader_options(self, **options: object) -> Self:
        """Pass settings to the :class:`~flodl.data.DataLoader`, such as ``streaming=True``.

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
        """Choose the engine that computes the steps: auto, eager, compiled or cuda_graph.

        ``"eager"``, the default, equals a plain loop bit for bit. The others give the same numbers
        up to rounding. ``"auto"`` calls the program exactly as often as ``"eager"`` does. It
        measures tunings during the steps of the training and keeps those that are faster. Later
        runs of the program use its decision from their first step, so they repeat each other. The
        tunings are:

        - a fused optimizer step
        - another memory layout of values between image layers
        - another library for matrix products
        - fewer threads

        ``"auto"`` compiles only after :meth:`pure_step`.
        """
        return self._choose("engine", name, ENGINES)

    def pure_step(self, on: bool = True) -> Self:
        """Declare that a step changes only the model and the optimizer, so it may run on copies.

        This lets the engine ``"auto"`` compile the step as well. Compiling calls ``train_fn`` a few
        more times, with copies of the model. Do not declare this if ``train_fn`` changes anything
        else: a queue, a counter, a file, a second model.
        """
        return self._set("pure_step", bool(on))

    def deterministic(self, on: bool = True) -> Self:
        """Give the same bits in every run, with the eager engine and deterministic algorithms only.

        No measurement decides anything, and neither does a decision kept from an earlier run. An
        operation without a deterministic algorithm raises ``RuntimeError``.
        """
        return self._set("deterministic", bool(on))

    def accumulate(self, batches: int) -> Self:
        """Make one optimizer step from this many batches: the step uses their mean loss.

        The last step of an epoch uses the remaining batches. Schedule and ``checkpoint_steps``
        count optimizer steps.
        """
        return self._set("accumulate", positive_integer("accumulate", batches))

    def autocast(self, dtype: torch.dtype) -> Self:
        """Compute the forward pass in bfloat16 or float16, where torch considers that safe.

        float16 adds a :class:`~flodl.GradScaler`, see :meth:`grad_scaler`.
        """
        return self._choose("autocast", dtype, (torch.bfloat16, torch.float16))

    def precision(self, name: str, *, compare: bool = True) -> Self:
        """Choose the precision of a step by name: bf16, fp16 or 32; the weights stay in float32.

        ``bf16`` (or ``bf16-mixed``) and ``fp16`` (or ``16-mixed``) compute the forward pass and the
        loss under :meth:`autocast`. Checkpoints do not change. bfloat16 is fast on GPUs since
        Ampere, and on processors with AMX, ``avx512_bf16`` or ARM's ``bf16``. Other processors
        emulate it slowly; a warning then says so.

        A new training prints the loss of its first batch in this precision and in float32. For
        that, ``train_fn`` runs twice more, before the first step. It gets copies of the model in
        evaluation mode and of the batch. Random generators and buffers are restored.

        Args:
            name: ``"bf16"``, ``"fp16"``, ``"32"``, or one of Lightning's names for them.
            compare: False leaves the comparison out, for a ``train_fn`` that changes anything else:
                a queue, a counter, a file.

        Raises:
            ValueError: There is no such precision, or it needs weights of another type.
        """
        return self._set("precision", Precision.named(name, compares=compare))

    def grad_scaler(self, scaler: LossScaler | torch.amp.GradScaler | None) -> Self:
        """Scale the loss with this scaler; None turns scaling off, also in float16.

        A ``torch.amp.GradScaler`` does what it does in a plain loop: the gradients are unscaled,
        clipped with ``max_grad_norm`` and used. Checkpoints keep its state.

        Raises:
            ValueError: It lacks a method of a scaler.
        """
        lacking = [name for name in ("scale", "step", "update") if not hasattr(scaler, name)]
        if scaler is not None and lacking:
            raise ValueError(
                f"grad_scaler={type(scaler).__name__}: it has no method {', '.join(lacking)}; give "
                "a torch.amp.GradScaler or a flodl.GradScaler"
            )
        return self._set("scaler", scaler)

    def ema(self, decay: float) -> Self:
        """Average the weights over the steps, and evaluate with the average.

        ``model.fdl`` of the run directory holds the average; ``last.fdl`` holds both. On the
        handle, ``join()`` returns the weights of the last step and ``average()`` returns the
        average.
        """
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"ema={decay!r}: it must be at least 0 and below 1, such as 0.999")
        return self._set("ema", float(decay))

    def state(self, name: str, value: object) -> Self:
        """Save the state of an object of the program in every checkpoint, and restore it.

        flodl keeps the model, its optimizer, schedule, data position and random generators. It does
        not know other objects that change during a training: the second optimizer of a GAN, a
        queue, an averaged model. What is not registered is lost in a resume.

        Args:
            name: Its name in checkpoints, used once.
            value: Any object with ``state_dict`` and ``load_state_dict``, such as an optimizer or a
                module. Or a function ``(model) -> object`` that is called once, after the model is
                built. The state holds tensors, numbers, strings, booleans, None, and lists, tuples
                and mappings of these.

        Raises:
            ValueError: The name is used already, or the object lacks one of the two methods.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"state({name!r}, …): the name must be a text, such as 'critic'")
        states = self._settings.setdefault("states", {})
        if name in states:
            raise ValueError(f"state({name!r}, …) is called twice: give each object its own name")
        missing = lacking(value)
        if missing and (isinstance(value, type) or not callable(value)):
            raise ValueError(
                f"state({name!r}, …): a {type(value).__name__} has no method "
                f"{', '.join(missing)}: write both, or register what has them"
            )
        states[name] = value
        return self

    def epoch_fn(self, callback: Callable[[int, Worker], object]) -> Self:
        """Call ``callback(epoch, worker)`` before each epoch; an error in it ends the training."""
        return self._set("epoch_fn", callable_setting("epoch_fn", callback))

    def metrics_fn(self, callback: Callable[[EpochMetrics], object]) -> Self:
        """Call ``callback(metrics)`` after each epoch; an error in it is only reported."""
        return self._set("metrics_fn", callable_setting("metrics_fn", callback))

    def eval_fn(self, callback: Callable[[Any], Mapping[str, float | Tensor]]) -> Self:
        """Call ``callback(model)`` after each epoch, in eval mode and without gradients.

        The values it returns join the scalars of the epoch. An error in it ends the training,
        because a restart costs less than hours of training without these values.
        """
        return self._set("eval_fn", callable_setting("eval_fn", callback))

    def sharded(self, on: bool = True) -> Self:
        """Let FSDP share the model among the ranks; the model factory calls ``fully_shard``.

        - Each rank trains on the data set it is given. Give each rank its own part of the data; all
          parts must be equally long.
        - FSDP averages the gradients. Besides, the ranks exchange only checkpoints, and what they
          are asked for.
        - For a checkpoint all ranks gather the tensors, and the lowest rank writes its run
          directory. The file holds the buffers of the lowest rank, because FSDP does not share
          buffers.
        - A signal to one rank, an act of ``fdl runs tell``, and ``run.stop`` of a callback reach
          all ranks. They act one step later, all after the same step.
        """
        return self._set("sharded", bool(on))

    def run(self) -> TrainerHandle:
        """Train, and return when the training is done.

        - If torchrun, ``fdl train --ranks`` or a batch system started this process, it trains with
          all the other ranks.
        - Otherwise it starts its own processes if ``ranks`` asks for them, or if several GPUs are
          usable and no device was chosen.
        - Otherwise it trains alone.

        Ctrl-C and SIGTERM stop at the next step boundary and write a checkpoint. A second signal
        stops at once. In a SLURM job, SIGUSR1 does the same. When SLURM queues the job again, the
        run directory continues from that checkpoint without an option.

        Raises:
            ValueError: A required setting is missing, or settings contradict each other. Or no
                batch would be full with ``drop_last=True``, no epoch reports a metric that is
                watched, or ``train_fn`` does not return a scalar loss.
            RunDirectoryError: There is no checkpoint to resume from.
            DataError: The data set is empty, malformed or too large.
            DivergedError: A loss or a parameter is no longer finite.
            CheckpointError: The checkpoint to resume from cannot be used.
            DistributedError: The ranks cannot continue together.
            WorkersFailed: A rank that this call started failed too often.
            KeyboardInterrupt: Ctrl-C; the message names the checkpoint.
            Terminated: SIGTERM, with exit code 143; SIGUSR1 in a SLURM job, with 138.
        """
        self._settle_iterable()
        missing = [name for name in _REQUIRED if name not in self._settings]
        if missing:
            calls = ", ".join(f".{name}(…)" for name in missing)
            raise ValueError(f"Trainer.builder needs {calls} before .run()")
        ranks, outside = self._rank_settings()
        settings = {**outside, **self._settings, "distributed": ranks}
        if not is_iterable(settings["dataset"]):
            if settings.get("count_samples") is not None:
                raise ValueError(
                    f"batch_size is a function, but a {type(settings['dataset']).__name__} has "
                    "samples and no batches: give .batch_size(…) a number"
                )
            samples = len(as_batch_data_set(settings["dataset"]))
            drop_last = settings.get("loader_options", {}).get("drop_last", False)
            check_batch_size(settings["batch_size"], samples, drop_last=drop_last)
        leads = is_first_rank()
        if leads:
            check_files(settings)
        if settings.get("deterministic") and settings.get("engine", "eager") != "eager":
            raise ValueError(
                f"engine={settings['engine']!r} together with deterministic(): only the eager "
                "engine repeats itself to the bit; leave one of the two out"
            )
        check_schedules(settings)
        settings = settled_precision(settled_guards(settings))
        if settings.get("autocast") == torch.float16 and "scaler" not in settings:
            settings = {**settings, "scaler": GradScaler()}
        plan = TrainingPlan(**settings)
        if (repeat := repeat_wanted()) is not None:
            plan = repeat.applied(plan)
        if self._given is not None and leads and resume_source(plan) is None:
            self._given.begin_run()
        return self._runner(plan)

    def _settle_iterable(self) -> None:
        """Take the batch size of a torch ``DataLoader``; refuse epochs that cannot be repeated."""
        dataset = self._settings.get("dataset")
        if is_iterable(dataset):
            size = settled_batch_size(dataset, self._settings.get("batch_size"))
            if size is not None or isinstance(dataset, torch.utils.data.DataLoader):
                self._settings["batch_size"] = size
            check_epochs(dataset, self._settings.get("num_epochs", 1))


_REQUIRED = ("dataset", "batch_size", "num_epochs")
_OWN_LOADER_SETTINGS = {"dataset", "batch_size", "device", "seed", "cache"}
