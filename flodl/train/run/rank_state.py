"""Where a training starts, and the state of each rank in the checkpoint that rank 0 writes.

After an average, parameters and buffers are the same on all ranks. What differs between ranks is
kept for each of them:

- all parts with a state, such as optimizer, scheduler, gradient scaler and running average, unless
  the ranks take every step together;
- the factors of its learning rate;
- the random generators;
- what graphs carry and observe, and which parts of the model are frozen or in eval mode;
- the measurements of unfinished epochs, and the numbers of batches and steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.errors import CheckpointError
from flodl.ranks.averaging.buffers import broadcast_state
from flodl.ranks.planning.schedule import Joined, ScheduleConfig, ScheduleState
from flodl.ranks.planning.scheduler import redistributed
from flodl.train.epoch_metrics import EpochLogs, add_up
from flodl.train.run.loop_state import LoopState, modes
from flodl.train.run.own_state import of_rank, set_of_rank
from flodl.train.run.resume import Start, resume, set_rates, withdrawn_if_refused
from flodl.train.run.resume_checks import check_same_order
from flodl.train.run.training_state import (
    Position,
    carried_state,
    observed_states,
    set_carried_state,
    set_observed_states,
    stateful,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from flodl.ranks.group import Group
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan

KEY = "distributed"
"""Key that only checkpoints of several ranks have."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RankCounts:
    """Numbers that a rank counts, and the factors of its learning rate.

    Attributes:
        local_step: Batches this rank has trained.
        steps: Optimizer steps of this rank.
        epoch: The epoch of its latest batch.
        step: Batches this rank has trained in that epoch.
        averages: Averages of all ranks.
        rate: Factors of the learning rate; empty in checkpoints of earlier versions.
        asked: What people have changed at the scheduler of torch.
    """

    local_step: int = 0
    steps: int = 0
    epoch: int = 0
    step: int = 0
    averages: int = 0
    rate: Mapping[str, float] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)


def capture_ranks(
    group: Group,
    parts: Assembly,
    logs: EpochLogs,
    counts: RankCounts,
    exchange: Mapping[str, Tensor],
    *,
    label: str,
    same_steps: bool,
) -> list[dict[str, Any]] | None:
    """Collect the state of each rank on rank 0; collective.

    Args:
        group: The ranks.
        parts: Model, optimizer, loader and the rest, of this rank.
        logs: Measurements of this rank.
        counts: The numbers of this rank.
        exchange: What its next exchange needs of the last one.
        label: Identifies this rank's device after a restart.
        same_steps: Whether the ranks take every step together, so that their optimizers and all
            that follows steps are the same.

    Returns:
        One mapping per rank on rank 0, None elsewhere.
    """
    own: dict[str, Any] = {}
    if not group.leads:  # the file has those of rank 0 where one process has them
        own = {name: part.state_dict() for name, part in _moving_parts(parts).items()}
        if same_steps:
            own = {name: state for name, state in own.items() if name not in _FOLLOW_STEPS}
    mine = {
        "states": _on_cpu(own),
        "random": generator_states(),
        "carried": _on_cpu(carried_state(parts.model)),
        "observed": {} if group.leads else observed_states(parts.model),
        "modes": modes(parts.model),
        "own": None if group.leads else _on_cpu(of_rank(parts.parts({}))),
        "exchange": _on_cpu(dict(exchange)),
        "logs": logs.state(),
        "label": label,
        **asdict(counts),
    }
    return group.gather_objects_to_first(mine)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RankStart:
    """The state from which a rank starts."""

    start: Start
    schedule: ScheduleState | None = None
    """How the ranks share the batches; None for a process that trains all of them in order."""
    counts: RankCounts = field(default_factory=RankCounts)
    logs: Sequence[Mapping[str, Any]] = ()
    """Measurements of unfinished epochs."""
    ledger: Mapping[str, Any] | None = None
    """Mark of the sample ledger in the checkpoint; None without one."""
    outer: dict[str, Any] = field(default_factory=dict)
    """State of the outer optimizer."""
    writes: bool | None = None
    """Whether rank 0 keeps states; None if it has not told this rank yet."""
    exchange: Mapping[str, Tensor] = field(default_factory=dict)
    """What the next exchange needs of the last one."""
    base: Mapping[str, Tensor] = field(default_factory=dict)
    """The last average of the ranks that this rank has joined."""
    joined: Joined | None = None
    """Where the ranks were that this rank has joined; None if it begins by itself."""


def begin_in_order(
    plan: TrainingPlan, parts: Assembly, before_epoch: Callable[[int], object]
) -> RankStart:
    """Start a process that trains every batch, from the beginning or from a checkpoint.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another training.
    """
    start = resume(plan, parts, before_epoch)
    position, unfinished = start.position, start.state.unfinished
    known = {
        "epoch": position.epoch,
        "losses": unfinished.losses,
        "scalars": unfinished.scalars,
    }
    counts = RankCounts(
        local_step=position.global_step,
        steps=position.global_step,
        epoch=position.epoch,
        step=position.step,
        rate={"scale": start.state.scale, "counted": 1.0},
    )
    return RankStart(start=start, counts=counts, logs=[known] if position.step else [])


