"""Step engines: different ways to compute a training step, with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.checkpoint.sharded import is_sharded
from flodl.train.step.auto import AutoEngine as AutoEngine, AutoPolicy as AutoPolicy
from flodl.train.step.base import StepSettings as StepSettings
from flodl.train.step.tuned import (
    ClosureEngine as ClosureEngine,
    CompiledEngine as CompiledEngine,
    CudaGraphEngine as CudaGraphEngine,
    EagerEngine as EagerEngine,
    TunedEngine as TunedEngine,
    needs_closure,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

ENGINES = ("eager", "auto", "compiled", "cuda_graph")
"""The names that :func:`make_engine` accepts."""


def make_engine(
    name: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: StepSettings,
    *,
    device: torch.device,
    total_steps: int,
    pure: bool = False,
) -> TunedEngine:
    """Make the engine of a training.

    Args:
        name: One of :data:`ENGINES`.
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
        device: The device of the model and the batches.
        total_steps: Optimizer steps of the rest of the run; they decide which preparation pays.
        pure: The step may run again on copies, so "auto" may compile it.

    Raises:
        ValueError: There is no engine of that name.
    """
    if needs_closure(optimizer) and name in ("auto", "eager"):
        return ClosureEngine(model, optimizer, settings)
    if name == "auto" and any(map(is_sharded, model.parameters())):
        name = "eager"  # fully_shard's tensors cannot be copied
    if name == "auto":
        return AutoEngine(
            model,
            optimizer,
            settings,
            total_steps=total_steps,
            pure=pure,
        )
    if name == "eager":
        return EagerEngine(model, optimizer, settings)
    if name == "compiled":
        return CompiledEngine(model, optimizer, settings)
    if name == "cuda_graph":
        return CudaGraphEngine(model, optimizer, settings, device=device)
    raise ValueError(f"engine={name!r}: use one of {', '.join(map(repr, ENGINES))}")
