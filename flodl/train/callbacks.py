"""What a training calls of the program: hooks, with the view that they receive, and evaluation."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from flodl import log
from flodl.errors import DivergedError
from flodl.nn.modes import evaluating
from flodl.nn.optim import set_rate
from flodl.ranks.launch.interrupt import Terminated
from flodl.train.metrics import RecordedValues, record_scalar, recording_into
from flodl.train.step.learning_rate import scale_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import Tensor, nn

    from flodl.monitor import EpochMetrics, Monitor
    from flodl.train.metrics import Reduction
    from flodl.train.run.run_directory import EndState
    from flodl.train.step.learning_rate import Schedule, SteeredRate


class TrainingRun:
    """A training in progress, as callbacks see it.

    Attributes:
        model: The model, on its device.
        optimizer: The optimizer over the parameters of the model.
        device: The device that trains.
        num_epochs: Planned number of epochs.
        epoch: Current epoch, counted from 0.
        step: Batches that this process has done in this epoch.
        global_step: Optimizer steps done in the whole run. Several ranks take them together with
            the policy ``sync``; with ``cadence`` and ``async``, each rank counts its own.
        monitor: Receives the records of the training, such as images; None if nothing records it.
        loss: The newest loss that could be read without waiting; on a GPU it is a little old. None
            before the first one.
        averaged: Whether all ranks had the same model when the latest epoch ended, so that it was
            evaluated. It is false only if an exchange was left out.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        num_epochs: int,
        history: Sequence[EpochMetrics],
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.num_epochs = num_epochs
        self.epoch = 0
        self.step = 0
        self.global_step = 0
        self.loss: float | None = None
        self.averaged = True
        self.monitor: Monitor | None = None
        self._history = history
        self._stopped: str | None = None

    @property
    def history(self) -> tuple[EpochMetrics, ...]:
        """The complete epochs, including those before a resume."""
        return tuple(self._history)

    @property
    def stopped(self) -> str | None:
        """The reason why the training ends early, once :meth:`stop` was called."""
        return self._stopped

    def log(self, name: str, value: float | Tensor, reduce: Reduction = "mean") -> None:
        """Report a value of a step, as :func:`flodl.record_scalar` does; in ``on_step_end``."""
        record_scalar(name, value, reduce)

    def stop(self, reason: str) -> None:
        """End the training after the current step or epoch; the training counts as complete."""
        if self._stopped is None:
            self._stopped = reason


@final
class Worker:
    """What an ``epoch_fn`` may read and change before its epoch begins.

    Attributes:
        model: The model, on its device.
        optimizer: The optimizer over the parameters of the model.
        device: The device on which this process trains.
        rank: Number of this process.
        world_size: Number of processes.
        local_step: Batches this process has trained.
        current_epoch: The epoch that begins, counted from 0.
        current_version: Number of averages of the ranks; 0 on one rank.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.model, self.optimizer, self.device = model, optimizer, device
        self.rank, self.world_size = rank, world_size
        self.local_step = self.current_epoch = self.current_version = 0
        self._rate: SteeredRate | None = None

    def steer(self, rate: SteeredRate) -> None:
        """Let this object change the learning rates of a training."""
        self._rate = rate

    @property
    def current_lr(self) -> float:
        """Learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group; a schedule overwrites it at each step."""
        for group in self.optimizer.param_groups:
            set_rate(group, lr)

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate of every group; a schedule overwrites it at each step."""
        scale_rates(self.optimizer, factor)

    def set_lr_scale(self, scale: float) -> None:
        """Multiply the rates of the schedule by this from now on; no effect without a schedule."""
        if self._rate is not None:
            self._rate.scale = scale

    def set_scheduler(self, schedule: Schedule) -> None:
        """Take the learning rates from another schedule from now on.

        A checkpoint holds no schedule: after a resume, ``epoch_fn`` has to set it again in the
        epoch that continues.

        Raises:
            ValueError: The schedule has no ``lr(step)``, or the training has an ``.lr_scheduler``.
        """
        if self._rate is not None:
            self._rate.replace(schedule)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Rewind:
    """A guard has taken a training back to an earlier step, and leaves batches out.

    Attributes:
        step: Optimizer steps done when the bad loss was found.
        restored_step: Optimizer steps done in the state that the training has now.
        epoch: The epoch of the batches that are left out, counted from 0.
        batches: Their numbers, counted from 0 in the epoch.
        samples: Numbers of their samples, in the order of the batches.
        attempt: How often the training went back for this place, counted from 1.
        reason: What was found: a loss or parameters.
    """

    step: int
    restored_step: int
    epoch: int
    batches: tuple[int, ...]
    samples: tuple[int, ...]
    attempt: int
    reason: str


