"""Applying a learning-rate schedule to an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

from torch.optim.lr_scheduler import LRScheduler

from flodl.nn.optim import set_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


class Schedule(Protocol):
    """Computes learning rates; it has no state and no reference to an optimizer."""

    def lr(self, step: int) -> float:
        """Return the learning rate of optimizer step ``step``, counted from 0 over the run."""


def make_schedule(factory: Callable[[int], Schedule], world_size: int) -> Schedule:
    """Call the factory of a schedule.

    Raises:
        ValueError: It returned something else, such as a scheduler of torch.
    """
    try:
        return checked_schedule(factory(world_size))
    except TypeError as error:
        if "is not an Optimizer" not in str(error):
            raise
        # Torch's error for `lambda optimizer: StepLR(optimizer, 30)` if it is called with a number.
        raise ValueError(steps_by_itself(None)) from error


def checked_schedule(schedule: Any) -> Schedule:
    """Return the schedule if it has ``lr(step)``.

    Raises:
        ValueError: It has no ``lr(step)``.
    """
    if isinstance(schedule, LRScheduler):
        raise ValueError(steps_by_itself(schedule))
    if not callable(getattr(schedule, "lr", None)):
        raise ValueError(
            f"the schedule is a {type(schedule).__name__} without a method lr(step): return an "
            "object that has one, such as flodl.nn.schedule.StepDecay(0.1, 1000, 0.5)"
        )
    checked: Schedule = schedule
    return checked


def steps_by_itself(scheduler: object) -> str:
    """Return the message for a scheduler of torch that was passed as a schedule."""
    kind = scheduler if isinstance(scheduler, type) else type(scheduler)
    name = "StepLR" if scheduler is None else kind.__name__
    return (
        f".scheduler(…) takes a schedule with lr(step), and {name} is a scheduler of torch: write "
        f".lr_scheduler(lambda optimizer: {name}(optimizer, …))"
    )


@final
class ScheduledRate:
    """Sets the scheduled learning rate and keeps the ratios between parameter groups.

    Group ``i`` gets ``lr · lr_i / lr_0``, where ``lr_i`` is its rate at the beginning. The ratio is
    1 if the first group began at 0. So groups with different rates stay different. For a group that
    is added later, the rate at that moment counts.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        # Not its list of groups, because loading a state replaces that list.
        self._optimizer = optimizer
        self._schedule = schedule
        self._late = isinstance(schedule, SteeredRate) and schedule.late
        self._first = self._rate_of(optimizer.param_groups[0])
        self._ratios: list[float] = []
        self._take_in(optimizer.param_groups)

    def apply(self, step: int) -> float:
        """Set the learning rates for an optimizer step; return that of the first group."""
        rate = self._schedule.lr(step)
        groups = self._optimizer.param_groups
        del self._ratios[len(groups) :]  # a guard may have gone back to before one was added
        if len(groups) > len(self._ratios):
            added = groups[len(self._ratios) :]
            self._take_in(added)
            for group in added:
                group.setdefault(FIRST_RATE, float(group["lr"]))
        for group, ratio in zip(groups, self._ratios, strict=True):
            set_rate(group, rate * ratio)
        return float(rate)

    def _take_in(self, groups: list[dict[str, Any]]) -> None:
        first = self._first
        self._ratios += [self._rate_of(group) / first if first else 1.0 for group in groups]

    def _rate_of(self, group: dict[str, Any]) -> float:
        """Return the rate of a group at the beginning of the schedule."""
        rate = float(group["lr"])
        # A resume finds the rate of a later step, and only the program knows the one it began with.
        return float(group.setdefault(FIRST_RATE, rate)) if self._late else rate


@final
class SteeredRate:
    """A schedule that can be scaled and replaced while an engine uses it.

    Args:
        schedule: None does not change the rates of the optimizer.
        scale: Factor of every rate.
        alone: Whether nothing else sets rates; False with a scheduler of torch.

    Attributes:
        scale: Factor of every rate; may be changed between two steps.
        factor: Another factor, of the rates that people asked for while it trains.
        late: Whether the program set the first schedule while it trained.
        on_first: Gets the first schedule that the program sets while it trains; None for nobody.
        position: Place in the schedule of the next step, if that is not the number of steps before
            it: several ranks count the batches of all of them.
    """

    late = False
    position: int | None = None

    def __init__(
        self, schedule: Schedule | None, scale: float = 1.0, *, alone: bool = True
    ) -> None:
        self._schedule = schedule
        self.scale = scale
        self.factor = 1.0
        self._alone = alone
        self.on_first: Callable[[Schedule], object] | None = None

    def lr(self, step: int) -> float:
        """Return the scaled rate of the schedule."""
        return self._plain(step) * self.scale * self.factor

    def ask_for(self, rate: float, step: int) -> float:
        """Scale the schedule so that its rate at a step is this one; return the rate before.

        Raises:
            ValueError: The schedule is 0 at this step, so no factor gives another rate.
        """
        plain = self._plain(step) * self.scale
        if not plain:
            raise ValueError(AT_ZERO)
        before, self.factor = plain * self.factor, rate / plain
        return before

    def _plain(self, step: int) -> float:
        assert self._schedule is not None  # noqa: S101 - called only with a schedule
        return self._schedule.lr(step if self.position is None else self.position)

    @property
    def schedule(self) -> Schedule | None:
        """This object if there is a schedule, else None; for :class:`StepSettings`."""
        return self if self._schedule is not None else None

    def multiply(self, factor: float, optimizer: torch.optim.Optimizer) -> None:
        """Multiply the rates from the next step on, with or without a schedule."""
        if self._schedule is not None:
            self.scale *= factor
            return
        scale_rates(optimizer, factor)

    def replace(self, schedule: Schedule) -> None:
        """Use another schedule from the next step on.

        Raises:
            ValueError: It has no ``lr(step)``, or something else already sets the rates.
        """
        if not self._alone:
            raise ValueError(
                "set_scheduler(…) in an epoch_fn: .lr_scheduler(…) already sets the learning "
                "rate; leave one of them out"
            )
        first = self._schedule is None
        self._schedule = checked_schedule(schedule)
        self.late |= first
        if first and self.on_first is not None:
            self.on_first(self)


FIRST_RATE = "initial_lr"
"""Option of a parameter group, as torch's schedulers name it: its rate when it was added."""

AT_ZERO = (
    "the schedule is at a rate of 0 now, and lr=… scales the schedule; try again in some steps"
)


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the learning rate of every parameter group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    """Set the learning rate of every parameter group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        set_rate(group, rate)


def scale_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply the learning rate of every parameter group."""
    set_rates(optimizer, [rate * factor for rate in rates_of(optimizer)])
