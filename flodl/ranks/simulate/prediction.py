"""Predict how fast a training would be in every mode, and choose one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from flodl.ranks.planning.schedule import ScheduleConfig
from flodl.ranks.settings import Policy
from flodl.ranks.simulate.cluster import Cluster, simulate

SOLO = "solo"
"""The mode in which one rank trains alone."""

LOCAL_STEPS = 10
"""Steps between two averages of torch's local SGD; its period is fixed."""

HORIZON = 20_000
"""Batches to simulate. A longer training continues as it began; these take half a second."""

CLOSE = 0.02
"""A simpler mode is preferred if it is slower than the fastest by at most this fraction."""

SIMPLEST_FIRST = (Policy.SYNC, Policy.CADENCE, Policy.ASYNC)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The predicted speed of one mode."""

    mode: str
    """``solo``, ``sync``, ``cadence``, ``async``, ``torch-ddp`` or ``torch-postlocalsgd``."""
    policy: Policy | None
    """The policy of flodl for this mode; None for the others."""
    ms: float
    """Length of the training in milliseconds."""
    batches_per_s: float
    """Batches per second of all ranks together, warm-up included."""
    efficiency: float
    """Trained batches as a fraction of those the ranks could train without waits and exchanges."""
    idle: tuple[float, ...]
    """Fraction of the time that each rank waits for others."""
    communication: float
    """Fraction of the time that every rank spends on exchanges."""
    exchanges: int
    """Number of averages of parameters or gradients."""
    anchor: int | None
    """Batches of the slowest rank in a window, at the end; None if there are no windows."""


def predict(
    cluster: Cluster, config: ScheduleConfig, *, horizon: int | None = HORIZON
) -> tuple[Prediction, ...]:
    """Predict every mode for the same work, in a fixed order.

    ``solo`` is the single rank that would be done first. The two modes of torch give all ranks
    equal work: ``torch-ddp`` averages gradients in every step, ``torch-postlocalsgd`` averages
    parameters every ten steps. If the ranks cannot share an epoch equally, it is filled up with
    repeated batches, as ``DistributedSampler`` does. Repeated batches are not counted.

    Args:
        cluster: The ranks.
        config: The settings of a real training; its policy is ignored.
        horizon: About how many batches of a longer training to simulate; None: all.

    Raises:
        ValueError: ``config`` is for another number of ranks.
    """
    if horizon is not None:
        length = min(config.batches_per_epoch, horizon)
        epochs = min(config.epochs, max(1, horizon // length))
        config = replace(config, epochs=epochs, batches_per_epoch=length)
    return (
        _solo(cluster, config),
        *(_windowed(cluster, replace(config, policy=policy)) for policy in SIMPLEST_FIRST),
        _lockstep(cluster, config, "torch-ddp", period=1),
        _lockstep(cluster, config, "torch-postlocalsgd", period=LOCAL_STEPS),
    )


def choose(predictions: Sequence[Prediction]) -> tuple[Policy, str]:
    """Return the policy to train with, and the reason in one sentence.

    The choice is the policy with the most batches per second, or a simpler one that is slower by
    at most 2 % (:data:`CLOSE`). SYNC is simpler than CADENCE, and CADENCE is simpler than ASYNC.

    Raises:
        ValueError: No prediction is for a policy.
    """
    ours = {found.policy: found for found in predictions if found.policy is not None}
    if not ours:
        raise ValueError(
            "there is no prediction of sync, cadence or async, and choose() takes one of these"
        )
    best = max(ours.values(), key=lambda found: found.batches_per_s)
    enough = (1 - CLOSE) * best.batches_per_s
    close = [
        ours[policy]
        for policy in SIMPLEST_FIRST
        if policy in ours and ours[policy].batches_per_s >= enough
    ]
    chosen = close[0]
    told = (
        f"{chosen.mode} is predicted to train {chosen.batches_per_s:.1f} batches/s, "
        f"{chosen.efficiency:.0%} of what the ranks could"
    )
    if chosen is not best:
        behind = 1 - chosen.batches_per_s / best.batches_per_s
        told += f": {behind:.1%} less than {best.mode} with {best.batches_per_s:.1f}, and simpler"
    else:
        beaten = [found for found in ours.values() if found is not best]
        told += "".join(f"; {found.mode} {found.batches_per_s:.1f}" for found in beaten)
    solo = [found for found in predictions if found.mode == SOLO]
    if solo and solo[0].batches_per_s > chosen.batches_per_s:
        told += f" (the fastest rank alone: {solo[0].batches_per_s:.1f}, so leave the others out)"
    return chosen.policy or Policy.SYNC, told


def _solo(cluster: Cluster, config: ScheduleConfig) -> Prediction:
    batches = config.epochs * config.batches_per_epoch
    ms, fastest = min((cluster.finished(rank, 0.0, batches), rank) for rank in cluster.ranks)
    waits = [ms * (rank != fastest) for rank in cluster.ranks]
    return _prediction(cluster, SOLO, batches, ms=ms, comm_ms=0.0, waits_ms=waits, exchanges=0)


def _windowed(cluster: Cluster, config: ScheduleConfig) -> Prediction:
    history = simulate(cluster, config)
    found = _prediction(
        cluster,
        config.policy.value,
        history.batches,
        ms=history.ms,
        comm_ms=history.comm_ms,
        waits_ms=history.waits_ms,
        exchanges=len(history.windows),
    )
    return replace(found, policy=config.policy, anchor=history.anchor)


def _lockstep(cluster: Cluster, config: ScheduleConfig, mode: str, *, period: int) -> Prediction:
    """Predict equal work for all ranks and an average every ``period`` steps."""
    steps = config.epochs * -(-config.batches_per_epoch // config.world_size)
    at, exchanges, waits = 0.0, 0, [0.0] * config.world_size
    for first in range(0, steps, period):
        part = min(period, steps - first)
        ends = [cluster.finished(rank, at, part) for rank in cluster.ranks]
        waits = [wait + max(ends) - end for wait, end in zip(waits, ends, strict=True)]
        at = max(ends)
        if part == period:
            at, exchanges = at + cluster.average_ms, exchanges + 1
    batches, comm_ms = config.epochs * config.batches_per_epoch, exchanges * cluster.average_ms
    return _prediction(
        cluster, mode, batches, ms=at, comm_ms=comm_ms, waits_ms=waits, exchanges=exchanges
    )


def _prediction(
    cluster: Cluster,
    mode: str,
    batches: int,
    *,
    ms: float,
    comm_ms: float,
    waits_ms: Sequence[float],
    exchanges: int,
) -> Prediction:
    """The prediction of a mode without a policy and windows."""
    return Prediction(
        mode=mode,
        policy=None,
        ms=ms,
        batches_per_s=1000 * batches / ms,
        efficiency=batches / cluster.capacity(ms),
        idle=tuple(wait / ms for wait in waits_ms),
        communication=comm_ms / ms,
        exchanges=exchanges,
        anchor=None,
    )
