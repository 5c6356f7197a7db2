"""The checked settings of a training, and the parts that are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeAlias, final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

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


def build_model(factory: ModelFactory, device: torch.device) -> nn.Module:
    """Call a model factory and move the model to the device.

    Raises:
        TypeError: The factory returned something that is not a module.
        ValueError: Some parameters have no shape yet.
    """
    model = factory(device)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model factory returned a {type(model).__name__}, not a torch.nn.Module"
        )
    named = chain(model.named_parameters(), model.named_buffers())
    lazy = [name for name, tensor in named if is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"the parameters of the model have no shape yet ({', '.join(lazy[:3])}"
            f"{' and more' if lazy[3:] else ''}): call it once on an example, such as "
            "model(torch.zeros(2, features)), before the model factory returns it"
        )
    named = chain(model.named_parameters(), model.named_buffers())
    meta = [name for name, tensor in named if tensor.is_meta]
    if meta:
        raise ValueError(
            f"{', '.join(meta[:3])}{' and more' if meta[3:] else ''} of the model: device 'meta', "
            "without values. Call to_empty(device=…) and load or initialise the model in the "
            "model factory"
        )
    return model.to(device)


def build_optimizer(factory: OptimizerFactory, model: nn.Module) -> torch.optim.Optimizer:
    """Call an optimizer factory with the parameters of a model that is on its device.

    Raises:
        TypeError: The factory returned something that is not an optimizer.
    """
    optimizer = factory(list(model.parameters()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"the optimizer factory returned a {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer"
        )
    return optimizer


def optimizer_steps(batches: int, accumulate: int) -> int:
    """Optimizer steps of an epoch; its last group of batches may be smaller."""
    return -(-batches // accumulate)
