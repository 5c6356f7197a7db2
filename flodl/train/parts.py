"""The parts of a training, made once from its plan: model, data, learning rate, timer, engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch

from flodl import terminal
from flodl.checkpoint.sharded import is_sharded
from flodl.data import DataLoader, IterableLoader
from flodl.data.adapters import is_iterable
from flodl.data.draws import seed_program
from flodl.data.iterable import NOT_PROMISED, gives_batches, remedy_for
from flodl.device import warn_of_slow_bfloat16
from flodl.errors import DataError
from flodl.nn.modes import begin_training
from flodl.ranks.launch.join import is_first_rank
from flodl.train.observers.ema import WeightAverage
from flodl.train.run.part_states import Parts, made
from flodl.train.settings import optimizer_steps
from flodl.train.settings.user_parts import (
    build_model,
    build_optimizer,
    check_carried,
    check_closure,
    check_exchanged,
    warn_of_single_sample,
    warn_of_unfinished_schedule,
)
from flodl.train.step import StepSettings, TunedEngine, make_engine
from flodl.train.step.learning_rate import SteeredRate, make_schedule, scale_rates
from flodl.train.step.precision import CountedScaler
from flodl.train.step.torch_schedule import TorchSchedule
from flodl.train.step.tuned import EagerEngine
from flodl.train.step.tuning import Tuning, fused_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from flodl.monitor.ledger import TimeLedger
    from flodl.train.settings import TrainingPlan
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.precision import LossScaler
    from flodl.train.step.step_values import StepValues


LOADER_DEFAULTS: Mapping[str, Any] = {"drop_last": False, "join_remainder": True}
"""Loader settings of a training unless the program changes them: every sample in every epoch."""

ENDLESS = 1 << 31
"""Optimizer steps to assume if their number is unknown: more than any trial takes."""


@final
@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: DataLoader | IterableLoader
    schedule: Schedule | None
    torch_schedule: TorchSchedule | None
    scaler: LossScaler | torch.amp.GradScaler | None
    average: WeightAverage | None
    steps: int
    """Optimizer steps of the whole training; :data:`ENDLESS` if unknown."""
    registered: Mapping[str, Any] = field(default_factory=dict)
    """Objects of the program whose state checkpoints keep, by name."""

    @property
    def loader(self) -> DataLoader:
        """The loader of a training whose samples have numbers, as several ranks need it.

        Raises:
            DataError: Its data can only be iterated.
        """
        if isinstance(self.batches, IterableLoader):
            raise DataError("data that can only be iterated has no numbers")
        return self.batches

    def parts(self, extra: Mapping[str, Any]) -> Parts:
        """Return the parts that a checkpoint keeps, with ``extra`` from the loop."""
        scaler: Any = self.scaler
        return Parts(
            model=self.model,
            optimizer=self.optimizer,
            loader=self.batches,
            scaler=scaler,
            average=self.average,
            schedule=self.torch_schedule or self.schedule,
            registered=self.registered,
            extra=extra,
        )


def assemble(
    plan: TrainingPlan, device: torch.device, world_size: int = 1, rank: int = 0
) -> Assembly:
    """Load the data, seed the generators, and make model, optimizer and the rest, in this order.

    Args:
        plan: The plan of the training.
        device: The device that trains.
        world_size: Number of processes that train together.
        rank: Number of this process.

    Raises:
        TypeError: A factory returned something of another type.
        ValueError: A part does not fit the settings, or the model is sharded although each of
            ``world_size`` ranks expects a whole one.
    """
    if plan.autocast is not None and is_first_rank():
        warn_of_slow_bfloat16(plan.autocast, device)
    terminal.status("reading data")
    loader = make_loader(plan, device, (rank, world_size))
    terminal.status("building the model")
    seed_program(plan.seed)
    model = build_model(plan.model_factory, device)
    if world_size > 1 and any(map(is_sharded, model.parameters())):
        raise ValueError(
            "the model factory shards the model (fully_shard), and the ranks of a Trainer hold a "
            "whole one each and average them: call .sharded() on the builder, which leaves the "
            "ranks to FSDP, or take fully_shard out of the factory"
        )
    if world_size > 1:
        check_exchanged(model)
    optimizer = build_optimizer(plan.optimizer_factory, model)
    check_closure(optimizer, plan, world_size)
    if isinstance(loader, DataLoader):
        check_carried(plan, model, loader.batch_size, loader.num_samples)
    begin_training(model)
    steps = ENDLESS
    if loader.num_batches is not None:
        steps = optimizer_steps(loader.num_batches, plan.accumulate) * plan.num_epochs
    schedule = make_schedule(plan.scheduler, world_size) if plan.scheduler is not None else None
    torch_schedule = None
    if plan.lr_scheduler is not None:
        known = steps if steps != ENDLESS else None
        torch_schedule = TorchSchedule(
            plan.lr_scheduler, optimizer, steps=known, epochs=plan.num_epochs
        )
    if schedule is not None:
        warn_of_unfinished_schedule(schedule, steps)
    if isinstance(loader, DataLoader):
        size = loader.batch_size
        kept = loader.num_batches * size > loader.num_samples
        warn_of_single_sample(model, loader.num_samples, size, kept=kept)
    average = WeightAverage(model, plan.ema) if plan.ema is not None else None
    return Assembly(
        model, optimizer, loader, schedule, torch_schedule, plan.scaler, average, steps,
        made(plan.states, model) if plan.states else {},
    )  # fmt: skip


def make_loader(
    plan: TrainingPlan, device: torch.device, part: tuple[int, int] = (0, 1)
) -> DataLoader | IterableLoader:
    """Make the loader for the data of a plan.

    Args:
        plan: The plan of the training.
        device: The device for the batches.
        part: Rank and number of ranks; data that can only be iterated is dealt out by batches.

    Raises:
        ValueError: A setting needs samples with numbers, and the data can only be iterated.
    """
    own = plan.loader_options
    if not is_iterable(plan.dataset):
        options: dict[str, Any] = {**LOADER_DEFAULTS, **own}
        if plan.cache:
            options["cache"] = plan.cache
        size = plan.batch_size or 0
        return DataLoader(plan.dataset, size, device=device, seed=plan.seed, **options)
    kind, remedy = type(plan.dataset).__name__, remedy_for(plan.dataset)
    counted = plan.count_samples or plan.batch_size
    for name in own.keys() - {"names", *LOADER_DEFAULTS}:
        raise ValueError(
            f"loader_options({name}=…) needs samples with numbers, and the data set is a {kind}, "
            f"which decides that itself: leave it out, or {remedy}"
        )
    if plan.cache:
        raise ValueError(
            f".cache() keeps samples by their numbers, and those of a {kind} have none: leave it "
            f"out, or {remedy}"
        )
    if plan.checkpoint_steps is not None:
        raise ValueError(
            f"checkpoint_steps={plan.checkpoint_steps} keeps a training inside an epoch, but the "
            f"data set is a {kind}, and {NOT_PROMISED}: leave it out (checkpoints at the end of "
            f"an epoch stay), or {remedy}"
        )
    given = gives_batches(plan.dataset, counted)
    chosen = dict(own) if given else {**LOADER_DEFAULTS, **own}
    return IterableLoader(plan.dataset, counted, device=device, part=part, **chosen)


def order_facts(plan: TrainingPlan, loader: DataLoader) -> dict[str, Any]:
    """Return what decides which samples an epoch has, and in which order."""
    options = {**LOADER_DEFAULTS, **plan.loader_options}
    return {
        "samples": loader.num_samples,
        "batch_size": loader.batch_size,
        "seed": loader.seed,
        "sampler": loader.order_kind,
        **{name: options[name] for name in LOADER_DEFAULTS},
    }


@final
class CountedRate:
    """The learning rate of a rank, scaled by the number of ranks or by their batch counts.

    Args:
        plan: Defines how the rate is scaled.
        parts: Provide the schedule; without one, the optimizer's rate is scaled once.
        counts: Batches per window of each rank, at the beginning.

    Attributes:
        steered: The source of rates for the engine.
    """

    def __init__(self, plan: TrainingPlan, parts: Assembly, counts: Sequence[int]) -> None:
        self._settings, self._optimizer = plan.distributed, parts.optimizer
        self._scale = plan.distributed.lr_scale(counts)
        self.steered = SteeredRate(parts.schedule, self._scale, alone=parts.torch_schedule is None)
        if parts.torch_schedule is not None and self._scale != 1.0:
            raise ValueError(
                f"lr_scale_ratio={plan.distributed.lr_scale_ratio:g} with .lr_scheduler(…): the "
                "scheduler of torch sets the rates itself; write .lr_scale_ratio(0), and the rate "
                "for all ranks into the optimizer"
            )
        if parts.schedule is None and self._scale != 1.0:
            scale_rates(self._optimizer, self._scale)

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
            scale_rates(self._optimizer, change)

    def state(self) -> dict[str, float]:
        """Return the factors of the rate, for a checkpoint."""
        return {"scale": self.steered.scale, "counted": self._scale}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with the result of :meth:`state`; the optimizer has its rates already."""
        if state:
            self.steered.scale, self._scale = state["scale"], state["counted"]


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
) -> TunedEngine:
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
    engine: TunedEngine
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
    rate.on_first = engine.set_schedule
    return engine
