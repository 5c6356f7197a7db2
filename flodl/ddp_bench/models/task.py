"""Tasks: a model and what is needed to train and evaluate it, in any mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from flodl.nn.schedule import Scheduler

DataName: TypeAlias = Literal["mnist", "cifar10", "shakespeare"]

Loss: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""``(model, output, target) -> loss``; the model is passed so that it can record scalars."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """How an evaluation is computed: a sum over the whole test set ÷ a count."""

    name: str
    higher_is_better: bool
    terms: Callable[[Tensor, Tensor], tuple[Tensor, int]]
    """``(output, target) -> (sum, count)`` of one batch."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One model with its data, loss, optimizer and evaluation.

    All functions are module-level functions, so that a task can be sent to another process.
    """

    name: str
    data: DataName
    build: Callable[[], nn.Module]
    """Builds the model on the CPU, with torch's default generator."""
    loss: Loss
    judgement: Judgement
    lr: float
    optimizer: Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
    schedule: Callable[[float, int], Scheduler] | None = None
    """``(lr, batches of the whole training) -> schedule``."""
    epochs: int
    reference: float | None = None
    """Published result on the real data set with the default settings."""
    own_target: bool = False
    """Whether the target is the input itself."""
    augment: bool = False
    """Whether to crop and flip every training image at random."""


def adam(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Make an Adam optimizer with its default settings."""
    return torch.optim.Adam(parameters, lr=lr)


def classification(model: nn.Module, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG001
    """Return the cross entropy of classes, logits ``[B, C]``, or of characters, ``[B, T, C]``."""
    return cross_entropy(output.flatten(0, -2), target.flatten())


def reconstruction(model: nn.Module, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG001
    """Return the mean squared error per pixel."""
    return mse_loss(output, target)


def _hits(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    return (output.argmax(dim=-1) == target).sum(), target.numel()


def _summed_cross_entropy(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    total = cross_entropy(output.flatten(0, -2), target.flatten(), reduction="sum")
    return total, target.numel()


def _summed_squares(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    return mse_loss(output, target, reduction="sum"), target.numel()


ACCURACY = Judgement(name="accuracy", higher_is_better=True, terms=_hits)
CHARACTER_LOSS = Judgement(name="test loss", higher_is_better=False, terms=_summed_cross_entropy)
SQUARED_ERROR = Judgement(name="mse", higher_is_better=False, terms=_summed_squares)
