"""The loop of a training on one device: from a plan to a trained model."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import nn

from flodl import log
from flodl.data import DataLoader
from flodl.errors import DivergedError, FlodlError
from flodl.monitor import EpochMetrics, Monitor
from flodl.train.checkpoints import CheckpointKeeper, non_finite_parameters
from flodl.train.device import select_device
from flodl.train.engine import EagerEngine
from flodl.train.handle import TrainerHandle, introduce
from flodl.train.interrupt import InterruptRequest
from flodl.train.losses import LossLog, loss_log
from flodl.train.metrics import ScalarLog, recording_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from flodl.train.engine import TrainFn
    from flodl.train.rate import Schedule
    from flodl.train.run_directory import EndState, RunDirectory

    ModelFactory: TypeAlias = Callable[[torch.device], nn.Module]
    OptimizerFactory: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@final
@dataclass(frozen=True, slots=True)
class Worker:
    """What an ``epoch_fn`` may look at and change before its epoch begins."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    rank: int = 0
    world_size: int = 1


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """Everything a training needs to know, checked; see ``TrainerBuilder`` for the meaning."""

    model_factory: ModelFactory
    optimizer_factory: OptimizerFactory
    train_fn: TrainFn
    dataset: Any
    batch_size: int
    num_epochs: int
    seed: int = 42
    device: torch.device | str | None = None
    scheduler: Callable[[int], Schedule] | None = None
    max_grad_norm: float | None = None
    epoch_fn: Callable[[int, Worker], object] | None = None
    metrics_fn: Callable[[EpochMetrics], object] | None = None
    eval_fn: Callable[[Any], Mapping[str, float | Tensor]] | None = None
    checkpoint_every: int = 1
    checkpoint_fn: Callable[[int, Any], object] | None = None
    monitor: Monitor | None = None
    run_dir: RunDirectory | None = None


def train(plan: TrainingPlan) -> TrainerHandle:
    """Carry out a plan; whatever ends it, the run directory and the monitor learn how."""
    monitor = plan.monitor
    if monitor is None and plan.run_dir is not None:
        monitor = Monitor(plan.num_epochs)
    history: list[EpochMetrics] = []
    try:
        interrupt = InterruptRequest()
        loop = TrainingLoop(plan, monitor, interrupt, history)
        # Not earlier: while data is being loaded there is no step that could end.
        with interrupt:
            loop.run()
    except BaseException as error:
        _close(plan.run_dir, monitor, _state(error), len(history), error)
        raise
    _close(plan.run_dir, monitor, "complete", len(history), None)
    return TrainerHandle(loop.model, history)


