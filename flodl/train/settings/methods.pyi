"""Methods that set one value each.

Made by `python scripts/settings.py` from the fields of the settings; do not edit.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from flodl.monitor import EpochMetrics, Monitor
from flodl.ranks.averaging.outer_optimizer import OuterOptimizer
from flodl.ranks.settings import Backend, ExchangeFormat, Policy
from flodl.train.callbacks import Worker
from flodl.train.run.run_directory import RunDirectory
from flodl.train.step.learning_rate import Schedule
from flodl.train.step.precision import LossScaler
from flodl.train.step.torch_schedule import Interval, SchedulerFactory

class SettingMethods:
    """A method for each setting that is one value; the value is checked at the call."""

    _settings: dict[str, Any]
    def __init__(self) -> None: ...
    def _set(self, name: str, value: object) -> Self: ...
    def dataset(self, dataset: object) -> Self:
        """Train on this data set.

        * Tensors or arrays: ``(X, Y)``, ``{"x": X, "y": Y}``, a ``TensorDataset`` of torch, NumPy
          arrays, or the data sets of :mod:`flodl.data`. They stay in memory.
        * Samples with numbers, which can be read in any order: a ``DataSet``, a ``BatchDataSet``, a
          map-style data set of torch, a ``Dataset`` of the ``datasets`` library. Each sample is read
          once per epoch.
        * On one device, data that can only be iterated. The batches of a ``DataLoader`` of torch are
          handed over as they are, and so are those of any iterable with a function as
          :meth:`batch_size`. Samples are put into batches in their order: those of an
          ``IterableDataset``, of a streamed data set of the ``datasets`` library, or of a function that
          returns an iterator. See :class:`~flodl.data.IterableLoader`.
        """

    def num_epochs(self, num_epochs: int) -> Self:
        """Set the number of passes through the data set."""

    def seed(self, seed: int) -> Self:
        """Seed the generators of Python, NumPy and torch, and the order of the samples (default: 42)."""

    def device(self, device: torch.device | str | None) -> Self:
        """Train on this device (default: the first usable CUDA device, else the CPU)."""

    def cache(self, most_bytes: bool | int = True) -> Self:
        """Keep samples in memory once the first epoch has read them; later epochs reuse them.

        A random transform in the data set then draws once per sample instead of once per epoch.

        Args:
            most_bytes: Limit on the memory of this host, for all its ranks together; True for half of
                the available memory. Samples that do not fit are read in each epoch.
        """

    def sharded(self, on: bool = True) -> Self:
        """Let FSDP share the model among the ranks; the model factory calls ``fully_shard``.

        - Each rank trains on the data set it is given. Give each rank its own part of the data; all
          parts must be equally long.
        - FSDP averages the gradients. Besides, the ranks exchange only checkpoints, and what they are
          asked for.
        - For a checkpoint all ranks gather the tensors, and the lowest rank writes its run directory.
          The file holds the buffers of the lowest rank, because FSDP does not share buffers.
        - A signal to one rank, an act of ``fdl runs tell``, and ``run.stop`` of a callback reach all
          ranks. They act one step later, all after the same step.
        """

    def engine(self, name: str) -> Self:
        """How a Trainer computes a step: eager is a plain loop; auto, compiled, cuda_graph are faster (default: eager).

        ``"eager"`` equals a plain loop bit for bit. The others give the same numbers up
        to rounding. ``"auto"`` calls the program exactly as often as ``"eager"`` does. It measures
        tunings during the steps of the training and keeps those that are faster. Later runs of the
        program use its decision from their first step, so they repeat each other. The tunings are:

        - a fused optimizer step
        - another memory layout of values between image layers
        - another library for matrix products
        - fewer threads

        ``"auto"`` compiles only after :meth:`pure_step`.
        """

    def pure_step(self, on: bool = True) -> Self:
        """Declare that a step changes only the model and the optimizer, so it may run on copies.

        This lets the engine ``"auto"`` compile the step as well, and repeat it as a CUDA graph on a
        GPU. Compiling calls ``train_fn`` a few more times, with copies of the model. Do not declare
        this if ``train_fn`` changes anything else: a queue, a counter, a file, a second model.
        """

    def deterministic(self, on: bool = True) -> Self:
        """Give the same bits in every run, with the eager engine and deterministic algorithms only.

        No measurement decides anything, and neither does a decision kept from an earlier run. An
        operation without a deterministic algorithm raises ``RuntimeError``.
        """

    def accumulate(self, batches: int) -> Self:
        """Make one optimizer step from this many batches: the step uses their mean loss (default: 1).

        The last step of an epoch uses the remaining batches. Schedule and ``checkpoint_steps`` count
        optimizer steps.
        """

    def autocast(self, dtype: torch.dtype | None) -> Self:
        """Compute the forward pass in bfloat16 or float16, where torch considers that safe.

        float16 adds a :class:`~flodl.GradScaler`, see :meth:`grad_scaler`.
        """

    def precision(self, name: str, *, compare: bool = True) -> Self:
        """Choose the precision of a step by name: bf16, fp16 or 32; the weights stay in float32.

        ``bf16`` (or ``bf16-mixed``) and ``fp16`` (or ``16-mixed``) compute the forward pass and the
        loss under :meth:`autocast`. Checkpoints do not change. bfloat16 is fast on GPUs since Ampere,
        and on processors with AMX, ``avx512_bf16`` or ARM's ``bf16``. Other processors emulate it
        slowly; a warning then says so.

        A new training prints the loss of its first batch in this precision and in float32. For that,
        ``train_fn`` runs twice more, before the first step. It gets copies of the model in evaluation
        mode and of the batch. Random generators and buffers are restored.

        Args:
            name: ``"bf16"``, ``"fp16"``, ``"32"``, or one of Lightning's names for them.
            compare: False leaves the comparison out, for a ``train_fn`` that changes anything else: a
                queue, a counter, a file.

        Raises:
            ValueError: There is no such precision, or it needs weights of another type.
        """

    def grad_scaler(self, scaler: LossScaler | torch.amp.GradScaler | None) -> Self:
        """Scale the loss with this scaler; None turns scaling off, also in float16.

        A ``torch.amp.GradScaler`` does what it does in a plain loop: the gradients are unscaled,
        clipped with ``max_grad_norm`` and used. Checkpoints keep its state.

        Raises:
            ValueError: It lacks a method of a scaler.
        """

    def max_grad_norm(self, max_norm: float | None) -> Self:
        """Largest 2-norm of all gradients of a step (default: no limit). Longer gradients are scaled down."""

    def scheduler(self, factory: Callable[[int], Schedule] | None) -> Self:
        """Set the learning rate by step: ``factory(world_size)`` makes an object with ``lr(step)``.

        For schedulers of torch use :meth:`lr_scheduler`.
        """

    def lr_scheduler(
        self,
        factory: SchedulerFactory,
        interval: Interval = "epoch",
        monitor: str | None = None,
    ) -> Self:
        """Let a scheduler of torch set the learning rate.

        Examples::

            .lr_scheduler(lambda optimizer: StepLR(optimizer, 30))
            .lr_scheduler(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=900), "step")
            .lr_scheduler(lambda optimizer: ReduceLROnPlateau(optimizer), monitor="loss")

        Checkpoints hold its state, so a resumed training continues with the same rates. A step that the
        gradient scaler of float16 skips does not count. With several ranks, each rank has its own
        scheduler, and all have the same rates. ``interval="step"`` then counts the batches of all
        ranks, as ``.scheduler(…)`` does.

        Args:
            factory: ``(optimizer) -> scheduler``; called once.
            interval: Step the scheduler after each ``"epoch"`` or after each optimizer ``"step"``.
            monitor: The metric for a ``ReduceLROnPlateau``: ``"loss"`` for the mean loss of the epoch,
                else the name of a scalar, such as one that ``eval_fn`` returns.
        """

    def ema(self, decay: float | None) -> Self:
        """Average the weights over the steps, and evaluate with the average.

        ``model.fdl`` of the run directory holds the average; ``last.fdl`` holds both. On the handle,
        ``join()`` returns the weights of the last step and ``average()`` returns the average.
        """

    def guards(
        self,
        on: bool = True,
        *,
        spike: float | None = 30.0,
        window: int = 64,
        snapshots: int = 2,
        every: int | None = None,
        memory: int | None = None,
        attempts: int = 3,
        lower_lr: float = 0.5,
    ) -> Self:
        """Survive bad batches: go back, leave them out, continue; off by default.

        When a loss is nan, infinite or a spike, the training goes back to a snapshot in host memory.
        The same steps follow again, without the batches that showed it. Random numbers repeat, so the
        steps before these batches are the same to the bit. The second attempt at one place leaves out
        more batches before it, and lowers the learning rate. After the last attempt the training ends
        with :class:`~flodl.errors.DivergedError`, which names the first module that is not finite. To
        find it, the guard calls ``train_fn`` again. ``spike=None`` looks for nan and infinities only.

        A training without setbacks gives the same bits as one without guards. The training tutorial
        says what callbacks see, and what the run directory records.

        Args:
            on: False switches it off, also if a manifest asks for it.
            spike: Distance of a spike from the median of the last losses, in multiples of their spread
                (default: 30).
            window: Most losses that the median is taken of; the first 16 are not judged (default: 64).
            snapshots: States kept in host memory (default: 2).
            every: Optimizer steps between two snapshots (default: so that they take at most 0.25 % of
                the time). Several ranks use 100 unless this is set.
            memory: Most bytes of all snapshots of a process (default: half of the available memory).
            attempts: How often it goes back for one place in the data before it gives up (default: 3).
            lower_lr: Factor of the learning rate from the second attempt at one place on; 1 keeps the
                rate (default: 0.5).
        """

    def epoch_fn(self, callback: Callable[[int, Worker], object] | None) -> Self:
        """Call ``callback(epoch, worker)`` before each epoch; an error in it ends the training."""

    def metrics_fn(self, callback: Callable[[EpochMetrics], object] | None) -> Self:
        """Call ``callback(metrics)`` after each epoch; an error in it is only reported."""

    def eval_fn(self, callback: Callable[[Any], Mapping[str, float | Tensor]] | None) -> Self:
        """Call ``callback(model)`` after each epoch, in eval mode and without gradients.

        The values it returns join the scalars of the epoch. An error in it ends the training, because a
        restart costs less than hours of training without these values.
        """

    def checkpoint_every(self, epochs: int) -> Self:
        """Epochs between two checkpoints (default: 1)."""

    def checkpoint_steps(self, steps: int | None) -> Self:
        """Also write a checkpoint every ``steps`` optimizer steps, even inside an epoch."""

    def keep_best(self, metric: str = "loss", *, higher_is_better: bool = False) -> Self:
        """Keep the model of the best epoch as ``best.fdl`` of :meth:`run_dir`.

        With :meth:`ema` it holds the averaged weights, which were evaluated.

        Args:
            metric: ``"loss"`` for the mean loss of the epoch, else the name of a scalar, such as one
                that ``eval_fn`` returns.
            higher_is_better: True if larger values are better, as with accuracy.
        """

    def checkpoint_fn(self, callback: Callable[[int, Any], object] | None) -> Self:
        """Call ``callback(version, model)`` when a checkpoint is due; version = epoch + 1.

        An error in it is only reported.
        """

    def resume(self, source: str | os.PathLike[str] | None) -> Self:
        """Continue a training exactly where a checkpoint was written; None starts a new one.

        Args:
            source: The directory of a run, its ``last.fdl``, or ``"last"``. ``"last"`` is the newest
                incomplete run beside the run directory.
        """

    def monitor(self, monitor: Monitor | None) -> Self:
        """Log every epoch to this monitor, and finish it with the training."""

    def live(self, port: int = 0, host: str = "127.0.0.1", *, buttons: bool = False) -> Self:
        """Serve the live page during training, and print its address; port 0 picks a free port.

        It never stops a training: if the port is in use, it prints a warning and takes another port.

        Args:
            port: Port to listen on.
            host: Address to listen on.
            buttons: Show buttons that do what ``fdl runs tell`` does. The address then has a token:
                everybody who knows the whole address can act on the training.

        Raises:
            StateError: There is no such port.
        """

    def histograms(self, *, every: int = 100) -> Self:
        """Record histograms of all trainable weights and of their gradients; off by default.

        They are recorded at the first step, and at every ``every``-th: the weights that the step began
        with, and its gradients before they are clipped. With several ranks, rank 0 records its own
        weights. A step replayed as a CUDA graph has no gradients to read.

        Args:
            every: Optimizer steps between two records.
        """

    def progress(self, on: bool | None) -> Self:
        """Show the progress of an epoch: a bar on a terminal, or a line every 30 s in a pipe.

        Before the first step, the terminal shows what the training does: reading data, compiling.

        Args:
            on: None shows it on a terminal, and in a pipe if a monitor prints the epochs there. Nothing
                is shown if ``FLODL_VERBOSITY`` is quiet.
        """

    def run_dir(self, run: RunDirectory | None) -> Self:
        """Write checkpoints, metrics, log and report into this run directory.

        Without your own monitor, flodl makes one, which also prints the epochs on the terminal.
        """

    def trace(self, on: bool = True) -> Self:
        """Record in :meth:`run_dir` what every step does, to compare runs; default: on.

        ``steps.trace`` holds the samples and the loss of every step, and digests of weights and batches
        at some steps. It does not change the training.
        """

    def policy(self, policy: Policy | str) -> Self:
        """When the ranks average; ``auto``: ``sync`` on equal devices, else ``cadence`` (default: auto).

        ``sync`` averages gradients in every step, ``cadence`` weights after each window, and ``async``
        weights during the next window. Devices of one name are equal. A training of fewer than twelve
        windows takes ``sync`` on any devices.
        """

    def backend(self, backend: Backend | str) -> Self:
        """Average with ``nccl`` on the GPUs, or with ``cpu`` through main memory (default: nccl)."""

    def exchange(self, format: ExchangeFormat | str) -> Self:
        """Send gradients, or changes of weights, as ``float32``, ``bf16`` or ``int8`` (default: float32).

        ``bf16`` sends half of the bytes and rounds them; ``int8`` sends a quarter. Its rounding errors
        are added to the next exchange. Buffers and the state of optimizers are not rounded.
        """

    def anchor(self, batches: int) -> Self:
        """Batches of the slowest rank between two averages, at first (default: 10)."""

    def min_anchor(self, batches: int | None) -> Self:
        """Lower limit of the anchor (default: the anchor)."""

    def max_anchor(self, batches: int) -> Self:
        """Upper limit of the anchor (default: 200)."""

    def overhead_target(self, part: float) -> Self:
        """Part of the computing time that averages may take: 0.01 to 0.5 (default: 0.1).

        Above it, windows become longer.
        """

    def divergence_threshold(self, distance: float) -> Self:
        """Relative distance from the average that makes windows shorter (default: 0.05)."""

    def max_batch_diff(self, batches: int | None) -> Self:
        """Batches a rank may be ahead of another; 0: lockstep (default: no limit)."""

    def max_overshoot(self, batches: int | None) -> Self:
        """With ``async``: batches a rank may train while an average arrives (default: adapts)."""

    def snapshot_timeout(self, seconds: float) -> Self:
        """With ``cadence`` and backend ``cpu``: seconds to wait for a late rank (default: 5).

        After them, all ranks skip the average together.
        """

    def progressive_dispatch(self, on: bool | None) -> Self:
        """Hand out batches window by window (default: auto).

        False divides them at the start of an epoch. ``auto``, in Python None, does so for
        ``sync`` and with ``partition_ratios``.
        """

    def speed_hint(self, rank: int, ratio: float) -> Self:
        """Slow rank, and how many times slower than the others it is.

        A ratio below 1 is replaced by its reciprocal.
        """

    def speeds(self, speeds: Sequence[float] | None) -> Self:
        """Speed of each rank, relative to the others; not together with ``speed_hint``."""

    def partition_ratios(self, ratios: Sequence[float] | None) -> Self:
        """Fixed share of the data for each rank (default: by measured speed). Nothing is balanced then."""

    def lr_scale_ratio(self, ratio: float) -> Self:
        """Multiply the learning rate by 1 + this × (ranks - 1) (default: 0)."""

    def lr_world(self, world: Literal["count", "effective"]) -> Self:
        """What counts as ranks in the formula of ``lr_scale_ratio`` (default: count).

        ``count`` is their number, ``effective`` is ``(Σc)² / Σc²`` of their batches per window.
        """

    def micro_batch(self, samples: int | str | None) -> Self:
        """Compute a batch in pieces of so many samples (default: the whole batch).

        The step stays the same. With ``auto``, each rank takes what fits into its memory, as ``fdl plan
        --try`` measures it.
        """

    def average_optimizer_state(self, on: bool = True) -> Self:
        """Average the floating-point state of the optimizers, too; step counters take the maximum."""

    def outer_optimizer(self, outer: OuterOptimizer | None) -> Self:
        """Step from the last average to the new one with this: ``Nesterov(0.7, 0.9)``, or your own (default: none)."""

    def overlap(self, on: bool = True) -> Self:
        """With ``cadence``: continue to train while an average is under way."""

    def stream_epochs(self, on: bool | None) -> Self:
        """Let a window reach into the next epoch if nothing is due between the two (default: yes, except for ``sync``)."""

    def ranks(self, count: int | None) -> Self:
        """Processes to start if no launcher did (default: one per usable GPU)."""

    def elastic(self, on: bool = True) -> Self:
        """Let ranks come and go while the others train on; needs ``flodl[elastic]`` and ``cadence``.

        What a lost rank has trained since the last average is trained again by the others.
        """

    def min_ranks(self, count: int) -> Self:
        """With ``elastic``: the fewest ranks that train; fewer wait for others to join (default: 1)."""

    def max_restarts(self, count: int) -> Self:
        """How often all ranks start again when one is lost after a first step (default: 3)."""

    def simulate_ms(self, ms: Sequence[float] | None) -> Self:
        """Milliseconds per batch of each rank, to simulate unequal ranks. Batches are padded."""

    def simulate_speed(self, speeds: Sequence[float] | None) -> Self:
        """Speed of each rank, to simulate unequal ranks. Batches are stretched by ``1 / speed``."""

    def simulate_sync_ms(self, ms: float) -> Self:
        """Milliseconds to which averages are padded, to simulate a slow network (default: 0)."""
