"""Step engines: different ways to compute a training step, with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.checkpoint.sharded import is_sharded
from flodl.train.settings.user_parts import needs_closure
from flodl.train.step.auto import AutoEngine as AutoEngine, AutoPolicy as AutoPolicy
from flodl.train.step.base import StepEngine as StepEngine, StepSettings as StepSettings
from flodl.train.step.fused import fused_step
from flodl.train.step.precision import CountedScaler
from flodl.train.step.tuned import (
    ClosureEngine as ClosureEngine,
    CompiledEngine as CompiledEngine,
    CudaGraphEngine as CudaGraphEngine,
    EagerEngine as EagerEngine,
)
from flodl.train.step.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from flodl.monitor.ledger import TimeLedger
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan
    from flodl.train.step.learning_rate import SteeredRate
    from flodl.train.step.step_values import StepValues

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
) -> StepEngine:
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


def engine_of_plan(
    plan: TrainingPlan,
    parts: Assembly,
    rate: SteeredRate,
    *,
    done: int,
    ledger: TimeLedger,
    values: StepValues | None,
    after_step: Callable[[], object] | None = None,
    reduce: Callable[[], object] | None = None,
) -> StepEngine:
    """Make the engine that a plan asks for, after ``done`` optimizer steps of the whole run.

    With ``reduce``, which averages the gradients of several ranks inside each step, it is an eager
    engine without trials.

    Raises:
        ValueError: The steps are shared, and the plan asks for an engine other than auto or eager.
    """
    shared = reduce is not None
    if shared and plan.engine not in ("auto", "eager"):
        raise ValueError(
            f"engine={plan.engine!r} with policy {str(plan.distributed.policy)!r}: gradients are "
            "averaged inside of each step, which the eager engine does; use .engine('eager'), or "
            "policy 'cadence' or 'async'"
        )
    micro = plan.distributed.micro_batch
    if micro is not None and plan.engine != "eager":
        raise ValueError(
            f"engine={plan.engine!r} with micro_batch={micro!r}: only the eager engine splits a "
            "batch; use .engine('eager'), or leave micro_batch out"
        )
    scaler = CountedScaler(parts.scaler, parts.model) if parts.scaler is not None else None
    settings = StepSettings(
        train_fn=plan.train_fn,
        schedule=rate.schedule,
        max_grad_norm=plan.max_grad_norm,
        autocast=plan.autocast,
        scaler=scaler,
        after_step=after_step,
        ledger=ledger,
        reduce=reduce,
        values=values,
        micro_batch=micro if isinstance(micro, int) else None,
    )
    engine: StepEngine
    if shared:
        engine = eager = EagerEngine(parts.model, parts.optimizer, settings)
        if plan.engine == "auto" and scaler is None and fused_step(parts.optimizer) is not None:
            eager.use(Tuning(fused=True))
    else:
        engine = make_engine(
            plan.engine,
            parts.model,
            parts.optimizer,
            settings,
            device=parts.batches.device,
            total_steps=parts.steps - done,
            pure=plan.pure_step,
        )
    engine.global_step = done
    rate.engine = engine
    return engine
