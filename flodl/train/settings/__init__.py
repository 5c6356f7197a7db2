"""The settings of a training: all of them together as a plan, and in files the parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias, final

import torch
from torch import nn

from flodl.ranks.settings import RANK_SETTINGS, DdpRunConfig, rank_settings
from flodl.train.settings.compute import ComputeSettings
from flodl.train.settings.data import DataSettings
from flodl.train.settings.records import RecordSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from flodl.train.step.base import TrainFn

    ModelFactory: TypeAlias = Callable[[torch.device], nn.Module]
    OptimizerFactory: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@final
@dataclass(frozen=True, kw_only=True)
class TrainingPlan(DataSettings, ComputeSettings, RecordSettings):
    """All settings of a training, checked; ``TrainerBuilder`` has a method for each."""

    model_factory: ModelFactory
    """``(device) -> module``, called once."""
    optimizer_factory: OptimizerFactory
    """``(parameters) -> optimizer``, called once."""
    train_fn: TrainFn
    """``(model, batch) -> loss``."""
    distributed: DdpRunConfig = field(default_factory=DdpRunConfig)
    """How ranks share the work."""
    whole: TrainingPlan | None = None
    """On a rank that neither writes nor prints: the plan if it does so one day; else None."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the plan of all settings of a builder, those of ranks among them.

        Raises:
            ValueError: A value is out of its range, or two settings contradict each other.
        """
        own = {name: value for name, value in settings.items() if name not in RANK_SETTINGS}
        return cls(**own, distributed=rank_settings(settings))


def optimizer_steps(batches: int, accumulate: int) -> int:
    """Optimizer steps of an epoch; its last group of batches may be smaller."""
    return -(-batches // accumulate)