class Callback:
    """Base of callbacks: override the hooks you need; the others cost nothing.

    An error in a hook ends the training, unlike an error in ``metrics_fn``.
    """

    def on_train_start(self, run: TrainingRun) -> None:
        """The model is built and restored from a checkpoint if asked; training begins next."""

    def on_epoch_start(self, run: TrainingRun) -> None:
        """The epoch ``run.epoch`` begins, or continues after a resume.

        In an epoch that continues, what this changes in model and optimizer is undone afterwards:
        the checkpoint holds what it changed when the epoch began.
        """

    def on_step_end(self, run: TrainingRun) -> None:
        """The optimizer made a step."""

    def on_rewind(self, run: TrainingRun, rewind: Rewind) -> None:
        """A guard went back; called on all ranks, before the steps are repeated.

        What the Trainer knows is restored: model, optimizer, schedule, average, random numbers,
        ``run.step`` and ``run.global_step``. Restore here what only your program knows, as it was
        after ``rewind.restored_step`` steps. A training never goes back past the start of an epoch.
        """

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:
        """An epoch is complete, with its evaluation; it is reported and saved after this call."""

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """The state is being saved in the background; it soon replaces ``path``, atomically."""

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        """The training ends with this error; an interruption is one, too."""

    def on_train_end(self, run: TrainingRun) -> None:
        """The training is complete; not called after an error."""


@final
class Hooks:
    """Calls a hook of every callback that overrides it.

    An observer of flodl may have a hook that callbacks of programs lack.

    Raises:
        TypeError: One of them is not a callback.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callback {callback!r}: {_remedy(callback)}")
        self.watches_steps = self.has("on_step_end")

    def add(self, callback: Callback) -> None:
        """Call one more callback, after the others."""
        self._callbacks += (callback,)

    def has(self, hook: str) -> bool:
        """Whether a callback overrides a hook."""
        return bool(self._own(hook))

    def call(self, hook: str, *args: object) -> None:
        """Call a hook of every callback, in the order in which they were given."""
        for method in self._own(hook):
            try:
                method(*args)
            except Exception as error:
                error.add_note(f"in {hook} of {type(getattr(method, '__self__', method)).__name__}")
                raise

    def tell_exception(self, run: TrainingRun, error: BaseException) -> None:
        """Call ``on_exception``; an error in it becomes a note of the original error."""
        for method in self._own("on_exception"):
            try:
                method(run, error)
            except Exception as failure:
                error.add_note(f"on_exception failed as well: {type(failure).__name__}: {failure}")

    def _own(self, hook: str) -> list[Callable[..., Any]]:
        base = getattr(Callback, hook, None)
        return [
            method
            for callback in self._callbacks
            if (method := getattr(callback, hook, None))
            and getattr(method, "__func__", None) is not base
        ]


def _remedy(callback: object) -> str:
    if isinstance(callback, type) and issubclass(callback, Callback):
        return f"it is a class; give an object of it, such as {callback.__name__}()"
    if isinstance(callback, list | tuple):
        return "give each callback as an argument of its own, such as .callbacks(*callbacks)"
    return "derive it from flodl.Callback"


def model_metrics(model: nn.Module) -> dict[str, float]:
    """End the epoch of a model that records metrics, and return them."""
    end_epoch = getattr(model, "end_epoch", None)
    if callable(end_epoch):
        end_epoch()
    latest = getattr(model, "latest_metrics", None)
    return {name: float(value) for name, value in latest()} if callable(latest) else {}


def evaluate(
    eval_fn: Callable[[Any], Mapping[str, float | Tensor]],
    model: nn.Module,
    averaged: AbstractContextManager[None],
    epoch: int,
) -> dict[str, float]:
    """Call ``eval_fn`` in eval mode, without gradients and with the averaged weights.

    Raises:
        TypeError: It did not return a mapping of numbers.
    """
    try:
        # It may call train_fn, and what that records belongs to no step.
        with evaluating(model), torch.no_grad(), averaged, recording_into(RecordedValues()):
            values = eval_fn(model)
            if not isinstance(values, Mapping):
                raise TypeError(
                    f"eval_fn returned a {type(values).__name__}; "
                    "return a mapping such as {'accuracy': 0.9}"
                )
            return {str(name): _number(name, value) for name, value in values.items()}
    except Exception as error:
        error.add_note(f"in eval_fn after epoch {epoch} (counted from 0)")
        raise


def _number(name: object, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        kind = type(value).__name__ if shape is None else f"tensor of shape {list(shape)}"
        raise TypeError(
            f"eval_fn returned a {kind} for {name!r}; return one number for each name"
        ) from None


def call_back(name: str, epoch: int, callback: Callable[..., Any], *args: object) -> Any:
    """Call a callback of the user's program; report an exception and do not raise it."""
    try:
        return callback(*args)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.warning(
            f"{name} failed in epoch {epoch} and training continues: "
            f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        )
        log.debug(traceback.format_exc().rstrip())
        return None


def end_state(error: BaseException) -> EndState:
    """Return the end state of a training that this error ends."""
    if isinstance(error, KeyboardInterrupt | Terminated):
        return "interrupted"
    return "diverged" if isinstance(error, DivergedError) else "failed"


def diverged(error: DivergedError, whereabouts: str, rate_note: str = "") -> DivergedError:
    """Return the error with the last good checkpoint and what to change.

    Args:
        error: Says what is not finite.
        whereabouts: Says where the last good checkpoint is.
        rate_note: Added to the learning rate in the text.
    """
    return DivergedError(
        f"{error}; {whereabouts}. Lower the learning rate{rate_note}, clip the gradients "
        "(max_grad_norm), or look for bad values in the data",
        epoch=error.epoch,
        step=error.step,
    )
