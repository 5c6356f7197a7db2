"""The feed that a plan asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flodl.ranks.settings import Policy
from flodl.train.observers.early_stop import EarlyStop
from flodl.train.policies.in_order import InOrderFeed

if TYPE_CHECKING:
    from flodl.ranks.batch_timer import BatchTimer
    from flodl.ranks.group import Group
    from flodl.ranks.planning.schedule import ScheduleConfig, ScheduleState
    from flodl.train.observers.epoch_observers import Marks
    from flodl.train.observers.stop_requests import StopRequests
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan
    from flodl.train.policies.feed import Feed
    from flodl.train.policies.sync import SharedGradient
    from flodl.train.policies.windows import WindowFeed
    from flodl.train.run.rank_state import RankStart


def feed_of(
    plan: TrainingPlan,
    group: Group,
    parts: Assembly,
    config: ScheduleConfig | None,
    found: RankStart,
    gradient: SharedGradient | None,
    marks: Marks,
) -> Feed[Any]:
    """Return the batches of this process, from where a training starts.

    Args:
        plan: The settings.
        group: The ranks.
        parts: Model, optimizer and loader.
        config: How windows are planned; None for a process that trains every batch in order.
        found: Where it starts.
        gradient: Averages the gradients of a step, if the ranks take steps together.
        marks: Records exchanges in the timeline.
    """
    # Imported here: a process that trains alone needs none of it.
    if config is None or found.schedule is None:
        place = found.start.position
        return InOrderFeed(plan, parts.batches, place, group.world_size, gradient)
    from flodl.ranks.averaging.average import ParameterAverager
    from flodl.train.policies.cadence import CadenceFeed
    from flodl.train.policies.overlapped import OverlappedFeed
    from flodl.train.policies.shared import Shared
    from flodl.train.policies.sync import SyncFeed

    settings = plan.distributed
    if settings.outer_optimizer is not None and found.outer:
        settings.outer_optimizer.load_state_dict(found.outer)
    averages = found.counts.averages
    shared = Shared(plan, group, parts.loader, config, found.schedule, averages)
    if gradient is not None:
        return SyncFeed(shared, gradient)
    averager = ParameterAverager(
        parts.model,
        group,
        settings.backend,
        optimizer=parts.optimizer if settings.average_optimizer_state else None,
        outer=settings.outer_optimizer,
    )
    kind: type[WindowFeed] = CadenceFeed
    if settings.policy is Policy.ASYNC or settings.overlap:
        kind = OverlappedFeed
    if settings.elastic:
        from flodl.train.policies.elastic import ElasticFeed

        elastic = ElasticFeed(shared, averager, parts.optimizer, marks)
        elastic.join(found.joined)
        return elastic
    return kind(shared, averager, parts.optimizer, marks)


def shared_gradient(
    plan: TrainingPlan,
    parts: Assembly,
    group: Group,
    timer: BatchTimer,
    stops: StopRequests,
    marks: Marks,
) -> SharedGradient:
    """Return what averages the gradients of a step over the ranks."""
    from flodl.train.policies.sync import SharedGradient

    whole = (parts.batches.batch_size or 1) * plan.accumulate
    return SharedGradient(plan, parts.model, group, whole, timer, stops, marks)


def first_schedule(plan: TrainingPlan, config: ScheduleConfig) -> ScheduleState:
    """Return the schedule at the start of a training."""
    from flodl.ranks.planning.scheduler import initial_schedule

    return initial_schedule(config, plan.distributed.relative_speeds(config.world_size))


def schedule_config(
    plan: TrainingPlan, parts: Assembly, world_size: int, barrier_every: int
) -> ScheduleConfig:
    """Translate the settings of a training to the settings of its windows."""
    from flodl.ranks.planning.elche import ElCheConfig
    from flodl.ranks.planning.schedule import ScheduleConfig

    settings = plan.distributed
    sync = settings.policy is Policy.SYNC
    progressive = settings.progressive_dispatch
    if progressive is None:
        progressive = settings.partition_ratios is None and not sync
    exact = plan.deterministic or settings.max_batch_diff is not None
    stream = settings.stream_epochs
    return ScheduleConfig(
        elche=ElCheConfig(world_size=world_size, **settings.named_in(ElCheConfig)),
        epochs=plan.num_epochs,
        batches_per_epoch=parts.loader.num_batches,
        barrier_every=barrier_every,
        progressive=progressive,
        timed=not exact and settings.partition_ratios is None,
        **settings.named_in(ScheduleConfig)
        | {"stream_epochs": (not sync) if stream is None else stream},
    )


def barrier_every(plan: TrainingPlan) -> int:
    """Return after how many epochs all ranks need the same model, or 0 for never."""
    looks = [hook for hook in plan.callbacks if not isinstance(hook, EarlyStop)]
    if plan.eval_fn is not None or plan.best is not None or looks:
        return 1
    if plan.lr_scheduler is not None and plan.lr_scheduler.interval == "epoch":
        return 1  # a window must not reach into an epoch with another learning rate
    if plan.run_dir is not None or plan.checkpoint_fn is not None:
        return plan.checkpoint_every
    return 0
