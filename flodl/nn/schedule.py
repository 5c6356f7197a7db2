"""Learning-rate schedules as functions: the step number gives the rate.

Only :class:`PlateauScheduler` has a state, and no schedule knows an optimizer. A Trainer or a graph
asks for the rate of every step. In your own loop, call ``optimizer.set_lr(schedule.lr(step))``.
Where a torch scheduler is expected, wrap the schedule with :func:`as_torch_scheduler`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, Self, final, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@runtime_checkable
class Scheduler(Protocol):
    """Any object that returns the learning rate of a step."""

    def lr(self, step: int) -> float:
        """Learning rate of optimizer step ``step``, counted from 0.

        Raises:
            ValueError: ``step`` is negative.
        """


@final
@dataclass(frozen=True)
class StepDecay:
    """A rate that falls by a factor at regular intervals: b·γ^⌊t/s⌋.

    Attributes:
        base_lr: Initial rate b.
        step_size: Steps s between two falls.
        gamma: Factor γ of each fall.
    """

    base_lr: float
    step_size: int
    gamma: float

    def __post_init__(self) -> None:
        _check_rates(self, "base_lr", "gamma")
        _check_sizes(self, "step_size")

    def lr(self, step: int) -> float:
        """Learning rate of step ``step``."""
        return self.base_lr * self.gamma ** (_checked(step) // self.step_size)


@final
@dataclass(frozen=True)
class ExponentialLR:
    """A rate that falls by a factor at every step: b·γ^t.

    Attributes:
        base_lr: Initial rate b.
        gamma: Factor γ from step to step.
    """

    base_lr: float
    gamma: float

    def __post_init__(self) -> None:
        _check_rates(self, "base_lr", "gamma")

    def lr(self, step: int) -> float:
        """Learning rate of step ``step``."""
        return float(self.base_lr * self.gamma ** _checked(step))


@final
@dataclass(frozen=True)
class MultiStepLR:
    """A rate that falls by a factor at given steps: b·γ^(milestones reached).

    Attributes:
        base_lr: Initial rate b.
        milestones: Steps at which another factor applies, in any order.
        gamma: Factor γ of each fall.
    """

    base_lr: float
    milestones: Sequence[int]
    gamma: float

    def __post_init__(self) -> None:
        _check_rates(self, "base_lr", "gamma")
        milestones = tuple(sorted(self.milestones))
        if milestones and milestones[0] < 0:
            raise ValueError(f"milestones must be steps of at least 0, got {milestones[0]}")
        object.__setattr__(self, "milestones", milestones)

    def lr(self, step: int) -> float:
        """Learning rate of step ``step``."""
        return float(self.base_lr * self.gamma ** bisect_right(self.milestones, _checked(step)))


@final
@dataclass(frozen=True)
class CosineScheduler:
    """Half a cosine from one rate to another, then constant (Loshchilov and Hutter, 2017).

    m + ½(b−m)(1 + cos(π·min(t,T)/T)). Torch's ``CosineAnnealingLR`` rises again after T.

    Attributes:
        base_lr: Initial rate b.
        min_lr: Final rate m.
        total_steps: Steps T from b to m.
    """

    base_lr: float
    min_lr: float
    total_steps: int

    def __post_init__(self) -> None:
        _check_rates(self, "base_lr", "min_lr")
        _check_sizes(self, "total_steps")

    def lr(self, step: int) -> float:
        """Learning rate of step ``step``."""
        done = min(_checked(step), self.total_steps) / self.total_steps
        return _cosine(self.base_lr, self.min_lr, done)


@final
@dataclass(frozen=True)
class WarmupScheduler:
    """A linear rise before another schedule: target·(t+1)/W for t < W, then inner.lr(t−W).

    In total it lasts W steps longer than the inner schedule: give that one the remaining steps.

    Attributes:
        inner: The schedule after the rise.
        target_lr: Rate at the last step of the rise; normally the same as ``inner.lr(0)``.
        warmup_steps: Steps W of the rise; 0 skips it.
    """

    inner: Scheduler
    target_lr: float
    warmup_steps: int

    def __post_init__(self) -> None:
        _check_rates(self, "target_lr")
        _check_sizes(self, "warmup_steps", least=0)

    @property
    def total_steps(self) -> int | None:
        """Steps until the inner schedule ends; None if it has no end."""
        inner: int | None = getattr(self.inner, "total_steps", None)
        return None if inner is None else self.warmup_steps + inner

    def lr(self, step: int) -> float:
        """Learning rate of step ``step``."""
        if _checked(step) < self.warmup_steps:
            return self.target_lr * (step + 1) / self.warmup_steps
        return self.inner.lr(step - self.warmup_steps)

    def state_dict(self) -> dict[str, Any]:
        """State of the inner schedule; empty if that has no state."""
        return _state_of(self.inner)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the inner schedule."""
        _restore(self.inner, state)


