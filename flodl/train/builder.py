"""The settings of a training, collected one call at a time, and its start."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias, final

from torch import nn

from flodl.data.loader import DataLoader
from flodl.monitor.mlflow import MlflowSink
from flodl.monitor.tensorboard import TensorBoardSink
from flodl.monitor.wandb import WandbSink, run_identity
from flodl.ranks.launch.join import is_first_rank
from flodl.ranks.settings import (
    RANK_SETTINGS,
    DdpRunConfig,
    of_any_training,
    rank_settings,
    settings_of,
    settings_outside,
)
from flodl.setting import whole
from flodl.train.observers.early_stop import EarlyStop, StopMode
from flodl.train.observers.steering import LiveSetting
from flodl.train.run.part_states import lacking
from flodl.train.run.resume import resume_source
from flodl.train.settings import TrainingPlan
from flodl.train.settings.compute import settled_computing
from flodl.train.settings.data import settled_data
from flodl.train.settings.methods import SettingMethods
from flodl.train.settings.records import check_files
from flodl.train.settings.user_parts import factories, takes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Self

    import torch

    from flodl.monitor.timeline import Timeline
    from flodl.monitor.wandb import Mode
    from flodl.train.callbacks import Callback
    from flodl.train.handle import TrainerHandle
    from flodl.train.observers.steering import Value
    from flodl.train.settings import ModelFactory, OptimizerFactory
    from flodl.train.settings.records import SinkFactory
    from flodl.train.step.base import TrainFn

    Runner: TypeAlias = Callable[[TrainingPlan], TrainerHandle]
    """Carries out a plan, on one rank or several."""


@final
class TrainerBuilder(SettingMethods):
    """Collects the settings of a training; :meth:`run` passes them to a runner as one plan.

    Required: :meth:`dataset`, :meth:`batch_size`, :meth:`num_epochs`. The same program trains on
    one device and on many ranks; settings of ranks have no effect on one device.

    The methods of this class take several values, or add to what is there. The others set one value
    and are made from the fields of the settings.
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
        self._settings |= {
            "model_factory": model_factory,
            "optimizer_factory": optimizer_factory,
            "train_fn": takes("train_fn", train_fn, "model", "batch"),
        }

    def _set(self, name: str, value: object) -> Self:
        settings = self._settings | {name: value}
        if name in RANK_SETTINGS:
            rank_settings(settings)  # refuses what contradicts an earlier call
        self._settings = settings
        return self

    def batch_size(self, batch_size: int | Callable[[Any], int]) -> Self:
        """Set the samples per batch; the last batch of an epoch may be smaller.

        A single remaining sample joins the batch before it. A ``DataLoader`` of torch has its own
        batch size: leave this call out, or give the same number.

        With a function, the data are batches already, as of any loader. The function gets a batch
        and returns the number of its samples; reports use it. Without it, the number is the length
        of the first tensor of a batch.
        """
        counts = callable(batch_size)
        if str(batch_size) == "auto":
            raise ValueError(
                "batch_size='auto': give a number, the training depends on it; "
                '.micro_batch("auto") computes a batch in pieces that fit into memory'
            )
        self._set("count_samples", batch_size if counts else None)
        size = None if counts else whole("batch_size", batch_size)
        return self._set("batch_size", size)

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

    def callbacks(self, *callbacks: Callback) -> Self:
        """Call the hooks of these callbacks; see :class:`~flodl.train.callbacks.Callback`.

        Several calls add up.
        """
        return self._set("callbacks", (*self._settings.get("callbacks", ()), *callbacks))

    def live_setting(self, name: str, default: Value, on_change: Callable[[Any], object]) -> Self:
        """Declare a setting that ``fdl runs tell RUN set NAME=VALUE`` can change during training.

        ``on_change(value)`` is called between two optimizer steps, on every rank after the same
        step, and before the first step of a resumed training if the value is not the default. A
        ``ValueError`` in it refuses the value, on all ranks alike; another error ends the training.

        Example::

            .live_setting("temperature", 1.0, on_change=sampler.set_temperature)

        Args:
            name: Its name: letters, digits and underscores.
            default: The value at the beginning: a number, a text, True or False.
            on_change: Takes the new value, which has the type of the default.

        Raises:
            ValueError: The name is taken or not allowed, or the default has another type.
        """
        declared = self._settings.get("live_settings", ())
        if any(one.name == name for one in declared):
            raise ValueError(f"live_setting({name!r}): it is declared already")
        return self._set("live_settings", (*declared, LiveSetting(name, default, on_change)))

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

        See :class:`~flodl.train.observers.early_stop.EarlyStop`.
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

    def tensorboard(self, folder: str | os.PathLike[str] | None = None) -> Self:
        """Write metrics, curves and media for TensorBoard; needs the package ``tensorboard``.

        Args:
            folder: Folder for the event files of this run only; None for ``tensorboard/`` in the
                run directory, or in the working directory without one.
        """
        return self._sink(
            lambda run: TensorBoardSink(
                folder or (run.path / "tensorboard" if run is not None else "tensorboard")
            )
        )

    def mlflow(
        self, store: str | os.PathLike[str] | None = None, *, experiment: str = "flodl"
    ) -> Self:
        """Log metrics, configuration and media to MLflow; needs the package ``mlflow``.

        Args:
            store: Tracking URI or folder; None for ``MLFLOW_TRACKING_URI`` or MLflow's default.
            experiment: The experiment for the run.
        """
        return self._sink(lambda _: MlflowSink(store, experiment=experiment))

    def wandb(
        self,
        project: str = "flodl",
        *,
        run_id: str | None = None,
        entity: str | None = None,
        mode: Mode | None = None,
    ) -> Self:
        """Log metrics, configuration and media to Weights & Biases; needs the package ``wandb``.

        Local files are in ``wandb/`` in the run directory, or in the working directory without one.

        Args:
            project: The project of the run.
            run_id: Identifies the run in its project; a run of this id is continued. None makes one
                from the run directory, so ranks that are started again continue their run.
            entity: User or team.
            mode: ``online``, ``offline`` or ``disabled``; None for ``WANDB_MODE``, else online.
        """
        return self._sink(
            lambda run: WandbSink(
                project,
                folder=None if run is None else run.path,
                run_id=run_id or (None if run is None else run_identity(run.path)),
                entity=entity,
                mode=mode,
            )
        )

    def _sink(self, make: SinkFactory) -> Self:
        return self._set("sinks", (*self._settings.get("sinks", ()), make))

    def timeline(self, timeline: Timeline | bool) -> Self:
        """Mark epochs in this timeline, and with several ranks every exchange.

        True makes a timeline of each rank for this training, samples its machine, and writes the
        timeline of all ranks into the run directory.
        """
        if isinstance(timeline, bool):
            return self._set("record_timeline", timeline)
        return self._set("timeline", timeline)

    def ddp(self, settings: DdpRunConfig | Mapping[str, Any]) -> Self:
        """Take many settings of ranks at once.

        Args:
            settings: A configuration, which sets every setting, or a mapping with the keys of a
                ``ddp:`` section. Values that are None are ignored.

        Raises:
            ValueError: A value is out of its range.
        """
        if isinstance(settings, DdpRunConfig):
            found = {one.name: getattr(settings, one.name) for one in fields(settings)}
        else:
            found = settings_of(settings) | of_any_training(settings)
        rank_settings(self._settings | found)
        self._settings |= found
        return self

    def no_divergence_guard(self) -> Self:
        """Let windows grow regardless of the distance between the ranks."""
        return self._set("divergence_guard", False)

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
        plan = self._plan()
        if self._given is not None and is_first_rank() and resume_source(plan) is None:
            self._given.begin_run()
        return self._runner(plan)

    def _plan(self) -> TrainingPlan:
        settings = settled_data({**settings_outside(), **self._settings})
        if is_first_rank():
            check_files(settings)
        return TrainingPlan.of(settled_computing(settings))


_OWN_LOADER_SETTINGS = {"dataset", "batch_size", "device", "seed", "cache"}
