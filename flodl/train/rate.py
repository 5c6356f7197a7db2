"""Applying a learning-rate schedule to an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

from torch import Tensor

if TYPE_CHECKING:
    import torch


class Schedule(Protocol):
    """A calculator of learning rates: no state, no reference to an optimizer."""

    def lr(self, step: int) -> float:
        """Return the learning rate of optimizer step ``step``, counted from 0 over the run."""


@final
class ScheduledRate:
    """Sets the scheduled learning rate and keeps the ratios between parameter groups.

    Group ``i`` gets ``lr · lr_i / lr_0`` with the rates the groups had at first (ratio 1 where
    the first group began at 0), so that groups made with different rates stay different.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule) -> None:
        self._groups = optimizer.param_groups
        self._schedule = schedule
        first, *_ = rates = [float(group["lr"]) for group in self._groups]
        self._ratios = [rate / first if first else 1.0 for rate in rates]

    def apply(self, step: int) -> None:
        """Set the learning rates for an optimizer step."""
        rate = self._schedule.lr(step)
        for group, ratio in zip(self._groups, self._ratios, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio
