"""Torch's learning-rate schedulers in a training: when they step, and what a checkpoint keeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from flodl import log
from flodl.errors import CheckpointError
from flodl.train.callbacks import Callback
from flodl.train.observers.early_stop import watched_value
from flodl.train.step.learning_rate import AT_ZERO, rates_of, set_rates

if TYPE_CHECKING:
    from flodl.monitor import EpochMetrics
    from flodl.train.callbacks import TrainingRun

Interval: TypeAlias = Literal["epoch", "step"]
SchedulerFactory: TypeAlias = Callable[[Any], Any]
"""``(optimizer) -> scheduler``; torch's schedulers have no common type for how they step."""


@final
@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings of a scheduler that a training will make.

    Raises:
        ValueError: The settings contradict each other.
    """

    factory: SchedulerFactory
    """``(optimizer) -> scheduler``; called once."""
    interval: Interval = "epoch"
    """Step the scheduler after each ``"epoch"`` or after each optimizer ``"step"``."""
    monitor: str | None = None
    """The metric for a ``ReduceLROnPlateau``: ``"loss"`` for the mean loss of the epoch, else the
    name of a scalar, such as one that ``eval_fn`` returns."""

    def __post_init__(self) -> None:
        given: object = self.factory
        if isinstance(given, LRScheduler):
            name = type(given).__name__
            raise ValueError(
                f"lr_scheduler got a {name} and needs a function that makes one: write "
                f".lr_scheduler(lambda optimizer: {name}(optimizer, …))"
            )
        if not callable(given):
            raise ValueError(f"lr_scheduler={given!r}: it must be a function")
        if self.interval not in get_args(Interval):
            raise ValueError(
                f"lr_scheduler interval={self.interval!r}: use one of "
                f"{', '.join(map(repr, get_args(Interval)))}"
            )
        if self.monitor is not None and self.interval == "step":
            raise ValueError(
                f"lr_scheduler monitor={self.monitor!r} with interval='step': a metric is known "
                "once per epoch; leave interval out"
            )


@final
class TorchSchedule(Callback):
    """A scheduler of torch that steps with a training.

    Args:
        settings: Make the scheduler, and say when it steps.
        optimizer: Gets the learning rates.
        steps: Optimizer steps of the whole training; None if unknown.
        epochs: Epochs of the whole training.

    Raises:
        TypeError: The factory did not return a scheduler.
        ValueError: The scheduler belongs to another optimizer, lacks the metric it steps with, or
            ends before the training does.
    """

    def __init__(
        self, settings: SchedulerSettings, optimizer: Optimizer, *, steps: int | None, epochs: int
    ) -> None:
        self._settings, self._optimizer = settings, optimizer
        self._length = steps if settings.interval == "step" else epochs
        self._scheduler = scheduler = settings.factory(optimizer)
        self._kind = type(scheduler).__name__
        self._done = 0
        self._factor = 1.0
        self._plain: list[float] = []
        self._scaled: list[float] = []
        methods = ("step", "state_dict", "load_state_dict")
        if not all(callable(getattr(scheduler, name, None)) for name in methods):
            raise TypeError(
                f"the lr_scheduler factory returned a {self._kind}, not a scheduler of torch: "
                "return one, such as torch.optim.lr_scheduler.StepLR(optimizer, 30)"
            )
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ValueError(
                f"the {self._kind} belongs to another optimizer: make it inside the function, "
                f"such as .lr_scheduler(lambda optimizer: {self._kind}(optimizer, …))"
            )
        self._check_metric()
        if problem := self._too_short():
            raise ValueError(problem)
        self._warn_of_length()

    @property
    def by_step(self) -> bool:
        """Whether it steps after every optimizer step instead of every epoch."""
        return self._settings.interval == "step"

    def end_step(self) -> None:
        """Call this after each step of the optimizer."""
        if self.by_step:
            self._step()

    def advance(self, steps: int) -> None:
        """Call this after ``steps`` optimizer steps of the whole training."""
        while self.by_step and self._done < steps:
            self._step()

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:  # noqa: ARG002
        """Step the schedulers that step by epoch.

        Raises:
            ValueError: The epoch did not report the metric that the scheduler steps with.
        """
        if self.by_step:
            return
        monitor = self._settings.monitor
        if monitor is None:
            self._step()
        else:
            self._step(watched_value(metrics, monitor, "lr_scheduler"))

    def ask_for(self, rate: float) -> float:
        """Scale all rates from now on so that the first one is this one; return the rate before.

        The scheduler itself sees its own rates, so every kind keeps its own shape.

        Raises:
            ValueError: The rate is 0 now, so no factor gives another one.
        """
        before, plain = rates_of(self._optimizer), self._own_rates()
        if not plain[0]:
            raise ValueError(AT_ZERO)
        self._scale(rate / plain[0], plain)
        return before[0]

    def asked(self) -> dict[str, Any]:
        """Return what :meth:`ask_for` has changed, as JSON values; empty if nothing."""
        if self._factor == 1.0:
            return {}
        return {"factor": self._factor, "plain": self._own_rates()}

    def restore_asked(self, asked: Mapping[str, Any]) -> None:
        """Continue with the result of :meth:`asked`; the optimizer has its rates already."""
        if asked:
            self._scale(float(asked["factor"]), [float(rate) for rate in asked["plain"]])

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed training."""
        return {
            "kind": self._kind,
            "interval": self._settings.interval,
            "done": self._done,
            "state": self._scheduler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the rates themselves are in the state of the optimizer.

        Raises:
            CheckpointError: It is the state of another scheduler, or ends before this training
                does.
        """
        before = f"{state['kind']} by {state['interval']}"
        now = f"{self._kind} by {self._settings.interval}"
        if before != now:
            raise CheckpointError(
                f"the checkpoint has the state of a {before}, and .lr_scheduler(…) makes a {now}: "
                "resume with the scheduler of the saved training"
            )
        self._scheduler.load_state_dict(_alike(state["state"], self._scheduler.state_dict()))
        self._done = int(state["done"])
        if problem := self._too_short():
            raise CheckpointError(f"the checkpoint's schedule is over: {problem}")

    def _step(self, *metric: float) -> None:
        # The fused step does not call `optimizer.step`, in which torch's schedulers set this mark.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        if self._factor == 1.0:
            self._scheduler.step(*metric)
        else:
            set_rates(self._optimizer, self._own_rates())
            self._scheduler.step(*metric)
            self._scale(self._factor, rates_of(self._optimizer))
        self._done += 1

    def _own_rates(self) -> list[float]:
        """The rates of the scheduler, without the factor; the program may have changed them."""
        rates = rates_of(self._optimizer)
        if self._factor == 1.0:
            return rates
        known = dict(enumerate(zip(self._scaled, self._plain, strict=True)))
        return [
            known[at][1] if at in known and known[at][0] == rate else rate / self._factor
            for at, rate in enumerate(rates)
        ]

    def _scale(self, factor: float, plain: list[float]) -> None:
        self._factor, self._plain = factor, plain
        set_rates(self._optimizer, [rate * factor for rate in plain])
        self._scaled = rates_of(self._optimizer)

    def _check_metric(self) -> None:
        wants = any(
            parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            for parameter in inspect.signature(self._scheduler.step).parameters.values()
        )
        monitor = self._settings.monitor
        if wants and monitor is None:
            raise ValueError(
                f"{self._kind} steps with a metric, once per epoch: name it, such as "
                f".lr_scheduler(lambda optimizer: {self._kind}(optimizer), monitor='loss')"
            )
        if not wants and monitor is not None:
            raise ValueError(
                f"lr_scheduler monitor={monitor!r}: {self._kind} does not look at a metric; "
                "leave monitor out"
            )

    def _too_short(self) -> str | None:
        total = self._total()
        if not isinstance(self._scheduler, OneCycleLR) or total is None:
            return None
        if self._length is None or total >= self._length:
            return None
        return (
            f"{self._kind} ends after {total} {self._settings.interval}s and the training has "
            f"{self._length}: make it with total_steps={self._length}"
        )

    def _warn_of_length(self) -> None:
        total = self._total()
        if total is None or self._length is None or total <= self._length:
            return
        remedy = f"make it for {self._length}"
        if not self.by_step:
            remedy += ", or let it step with the optimizer: interval='step'"
        log.warning(
            f"{self._kind} is made for {total} steps and makes one per {self._settings.interval}, "
            f"which is {self._length}: it never gets to its end; {remedy}"
        )

    def _total(self) -> int | None:
        total = getattr(self._scheduler, "total_steps", None)
        return total if isinstance(total, int) else None


def _alike(saved: Any, current: Any) -> Any:
    """Give the mappings of a saved state their current classes, because torch uses a Counter."""
    if isinstance(saved, dict) and isinstance(current, dict):
        values = {key: _alike(value, current.get(key)) for key, value in saved.items()}
        return values if type(current) is dict else type(current)(values)
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        return [_alike(one, other) for one, other in zip(saved, current, strict=True)]
    return saved