@final
@dataclass(frozen=True)
class OneCycleLR:
    """A linear rise to a high rate, then half a cosine down, within one run (Smith, 2018).

    From max/25 to max over the first W = ⌊frac·T + ½⌋ steps, then back to max/25 at step T and
    constant from there.

    Attributes:
        max_lr: The highest rate.
        total_steps: Steps T in total.
        warmup_frac: Fraction of the steps in which the rate rises.
    """

    max_lr: float
    total_steps: int
    warmup_frac: float = 0.3

    def __post_init__(self) -> None:
        _check_rates(self, "max_lr")
        _check_sizes(self, "total_steps")
        if not 0 <= self.warmup_frac < 1:
            raise ValueError(
                f"warmup_frac must be at least 0 and below 1, got {self.warmup_frac!r}"
            )
        if self._rise() == self.total_steps:
            raise ValueError(
                f"warmup_frac {self.warmup_frac} of {self.total_steps} steps leaves none to come "
                "down in"
            )

    @classmethod
    def with_warmup_frac(cls, max_lr: float, total_steps: int, warmup_frac: float) -> Self:
        """Make a schedule; the same as the constructor with all three arguments."""
        return cls(max_lr, total_steps, warmup_frac)

    def lr(self, step: int) -> float:
        """Learning rate of step ``step``."""
        lowest = self.max_lr / 25
        rise = self._rise()
        now = min(_checked(step), self.total_steps)
        if now < rise:
            return lowest + (self.max_lr - lowest) * now / rise
        return _cosine(self.max_lr, lowest, (now - rise) / (self.total_steps - rise))

    def _rise(self) -> int:
        return math.floor(self.warmup_frac * self.total_steps + 0.5)


@final
@dataclass(frozen=True)
class CyclicLR:
    """A rate that alternates linearly between two values, without end (Smith, 2017).

    Attributes:
        base_lr: The lower rate; the schedule starts here.
        max_lr: The upper rate.
        steps_up: Steps of each rise.
        steps_down: Steps of each fall; default: as many as ``steps_up``.
    """

    base_lr: float
    max_lr: float
    steps_up: int
    steps_down: int | None = None

    def __post_init__(self) -> None:
        _check_rates(self, "base_lr", "max_lr")
        if self.steps_down is None:
            object.__setattr__(self, "steps_down", self.steps_up)
        _check_sizes(self, "steps_up", "steps_down")

    @classmethod
    def asymmetric(cls, base_lr: float, max_lr: float, steps_up: int, steps_down: int) -> Self:
        """Make a schedule; the same as the constructor with all four arguments."""
        return cls(base_lr, max_lr, steps_up, steps_down)

    def lr(self, step: int) -> float:
        """Learning rate of step ``step``."""
        up, down = self.steps_up, self.steps_down or self.steps_up
        position = _checked(step) % (up + down)
        height = position / up if position <= up else 1 - (position - up) / down
        return self.base_lr + (self.max_lr - self.base_lr) * height


