"""Save and restore the state of each rank in the checkpoint that rank 0 writes.

After an average, parameters and buffers are the same on all ranks. These differ between ranks: the
state of the optimizer, the random generators, the state that graphs keep, and the measurements of
unfinished epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.distributed.averaging.buffers import broadcast_state
from flodl.distributed.epoch_metrics import EpochLogs, add_up
from flodl.distributed.planning.schedule import ScheduleConfig, ScheduleState
from flodl.distributed.planning.scheduler import redistributed
from flodl.errors import CheckpointError
from flodl.train.loop_state import LoopState
from flodl.train.own_state import of_rank, set_of_rank
from flodl.train.resume import Start, resume, set_rates, withdrawn_if_refused
from flodl.train.training_state import Position, carried_state, set_carried_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flodl.launch.group import Group
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan

KEY = "distributed"
"""Key that only checkpoints of several ranks have."""


def capture_ranks(
    group: Group,
    parts: Assembly,
    logs: EpochLogs,
    *,
    label: str,
    local_step: int,
    steps: int,
    same_optimizer: bool,
) -> list[dict[str, Any]] | None:
    """Collect the state of each rank on rank 0; collective.

    Args:
        group: The ranks.
        parts: Model, optimizer, loader and the rest, of this rank.
        logs: Measurements of this rank.
        label: Identifies this rank's device after a restart.
        local_step: Batches this rank has trained.
        steps: Optimizer steps of this rank.
        same_optimizer: Whether all ranks have the same optimizer state, so that only rank 0 keeps
            it.

    Returns:
        One mapping per rank on rank 0, None elsewhere.
    """
    keeps = group.leads or same_optimizer
    mine = {
        "optimizer": None if keeps else _on_cpu(parts.optimizer.state_dict()),
        "random": generator_states(),
        "carried": _on_cpu(carried_state(parts.model)),
        "own": None if group.leads else _on_cpu(of_rank(parts.parts({}))),
        "logs": logs.state(),
        "label": label,
        "local_step": local_step,
        "steps": steps,
    }
    return group.gather_objects_to_first(mine)


@final
@dataclass(frozen=True, slots=True)
class RankStart:
    """The state from which a rank starts."""

    start: Start
    schedule: ScheduleState
    local_step: int = 0
    steps: int = 0
    """Optimizer steps of this rank."""
    ledger: Mapping[str, Any] | None = None
    """Mark of the sample ledger in the checkpoint; None without one."""
    outer: dict[str, Any] = field(default_factory=dict)
    """State of the outer optimizer."""


def begin(
    plan: TrainingPlan,
    parts: Assembly,
    group: Group,
    config: ScheduleConfig,
    fresh: ScheduleState,
    logs: EpochLogs,
    *,
    label: str,
    before_epoch: Callable[[int], object],
) -> RankStart:
    """Start from the beginning, or from a checkpoint of any number of ranks; collective.

    Only rank 0 reads the file. Afterwards all ranks have the parameters and buffers of rank 0.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another training.
    """
    labels = group.gather_objects(label)
    message: dict[str, Any] | None = None
    start = Start()
    if group.leads:
        start = resume(plan, parts, before_epoch)
        message = {"new": start.source is None}
        if start.source is not None:
            with withdrawn_if_refused(plan):
                message |= _message(start, parts, config, fresh, labels)
    message = group.broadcast_object(message)
    broadcast_state(parts.model, group)
    if message["new"]:
        return RankStart(start, fresh)
    shares = _shares(message.pop("ranks"), labels) if group.leads else None
    message.pop("ranks", None)
    mine = group.scatter_objects(shares)
    if not group.leads:
        start = _follow(message, mine, parts, before_epoch)
    logs.load(mine["logs"])
    set_carried_state(parts.model, mine["carried"])
    # The first rank has read its own from the file.
    if not group.leads and (own := mine.get("own") or message["own"]) is not None:
        set_of_rank(parts.parts({}), own)
    return RankStart(
        start,
        ScheduleState.from_json(message["schedule"]),
        mine["local_step"],
        mine.get("steps", mine["local_step"]),
        message["ledger"],
        message["outer"],
    )


def _message(
    start: Start,
    parts: Assembly,
    config: ScheduleConfig,
    fresh: ScheduleState,
    labels: list[str],
) -> dict[str, Any]:
    """Return the contents of a checkpoint that every rank needs."""
    saved = start.extra.get(KEY)
    if saved is None:
        schedule, ranks = _schedule_of_one(start, fresh, config), [_rank_of_one(start, parts)]
        ledger, outer = None, {}
    else:
        try:
            schedule = ScheduleState.from_json(saved["schedule"])
            ranks, ledger, outer = saved["ranks"], saved["ledger"], saved["outer"]
            known = dict(zip((one["label"] for one in ranks), schedule.elche.ms, strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{start.source} has a malformed record of its ranks ({error}); resume from "
                "another checkpoint"
            ) from error
        if [one["label"] for one in ranks] != labels:
            schedule = redistributed(schedule, config, [known.get(label) for label in labels])
    return {
        "schedule": schedule.as_json(),
        "ranks": ranks,
        "ledger": ledger,
        "outer": outer,
        "position": (start.position.epoch, start.position.step, start.position.global_step),
        "state": start.state.as_json(),
        "loader": parts.loader.state_dict(),
        "optimizer": _on_cpu(parts.optimizer.state_dict()),
        "states": {name: _on_cpu(part.state_dict()) for name, part in _shared_parts(parts).items()},
        "rates": start.rates,
        "own": _on_cpu(of_rank(parts.parts({}))),
    }


def _shares(ranks: list[dict[str, Any]], labels: list[str]) -> list[dict[str, Any]]:
    """Return the state for each current rank: its own if its device was there before."""
    by_label = {one["label"]: one for one in ranks}
    if [one["label"] for one in ranks] == labels:
        return ranks
    spread = add_up([one["logs"] for one in ranks])
    first = generator_states()
    found = []
    for rank, label in enumerate(labels):
        before = by_label.get(label)
        share = dict(before or ranks[0])
        share["logs"] = spread if rank == 0 else []
        if before is None:
            # A new device: use the optimizer state of rank 0 and fresh random numbers.
            share |= {"optimizer": None, "random": None}
        found.append(share)
    found[0] = {**found[0], "optimizer": None, "random": first}
    return found


def _follow(
    message: dict[str, Any],
    mine: dict[str, Any],
    parts: Assembly,
    before_epoch: Callable[[int], object],
) -> Start:
    """Apply on a rank above 0 the checkpoint that rank 0 has read."""
    position = Position(*message["position"])
    if position.step:
        before_epoch(position.epoch)
    own = mine["optimizer"]
    parts.optimizer.load_state_dict(own if own is not None else message["optimizer"])
    parts.loader.load_state_dict(message["loader"])
    for name, part in _shared_parts(parts).items():
        if name in message["states"]:
            part.load_state_dict(message["states"][name])
    state = LoopState.from_json(message["state"])
    state.apply_modes(parts.model)
    random = mine["random"]
    if random is not None:
        set_generator_states(random)
    if message["rates"] is not None:
        set_rates(parts.optimizer, message["rates"])
    return Start(position, state, random)


def _schedule_of_one(start: Start, fresh: ScheduleState, config: ScheduleConfig) -> ScheduleState:
    """Return the schedule for a checkpoint that a single process wrote."""
    epoch, step = start.position.epoch, start.position.step
    length = config.batches_per_epoch
    queue = ((epoch * length + step, (epoch + 1) * length),) if step else ()
    return redistributed(
        replace(
            fresh,
            queue=queue,
            next_epoch=epoch + (1 if step else 0),
            complete=epoch,
            position=epoch * length + step,
        ),
        config,
        [],
    )


def _rank_of_one(start: Start, parts: Assembly) -> dict[str, Any]:
    size = parts.loader.batch_size
    unfinished = start.state.unfinished
    total, count = unfinished.losses
    known = {
        "epoch": start.position.epoch,
        "losses": [total * size, int(count) * size],
        "scalars": {name: list(sums) for name, sums in unfinished.scalars.items()},
        "batches": start.position.step,
        "samples": start.position.step * size,
        "busy_ms": unfinished.seconds * 1000,
        "comm_ms": 0.0,
        "wait_ms": 0.0,
    }
    return {
        "optimizer": None,
        "random": start.generators,
        "carried": _on_cpu(carried_state(parts.model)),
        "logs": [known] if start.position.step else [],
        "label": "one",
        "local_step": start.position.global_step,
        "steps": start.position.global_step,
    }


def _shared_parts(parts: Assembly) -> dict[str, Any]:
    """Return the parts that have the same state on all ranks."""
    named = {
        "scaler": parts.scaler,
        "average": parts.average,
        "schedule": parts.torch_schedule or parts.schedule,
    }
    return {name: part for name, part in named.items() if hasattr(part, "state_dict")}


def _on_cpu(value: Any) -> Any:
    """Copy nested tensors to host memory: a process must not need the GPU of another process."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(item) for item in value)
    return value
