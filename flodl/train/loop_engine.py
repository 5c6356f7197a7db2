"""The engine of a training on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.train.engines import make_engine
from flodl.train.engines.base import StepEngine, StepSettings

if TYPE_CHECKING:
    from flodl.monitor.ledger import TimeLedger
    from flodl.train.learning_rate import SteeredRate
    from flodl.train.loss_scaling import CountedScaler
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan
    from flodl.train.step_values import StepValues


def engine_of_loop(
    plan: TrainingPlan,
    parts: Assembly,
    rate: SteeredRate,
    *,
    done: int,
    scaler: CountedScaler | None,
    ledger: TimeLedger,
    values: StepValues | None,
) -> StepEngine:
    """Make the engine that a plan asks for, after ``done`` optimizer steps of the whole run."""
    settings = StepSettings(
        train_fn=plan.train_fn,
        schedule=rate.schedule,
        max_grad_norm=plan.max_grad_norm,
        autocast=plan.autocast,
        scaler=scaler,
        average=parts.average,
        ledger=ledger,
        values=values,
    )
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
    rate.drive(engine)
    return engine
