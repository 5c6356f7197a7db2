"""Step engines: one training step, carried out in different ways with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.checkpoint.sharded import is_sharded
from flodl.train.engines.auto import AutoEngine as AutoEngine
from flodl.train.engines.auto import AutoPolicy as AutoPolicy
from flodl.train.engines.base import StepEngine as StepEngine
from flodl.train.engines.base import StepSettings as StepSettings
from flodl.train.engines.closure import ClosureEngine as ClosureEngine
from flodl.train.engines.compiled import CompiledEngine as CompiledEngine
from flodl.train.engines.cuda_graph import CudaGraphEngine as CudaGraphEngine
from flodl.train.engines.eager import EagerEngine as EagerEngine
from flodl.train.part_checks import needs_closure

if TYPE_CHECKING:
    import torch
    from torch import nn

ENGINES = ("auto", "eager", "compiled", "cuda_graph")
"""What :func:`make_engine` knows."""


def make_engine(
    name: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: StepSettings,
    *,
    device: torch.device,
    total_steps: int,
    memory: bool = True,
    layout: bool = True,
    pure: bool = False,
) -> StepEngine:
    """Make the engine of a training.

    Args:
        name: One of :data:`ENGINES`.
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: How a step goes.
        device: Where the model and the batches are.
        total_steps: Optimizer steps to come; tells what preparation is worth.
        memory: Let "auto" keep the heap and lay out weights otherwise where that is faster.
        layout: False where others than the engine's owner read weights between two steps.
        pure: The step may be run again on copies: lets "auto" compile it.

    Raises:
        ValueError: There is no engine of that name.
    """
    if needs_closure(optimizer) and name in ("auto", "eager"):
        return ClosureEngine(model, optimizer, settings)
    if name == "auto" and any(map(is_sharded, model.parameters())):
        name = "eager"  # what fully_shard makes of a model can be neither copied nor laid out
    if name == "auto":
        return AutoEngine(
            model,
            optimizer,
            settings,
            total_steps=total_steps,
            memory=memory,
            layout=layout,
            pure=pure,
        )
    if name == "eager":
        return EagerEngine(model, optimizer, settings)
    if name == "compiled":
        return CompiledEngine(model, optimizer, settings)
    if name == "cuda_graph":
        return CudaGraphEngine(model, optimizer, settings, device=device)
    raise ValueError(f"engine={name!r}: use one of {', '.join(map(repr, ENGINES))}")