@final
class PlateauScheduler:
    """A rate that falls when a metric stops improving.

    After ``patience`` observations in a row without a new lowest value, the rate is multiplied by
    ``factor`` and the count starts again. Torch's ``ReduceLROnPlateau`` differs: it waits for one
    more observation and requires an improvement by a threshold.

    Args:
        base_lr: Initial rate.
        patience: Observations without improvement before the rate falls, at least 1.
        factor: Factor of each fall, between 0 and 1.
        min_lr: Lowest rate.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self, base_lr: float, patience: int, factor: float = 0.1, min_lr: float = 0.0
    ) -> None:
        self.base_lr = base_lr
        self.patience = patience
        self.factor = factor
        self.min_lr = min_lr
        _check_rates(self, "base_lr", "min_lr")
        _check_sizes(self, "patience")
        if not 0 < factor < 1:
            raise ValueError(f"factor must be between 0 and 1, got {factor!r}")
        if min_lr > base_lr:
            raise ValueError(f"min_lr {min_lr} is above base_lr {base_lr}")
        self._lr = float(base_lr)
        self._best: float | None = None
        self._without_improvement = 0

    def observe(self, metric: float | Tensor) -> float:
        """Record a value of the metric, normally once per epoch.

        Args:
            metric: Lower is better. nan counts as no improvement.

        Returns:
            The learning rate from now on.
        """
        value = float(metric)
        if value < (math.inf if self._best is None else self._best):
            self._best = value
            self._without_improvement = 0
            return self._lr
        self._without_improvement += 1
        if self._without_improvement >= self.patience:
            self._lr = max(self._lr * self.factor, self.min_lr)
            self._without_improvement = 0
        return self._lr

    def lr(self, step: int = 0) -> float:  # noqa: ARG002 - schedules are asked with a step
        """The current learning rate; ``step`` is ignored."""
        return self._lr

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, as JSON values."""
        return {
            "lr": self._lr,
            "best": self._best,
            "without_improvement": self._without_improvement,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the arguments of the constructor stay."""
        self._lr = state["lr"]
        self._best = state["best"]
        self._without_improvement = state["without_improvement"]


def as_torch_scheduler(
    optimizer: Optimizer, schedule: Scheduler, last_epoch: int = -1
) -> LRScheduler:
    """Wrap a schedule as a torch scheduler.

    It sets the rate of step 0 at once and the next rate at every ``step()``. The first parameter
    group gets the scheduled rate. The other groups keep their current ratio to it. Its
    ``state_dict`` is plain data and holds the state of the schedule, if that has one.

    Args:
        optimizer: Any torch optimizer; rates that are tensors stay tensors.
        schedule: The schedule that gives the rates.
        last_epoch: Last finished step, to continue with an optimizer that was scheduled before.
    """
    return _CalculatedLR(optimizer, schedule, last_epoch)


@final
class _CalculatedLR(LRScheduler):
    def __init__(self, optimizer: Optimizer, schedule: Scheduler, last_epoch: int) -> None:
        self._schedule = schedule
        groups = optimizer.param_groups
        first, *_ = rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
        self._ratios = [rate / first if first else 1.0 for rate in rates]
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        rate = self._schedule.lr(self.last_epoch)
        return [rate * ratio for ratio in self._ratios]

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["_schedule"] = _state_of(self._schedule)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = dict(state_dict)
        _restore(self._schedule, own.pop("_schedule"))
        super().load_state_dict(own)


def _state_of(schedule: Scheduler) -> dict[str, Any]:
    state_dict = getattr(schedule, "state_dict", None)
    return {} if state_dict is None else dict(state_dict())


def _restore(schedule: Scheduler, state: Mapping[str, Any]) -> None:
    load_state_dict = getattr(schedule, "load_state_dict", None)
    if load_state_dict is not None and state:
        load_state_dict(state)


def _cosine(start: float, end: float, done: float) -> float:
    """Half a cosine from ``start`` to ``end``; ``done`` goes from 0 to 1."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * done))


def _checked(step: int) -> int:
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    return step


def _check_rates(schedule: object, *names: str) -> None:
    for name in names:
        value = getattr(schedule, name)
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{type(schedule).__name__}: {name} must be finite and at least 0, got {value!r}"
            )


def _check_sizes(schedule: object, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(schedule, name)
        if not isinstance(value, Integral) or value < least:
            raise ValueError(
                f"{type(schedule).__name__}: {name} must be a whole number of at least {least}, "
                f"got {value!r}"
            )
