"""How fast a training would be in every mode, and which one to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from flodl.distributed.config import Policy
from flodl.distributed.ghost.cluster import Cluster, simulate
from flodl.distributed.planning.scheduler import ScheduleConfig

SOLO = "solo"
"""The mode in which one rank trains alone."""

LOCAL_STEPS = 10
"""Steps between two averages of torch's local SGD, whose period is fixed."""

HORIZON = 20_000
"""Batches after which a training goes on as it has begun: simulating them takes half a second."""

CLOSE = 0.02
"""A simpler mode that is behind the fastest by no more than this share is preferred."""

SIMPLEST_FIRST = (Policy.SYNC, Policy.CADENCE, Policy.ASYNC)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What one mode would achieve."""

    mode: str
    """``solo``, ``sync``, ``cadence``, ``async``, ``torch-ddp`` or ``torch-postlocalsgd``."""
    policy: Policy | None
    """The policy behind it, where it is one of ours."""
    ms: float
    """Length of the training."""
    batches_per_s: float
    """Batches of all ranks together, warm-up included."""
    efficiency: float
    """Of what the ranks would train if none of them ever waited or exchanged anything."""
    idle: tuple[float, ...]
    """Share of the time in which each rank waits for others."""
    communication: float
    """Share of the time that exchanges take from every rank."""
    exchanges: int
    """Averages of parameters or gradients."""
    anchor: int | None
    """Batches of the slowest rank in a window, at the end; None where there are no windows."""


def predict(
    cluster: Cluster, config: ScheduleConfig, *, horizon: int | None = HORIZON
) -> tuple[Prediction, ...]:
    """Predict every mode for the same work, in a fixed order.

    ``solo`` is the rank that is done first on its own. The two of torch give all ranks equal work:
    ``torch-ddp`` averages gradients in every step and ``torch-postlocalsgd`` parameters every
    ten; an epoch that ranks cannot share equally is filled up with repeated batches, as
    ``DistributedSampler`` does, which are not counted.

    Args:
        cluster: The ranks.
        config: What a real training would be planned with; its policy plays no role.
        horizon: Predict no more than about so many batches of a longer training; None: all.

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
    """Return the policy to train with, and why in one sentence.

    It is the one with the most batches per second, or a simpler one that is hardly slower: SYNC is
    simpler than CADENCE and that than ASYNC.

    Raises:
        ValueError: None of the predictions is one of a policy.
    """
    ours = {found.policy: found for found in predictions if found.policy is not None}
    if not ours:
        raise ValueError("there is no prediction of sync, cadence or async to choose from")
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
    return _policy(chosen), told


def _policy(found: Prediction) -> Policy:
    return found.policy or Policy.SYNC


def _solo(cluster: Cluster, config: ScheduleConfig) -> Prediction:
    batches = config.epochs * config.batches_per_epoch
    ms, fastest = min((cluster.finished(rank, 0.0, batches), rank) for rank in cluster.ranks)
    return Prediction(
        mode=SOLO,
        policy=None,
        ms=ms,
        batches_per_s=1000 * batches / ms,
        efficiency=batches / cluster.capacity(ms),
        idle=tuple(float(rank != fastest) for rank in cluster.ranks),
        communication=0.0,
        exchanges=0,
        anchor=None,
    )


def _windowed(cluster: Cluster, config: ScheduleConfig) -> Prediction:
    history = simulate(cluster, config)
    return Prediction(
        mode=config.policy.value,
        policy=config.policy,
        ms=history.ms,
        batches_per_s=1000 * history.batches / history.ms,
        efficiency=history.batches / cluster.capacity(history.ms),
        idle=tuple(wait / history.ms for wait in history.waits_ms),
        communication=history.comm_ms / history.ms,
        exchanges=len(history.windows),
        anchor=history.anchor,
    )


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
    batches = config.epochs * config.batches_per_epoch
    return Prediction(
        mode=mode,
        policy=None,
        ms=at,
        batches_per_s=1000 * batches / at,
        efficiency=batches / cluster.capacity(at),
        idle=tuple(wait / at for wait in waits),
        communication=exchanges * cluster.average_ms / at,
        exchanges=exchanges,
        anchor=None,
    )