def begin(
    plan: TrainingPlan,
    parts: Assembly,
    group: Group,
    planned: tuple[ScheduleConfig, ScheduleState] | None,
    *,
    label: str,
    before_epoch: Callable[[int], object],
) -> RankStart:
    """Start from the beginning, or from a checkpoint of any number of ranks; collective.

    Only rank 0 reads the file. Afterwards all ranks have the parameters and buffers of rank 0.

    Args:
        plan: Names the checkpoint.
        parts: The new parts.
        group: The ranks.
        planned: How ranks share the batches, and the schedule of a new training; None if each rank
            trains its own batches in order.
        label: Identifies this rank's device after a restart.
        before_epoch: As for :func:`~flodl.train.run.resume.resume`.

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
                message |= _message(start, parts, planned, labels)
    message = group.broadcast_object(message)
    broadcast_state(parts.model, group)
    if message["new"]:
        return RankStart(start=start, schedule=planned[1] if planned is not None else None)
    shares = _shares(message.pop("ranks"), labels) if group.leads else None
    message.pop("ranks", None)
    mine = group.scatter_objects(shares)
    if not group.leads:
        start = _follow(message, mine, parts, before_epoch)
    set_carried_state(parts.model, mine["carried"])
    # The first rank has read its own from the file.
    if not group.leads and (own := mine.get("own") or message["own"]) is not None:
        set_of_rank(parts.parts({}), own)
    return RankStart(
        start=start,
        schedule=ScheduleState.from_json(message["schedule"]) if planned is not None else None,
        counts=_counts(mine),
        logs=mine["logs"],
        ledger=message["ledger"],
        outer=message["outer"],
        exchange=mine.get("exchange", {}),
    )


def _message(
    start: Start,
    parts: Assembly,
    planned: tuple[ScheduleConfig, ScheduleState] | None,
    labels: list[str],
) -> dict[str, Any]:
    """Return the contents of a checkpoint that every rank needs."""
    saved = start.extra.get(KEY)
    schedule: ScheduleState | None = None
    ledger, outer = None, {}
    if saved is None:
        ranks = [_rank_of_one(start, parts)]
        if planned is not None:
            schedule = _schedule_of_one(start, planned[1], planned[0])
    elif planned is None:
        ranks = saved["ranks"]
    else:
        config = planned[0]
        try:
            for begun in saved.get("orders", ()):
                parts.loader.order(int(begun["epoch"]))  # drawn once: the batches need it, too
                check_same_order(f"checkpoint {start.source}", begun, parts.loader)
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
        "schedule": schedule.as_json() if schedule is not None else None,
        "ranks": ranks,
        "ledger": ledger,
        "outer": outer,
        "position": (start.position.epoch, start.position.step, start.position.global_step),
        "state": start.state.as_json(),
        "loader": parts.batches.state_dict(),
        "states": {name: _on_cpu(part.state_dict()) for name, part in _moving_parts(parts).items()},
        "observed": observed_states(parts.model),
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
        # Another number of ranks may need other factors of the rate.
        share["rate"] = {}
        share["exchange"] = {}
        if before is None:
            # A new device: use the states of rank 0 and fresh random numbers.
            share |= {"states": {}, "optimizer": None, "observed": {}, "random": None}
        found.append(share)
    found[0] = {**found[0], "states": {}, "optimizer": None, "random": first}
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
    parts.batches.load_state_dict(message["loader"])
    states = message["states"] | _own_states(mine)
    for name, part in _moving_parts(parts).items():
        if name in states:
            part.load_state_dict(states[name])
    set_observed_states(parts.model, mine.get("observed") or message["observed"])
    state = LoopState.from_json(message["state"])
    state = replace(state, **mine.get("modes", {}))
    if "asked" in mine and "scheduler" in state.acts:
        state = replace(state, acts={**state.acts, "scheduler": mine["asked"]})
    state.apply_modes(parts.model)
    random = mine["random"]
    if random is not None:
        set_generator_states(random)
    if message["rates"] is not None:
        set_rates(parts.optimizer, message["rates"])
    return Start(position, state, random)


def _own_states(mine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the states that only this rank has; earlier versions kept only its optimizer."""
    if "states" in mine:
        states: Mapping[str, Any] = mine["states"]
        return states
    return {} if mine["optimizer"] is None else {"optimizer": mine["optimizer"]}


def _counts(mine: Mapping[str, Any]) -> RankCounts:
    """Return the numbers of a rank; earlier versions kept fewer."""
    known = {one.name: mine[one.name] for one in fields(RankCounts) if one.name in mine}
    return RankCounts(**({"steps": mine["local_step"]} | known))


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
    size = parts.batches.batch_size or 1
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
        "states": {},
        "random": start.generators,
        "carried": _on_cpu(carried_state(parts.model)),
        "logs": [known] if start.position.step else [],
        "label": "one",
        "local_step": start.position.global_step,
        "steps": start.position.global_step,
        "epoch": start.position.epoch,
        "step": start.position.step,
    }


_FOLLOW_STEPS = ("optimizer", "scaler", "average", "schedule")
"""Parts that change only in optimizer steps."""


def _moving_parts(parts: Assembly) -> dict[str, Any]:
    """Return the parts with a state that changes while batches are trained."""
    every = parts.parts({})
    moving = {"optimizer": every.named_optimizer(), **stateful(every)}
    del moving["loader"]
    return moving


def _on_cpu(value: Any) -> Any:
    """Copy nested tensors to host memory: a process must not need the GPU of another process."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(item) for item in value)
    return value
