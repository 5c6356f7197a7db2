"""Choose when the ranks average if no policy is asked for, and make the feed of a plan.

The names of the devices and the length of the training decide. No measurement takes part. So the
same command on the same devices always trains the same way.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from flodl import log
from flodl.data.adapters import as_batch_data_set, is_iterable
from flodl.data.iterable import remedy_for
from flodl.device import hardware_name
from flodl.ranks.launch.launcher import JOIN_VARIABLE
from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.planning.schedule import ScheduleConfig
from flodl.ranks.settings import PER_RANK, Backend, DdpRunConfig, ExchangeFormat, Policy
from flodl.train.observers.early_stop import EarlyStop
from flodl.train.policies.in_order import InOrderFeed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.monitor import EpochMetrics
    from flodl.ranks.group import Group
    from flodl.ranks.launch.launcher import Launched
    from flodl.train.parts import Assembly
    from flodl.train.policies.feed import Feed, FeedParts
    from flodl.train.settings import TrainingPlan


LONG_WAIT = 0.15
"""Share of the time that equal ranks may wait for each other before the run says so."""

FEW_WINDOWS = 12
"""A training with fewer windows takes every step together. With the best rate of each, accuracy
ended more than one standard deviation below DDP's for 32 ranks and 3.8 windows, 16 ranks and 7.5,
and 8 ranks and 1 or 3. From 12 windows on it did so nowhere
(``docs/benchmarks/virtual_ranks.md``)."""

_OF_WINDOWS = (
    *("anchor", "min_anchor", "max_anchor", "overhead_target", "speed_hint", "speeds"),
    *("max_overshoot", "divergence_threshold", "overlap"),
)
"""Settings without an effect if ranks take every step together."""


def with_policy(plan: TrainingPlan, group: Group) -> tuple[TrainingPlan, str]:
    """Replace policy AUTO with SYNC for devices of one name, and with CADENCE for others.

    A training with few windows takes SYNC on any devices. Collective.

    Returns:
        The plan, and the reason in one sentence.

    Raises:
        ValueError: A setting needs the other policy.
    """
    settings, reason = plan.distributed, "asked for"
    if settings.elastic:
        settings = settings.having(policy=Policy.CADENCE)
    if settings.policy is Policy.AUTO and is_iterable(plan.dataset):
        reason = "data that can only be iterated has no numbers, which windows would share"
        settings = settings.having(policy=Policy.SYNC)
    elif settings.policy is Policy.AUTO:
        policy, reason = _by_names(group.gather_objects(hardware_name(group.device)))
        windows = _windows(plan, group)
        if policy is Policy.CADENCE and windows < FEW_WINDOWS:
            policy = Policy.SYNC
            reason = (
                f"the devices differ, but the training has only {windows:.1f} windows of "
                f"{settings.anchor} batches per rank, and so few averages of weights cost "
                "accuracy (--policy cadence trains them)"
            )
        settings = settings.having(policy=policy)
        if policy is Policy.SYNC and (idle := _changed(settings, _OF_WINDOWS)):
            have = "has" if len(idle) == 1 else "have"
            reason += f"; {' and '.join(idle)} {have} no effect without --policy cadence"
    check_policy(plan, settings.policy)
    return replace(plan, distributed=settings), reason


def _by_names(names: Sequence[str]) -> tuple[Policy, str]:
    kinds = list(dict.fromkeys(names))
    if len(kinds) == 1:
        return Policy.SYNC, f"{len(names)} equal devices ({kinds[0]})"
    return Policy.CADENCE, (
        f"the devices differ ({', '.join(kinds)}); it averages weights, which is another "
        "algorithm than DDP (--policy sync)"
    )


def _windows(plan: TrainingPlan, group: Group) -> float:
    """Return how many windows of the first length a training has if all ranks are equally fast."""
    batches = len(as_batch_data_set(plan.dataset)) // (plan.batch_size or 1)
    return plan.num_epochs * batches / (plan.distributed.anchor * group.world_size)


def _changed(settings: DdpRunConfig, names: Sequence[str]) -> list[str]:
    """Return which of these settings have another value than their default."""
    usual = {one.name: one.default for one in fields(DdpRunConfig)}
    return [name for name in names if getattr(settings, name) != usual[name]]


def check_policy(plan: TrainingPlan, policy: Policy) -> None:
    """Check the settings that only some policies can carry out; AUTO may become any of them.

    Raises:
        ValueError: The policy cannot carry out a setting.
    """
    shares = plan.distributed.partition_ratios is not None
    if is_iterable(plan.dataset) and (shares or policy not in (Policy.SYNC, Policy.AUTO)):
        asked = "partition_ratios" if shares else f"policy {str(policy)!r}"
        raise ValueError(
            f"{asked} with a {type(plan.dataset).__name__}: ranks share samples by their numbers, "
            f"and data that can only be iterated has none; use .policy('sync') without shares, or "
            f"{remedy_for(plan.dataset)}"
        )
    if plan.distributed.outer_optimizer is not None and policy is Policy.SYNC:
        raise ValueError(
            f"outer_optimizer with policy {str(policy)!r}: it steps from one average of the "
            "weights to the next, and these ranks average gradients; add .policy('cadence'), or "
            "leave it out"
        )


_OF_WHOLE_MODELS = (
    *("partition_ratios", "speeds", "speed_hint", "lr_scale_ratio"),
    *("outer_optimizer", "overlap", "average_optimizer_state"),
)
"""Settings of ranks that hold whole models, and share samples or average weights."""


def check_sharded(plan: TrainingPlan) -> None:
    """Check that no setting asks for what FSDP decides in a training with a sharded model.

    Raises:
        ValueError: A setting would have no effect.
    """
    settings = plan.distributed
    idle = _changed(settings, _OF_WHOLE_MODELS)
    if settings.policy not in (Policy.AUTO, Policy.SYNC):
        idle.append(f"policy {str(settings.policy)!r}")
    if idle:
        raise ValueError(
            f"{idle[0]} with .sharded(): FSDP averages the gradients of each step, and each rank "
            f"trains on the data set that it is given; leave {idle[0].split()[0]} out"
        )
    format = settings.exchange
    if format is not ExchangeFormat.FLOAT32:
        raise ValueError(
            f"exchange={str(format)!r} with .sharded(): FSDP exchanges the parts of the model "
            "itself, in the types of its MixedPrecisionPolicy; leave exchange out"
        )


_OF_FIXED_RANKS = (*PER_RANK, "speed_hint", "lr_scale_ratio", "outer_optimizer", "overlap")
"""Settings of which each needs to know all ranks of a training at its start."""


def check_elastic(plan: TrainingPlan, launched: Launched | None) -> None:
    """Check a training whose ranks come and go, and one that this process is to join.

    Raises:
        ValueError: A setting contradicts ``elastic``.
    """
    settings = plan.distributed
    joins = bool(os.environ.get(JOIN_VARIABLE))
    if not settings.elastic:
        raise ValueError(
            f"{JOIN_VARIABLE} is set, and the ranks of this training are fixed: start the program "
            f"with --elastic, or unset {JOIN_VARIABLE}"
        )
    if launched is not None and not joins:
        raise ValueError(
            f"elastic with {launched.source}, which ends all ranks when one is lost: start the "
            f"program without it, and on further hosts with {JOIN_VARIABLE}"
        )
    reasons = {
        f"policy {str(settings.policy)!r}": (
            settings.policy not in (Policy.AUTO, Policy.CADENCE),
            "a window is what can be lost; use .policy('cadence')",
        ),
        "backend 'cpu'": (
            settings.backend is Backend.CPU,
            "it waits for late ranks by itself; leave it out",
        ),
        "guards": (plan.guards is not None, "ranks that joined cannot go back; leave them out"),
        "a timeline": (plan.record_timeline, "it has one part per fixed rank; leave it out"),
        "a sharded model": (plan.sharded, "each rank has to hold all of it; leave .sharded() out"),
        f"a {type(plan.dataset).__name__}": (
            is_iterable(plan.dataset),
            f"its samples have no numbers; {remedy_for(plan.dataset)}",
        ),
    } | dict.fromkeys(
        _changed(settings, _OF_FIXED_RANKS),
        (True, "it is for ranks that are all known at the start; leave it out"),
    )
    for name, (contradicts, why) in reasons.items():
        if contradicts:
            raise ValueError(f"elastic with {name}: {why}")


def tell_waiting(history: Sequence[EpochMetrics]) -> None:
    """Print how long ranks that take every step together have waited, if that was long.

    Args:
        history: All epochs of the training.
    """
    whole = sum(metrics.epoch_ms for metrics in history)
    waited = sum(metrics.wait_ms for metrics in history)
    if whole and waited > LONG_WAIT * whole:
        log.msg(
            f"  the ranks waited for each other {waited / whole:.0%} of the time; --policy cadence "
            "trains without these waits (it averages weights, not gradients)"
        )


def feed_of(given: FeedParts) -> Feed[Any]:
    """Return the batches of this process, from where a training starts."""
    settings = given.plan.distributed
    if given.gradient is not None:
        given.gradient.wire.load_state(given.found.counts.exchange)
    if given.config is None:
        return InOrderFeed(given)
    # Imported here: a process that trains alone needs none of it.
    from flodl.train.policies.cadence import CadenceFeed, OverlappedFeed
    from flodl.train.policies.sync import SyncFeed

    if given.gradient is not None:
        return SyncFeed(given)
    if settings.elastic:
        from flodl.train.policies.elastic import ElasticFeed

        return ElasticFeed(given)
    overlaps = settings.policy is Policy.ASYNC or settings.overlap
    return OverlappedFeed(given) if overlaps else CadenceFeed(given)


def schedule_config(
    plan: TrainingPlan, parts: Assembly, world_size: int, barrier_every: int
) -> ScheduleConfig:
    """Translate the settings of a training to the settings of its windows."""
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