@final
class TrainingLoop:
    """Builds what a plan names, once, and trains it epoch by epoch."""

    def __init__(
        self,
        plan: TrainingPlan,
        monitor: Monitor | None,
        interrupt: InterruptRequest,
        history: list[EpochMetrics],
    ) -> None:
        self._plan = plan
        self._monitor = monitor
        self._interrupt = interrupt
        self._history = history
        device = select_device(plan.device)
        self._loader = DataLoader(
            plan.dataset, plan.batch_size, device=device, seed=plan.seed, drop_last=True
        )
        torch.manual_seed(plan.seed)
        self.model = build_model(plan.model_factory, device)
        optimizer = build_optimizer(plan.optimizer_factory, self.model)
        self.model.train()
        self._engine = EagerEngine(
            self.model,
            optimizer,
            plan.train_fn,
            schedule=plan.scheduler(1) if plan.scheduler is not None else None,
            max_grad_norm=plan.max_grad_norm,
        )
        self._worker = Worker(self.model, optimizer, device)
        self._keeper = CheckpointKeeper(self.model, plan.run_dir)
        if monitor is not None:
            introduce(self.model, monitor)
            if plan.run_dir is not None:
                plan.run_dir.attach(monitor)

    def run(self) -> None:
        """Train every epoch, then write the model."""
        try:
            for epoch in range(self._plan.num_epochs):
                metrics = self._epoch(epoch)
                self._history.append(metrics)
                self._report(metrics)
                self._stop_if_requested(epoch + 1, 0)
        except DivergedError as error:
            raise DivergedError(
                f"{error}; {self._keeper.whereabouts()}. Lower the learning rate, clip the "
                "gradients (max_grad_norm), or look for bad values in the data",
                epoch=error.epoch,
                step=error.step,
            ) from None
        self._keeper.save_final(self._plan.num_epochs, self._last_values())

    def _epoch(self, epoch: int) -> EpochMetrics:
        if self._plan.epoch_fn is not None:
            try:
                self._plan.epoch_fn(epoch, self._worker)
            except Exception as error:
                error.add_note(f"in epoch_fn before epoch {epoch} (counted from 0)")
                raise
        batches = self._loader.epoch(epoch)
        steps = len(batches)
        losses = loss_log(self._loader.device, epoch, steps)
        scalars = ScalarLog()
        started = time.monotonic()
        with recording_into(scalars):
            for step, batch in enumerate(batches):
                self._stop_if_requested(epoch, step, losses)
                try:
                    self._engine.step(batch, losses)
                except Exception as error:
                    error.add_note(f"in epoch {epoch}, step {step} (both counted from 0)")
                    raise
        avg_loss = losses.mean()
        self._check_parameters(epoch, steps - 1)
        epoch_ms = (time.monotonic() - started) * 1000
        return EpochMetrics(
            epoch=epoch,
            avg_loss=avg_loss,
            scalars={**self._model_metrics(), **scalars.means(), **self._evaluate(epoch)},
            epoch_ms=epoch_ms,
            throughput=steps * self._loader.batch_size / epoch_ms if epoch_ms else 0.0,
            share=[1.0],
        )

    def _check_parameters(self, epoch: int, step: int) -> None:
        """Refuse a model that its last steps have broken, whatever the losses were."""
        broken = non_finite_parameters(self.model)
        if broken:
            raise DivergedError(
                f"{', '.join(broken[:3])}{' and more' if broken[3:] else ''} hold values that are "
                f"not finite at epoch {epoch}, step {step} (both counted from 0)",
                epoch=epoch,
                step=step,
            )

    def _model_metrics(self) -> dict[str, float]:
        """Close the epoch of a model that observes itself, and take what it recorded."""
        end_epoch = getattr(self.model, "end_epoch", None)
        if callable(end_epoch):
            end_epoch()
        latest = getattr(self.model, "latest_metrics", None)
        return {name: float(value) for name, value in latest()} if callable(latest) else {}

    def _evaluate(self, epoch: int) -> dict[str, float]:
        if self._plan.eval_fn is None:
            return {}
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                return _evaluated(self._plan.eval_fn, self.model)
        except Exception as error:
            error.add_note(f"in eval_fn after epoch {epoch} (counted from 0)")
            raise
        finally:
            # One by one: a part that its owner keeps in eval mode stays there.
            for module, training in modes:
                module.training = training

    def _report(self, metrics: EpochMetrics) -> None:
        """Tell everyone about a finished epoch, and keep its checkpoint when it is due."""
        plan, version = self._plan, metrics.epoch + 1
        if self._monitor is not None:
            self._monitor.log(metrics.epoch, metrics.epoch_ms / 1000, metrics)
        if plan.metrics_fn is not None:
            _call("metrics_fn", metrics.epoch, plan.metrics_fn, metrics)
        if version % plan.checkpoint_every == 0:
            self._keeper.save_last(version, self._last_values())
            if plan.checkpoint_fn is not None:
                _call("checkpoint_fn", metrics.epoch, plan.checkpoint_fn, version, self.model)

    def _stop_if_requested(self, epoch: int, step: int, losses: LossLog | None = None) -> None:
        """Honour Ctrl-C: keep the state if it is good, and leave."""
        if not self._interrupt.requested:
            return
        if losses is not None:
            losses.check()
        if not non_finite_parameters(self.model):
            self._keeper.save_last(epoch, self._last_values(), step=step)
        raise KeyboardInterrupt(
            f"stopped after {epoch} complete epochs and {step} steps; {self._keeper.whereabouts()}"
        )

    def _last_values(self) -> dict[str, float]:
        if not self._history:
            return {}
        last = self._history[-1]
        return {"loss": last.avg_loss, **last.scalars}


def build_model(factory: ModelFactory, device: torch.device) -> nn.Module:
    """Call a model factory and move what it made to the device.

    Raises:
        TypeError: It made something that is not a module.
    """
    model = factory(device)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model factory returned a {type(model).__name__}, not a torch.nn.Module"
        )
    return model.to(device)


def build_optimizer(factory: OptimizerFactory, model: nn.Module) -> torch.optim.Optimizer:
    """Call an optimizer factory with the parameters of a model that is on its device.

    Raises:
        TypeError: It made something that is not an optimizer.
    """
    optimizer = factory(list(model.parameters()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"the optimizer factory returned a {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer"
        )
    return optimizer


def _evaluated(
    eval_fn: Callable[[Any], Mapping[str, float | Tensor]], model: nn.Module
) -> dict[str, float]:
    values = eval_fn(model)
    if not isinstance(values, Mapping):
        raise TypeError(
            f"eval_fn returned a {type(values).__name__}; "
            "return a mapping such as {'accuracy': 0.9}"
        )
    return {str(name): float(value) for name, value in values.items()}


def _call(name: str, epoch: int, callback: Callable[..., Any], *args: object) -> Any:
    """Call back into the user's program; what it raises is reported and goes no further."""
    try:
        return callback(*args)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.warning(
            f"{name} failed in epoch {epoch} and training goes on: "
            f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        )
        log.debug(traceback.format_exc().rstrip())
        return None


def _state(error: BaseException) -> EndState:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "diverged" if isinstance(error, DivergedError) else "failed"


def _close(
    run: RunDirectory | None,
    monitor: Monitor | None,
    state: EndState,
    epochs: int,
    error: BaseException | None,
) -> None:
    try:
        if monitor is not None:
            monitor.finish(state)
    finally:
        if run is not None:
            _finish_run(run, state, epochs, error)


def _finish_run(
    run: RunDirectory, state: EndState, epochs: int, error: BaseException | None
) -> None:
    try:
        run.finish(state, epochs=epochs, error=error)
    except FlodlError as failure:
        # The end of the training itself is what the caller must hear of.
        log.warning(str(failure))
