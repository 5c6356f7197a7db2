"""Parts of a rank besides its model: learning rate, engine, timer, seed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, final

from flodl.distributed.batch_timer import BatchTimer
from flodl.distributed.planning.scheduler import initial_schedule
from flodl.train.engines import make_engine
from flodl.train.engines.base import StepEngine, StepSettings
from flodl.train.engines.eager import EagerEngine
from flodl.train.engines.fused import fused_step
from flodl.train.engines.tuning import Tuning
from flodl.train.learning_rate import SteeredRate, set_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flodl.distributed.planning.schedule import ScheduleConfig
    from flodl.distributed.policies.sync import SharedGradient
    from flodl.launch.group import Group
    from flodl.monitor.ledger import TimeLedger
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan
    from flodl.train.step_values import StepValues


@final
class CountedRate:
    """The learning rate of a rank, scaled by the number of ranks or by their batch counts.

    Args:
        plan: Defines how the rate is scaled.
        parts: Provide the schedule; without one, the optimizer's rate is scaled once.
        config: How windows are planned.

    Attributes:
        steered: The source of rates for the engine.
    """

    def __init__(self, plan: TrainingPlan, parts: Assembly, config: ScheduleConfig) -> None:
        self._settings, self._optimizer = plan.distributed, parts.optimizer
        speeds = plan.distributed.relative_speeds(config.world_size)
        counts = initial_schedule(config, speeds).elche.counts
        self._scale = plan.distributed.lr_scale(counts)
        self.steered = SteeredRate(parts.schedule, self._scale, alone=parts.torch_schedule is None)
        if parts.torch_schedule is not None and self._scale != 1.0:
            raise ValueError(
                f"lr_scale_ratio={plan.distributed.lr_scale_ratio:g} with .lr_scheduler(…): the "
                "scheduler of torch sets the rates itself; write .lr_scale_ratio(0), and the rate "
                "for all ranks into the optimizer"
            )
        if parts.schedule is None:
            self._multiply(self._scale)

    def follow(self, counts: Sequence[int]) -> None:
        """Scale by the current batch counts, if ``lr_world`` is ``effective``.

        Args:
            counts: Batches per window of each rank.
        """
        scale = self._settings.lr_scale(counts)
        if self._settings.lr_world != "effective" or scale == self._scale:
            return
        change, self._scale = scale / self._scale, scale
        self.steered.scale *= change
        if self.steered.schedule is None:
            self._multiply(change)

    def state(self) -> dict[str, float]:
        """Return the factors of the rate, for a checkpoint."""
        return {"scale": self.steered.scale, "counted": self._scale}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with the result of :meth:`state`; the optimizer has its rates already."""
        if state:
            self.steered.scale, self._scale = state["scale"], state["counted"]

    def _multiply(self, factor: float) -> None:
        for group in self._optimizer.param_groups:
            set_rate(group, float(group["lr"]) * factor)


def rank_seed(seed: int, rank: int) -> int:
    """Return a seed for values that must differ between ranks: dropout, augmentation."""
    text = f"{seed}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def timer_of_rank(plan: TrainingPlan, group: Group) -> BatchTimer:
    """Make the timer of this rank, with its simulated slowness."""
    settings, rank = plan.distributed, group.rank
    return BatchTimer(
        group.device,
        batch_ms=settings.simulate_ms[rank] if settings.simulate_ms is not None else None,
        speed=settings.simulate_speed[rank] if settings.simulate_speed is not None else None,
    )


def engine_of_rank(
    plan: TrainingPlan,
    parts: Assembly,
    rate: SteeredRate,
    ledger: TimeLedger,
    gradient: SharedGradient | None,
    values: StepValues | None = None,
) -> StepEngine:
    """Make the engine of this rank; for shared steps, it is an eager engine without trials.

    Raises:
        ValueError: The steps are shared, and the plan asks for an engine other than auto or eager.
    """
    name = plan.engine
    if gradient is not None and name not in ("auto", "eager"):
        raise ValueError(
            f"engine={name!r} with policy {str(plan.distributed.policy)!r}: gradients are averaged "
            "inside of each step, which the eager engine does; use .engine('eager'), or policy "
            "'cadence' or 'async'"
        )
    scaler = parts.counted_scaler()
    settings = StepSettings(
        train_fn=plan.train_fn,
        schedule=rate.schedule,
        max_grad_norm=plan.max_grad_norm,
        autocast=plan.autocast,
        scaler=scaler,
        average=parts.average,
        ledger=ledger,
        reduce=gradient,
        values=values,
    )
    if gradient is None:
        return make_engine(
            name,
            parts.model,
            parts.optimizer,
            settings,
            device=parts.loader.device,
            total_steps=parts.steps,
            pure=plan.pure_step,
        )
    engine = EagerEngine(parts.model, parts.optimizer, settings)
    if name == "auto" and scaler is None and fused_step(parts.optimizer) is not None:
        engine.use(Tuning(fused=True))
    return engine
