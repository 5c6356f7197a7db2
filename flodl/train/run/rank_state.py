"""Where a training starts, and the state of each rank in the checkpoint that rank 0 writes.

After an average, parameters and buffers are the same on all ranks. What differs between ranks is
kept for each of them:

- the states of its parts, unless they follow steps that the ranks take together;
- the factors of its learning rate;
- which parts of the model are frozen or in eval mode;
- the measurements of unfinished epochs, and the numbers of batches and steps.

A process that trains alone is kept as one rank. The file has the states of the first rank as those
of the training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from flodl.checkpoint.generators import generators_kept
from flodl.data.structure import changed
from flodl.errors import CheckpointError
from flodl.ranks.averaging.state_tensors import broadcast_state
from flodl.ranks.planning.schedule import Joined, ScheduleConfig, ScheduleState
from flodl.ranks.planning.scheduler import pass_barrier, redistributed
from flodl.train.epoch_metrics import EpochLogs, add_up
from flodl.train.run.loop_state import LoopState, Position
from flodl.train.run.part_states import modes, set_modes, set_states, states_of
from flodl.train.run.resume import Start, resume, withdrawn_if_refused
from flodl.train.run.resume_checks import check_same_order
from flodl.train.step.learning_rate import rates_of, set_rates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flodl.ranks.group import Group
    from flodl.train.parts import Assembly
    from flodl.train.settings import TrainingPlan


ELASTIC = "elastic"
"""Key of the value that only the state for a rank that joins has."""


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
        seconds: Time of the epoch so far, if this process trains its batches in order.
        rate: Factors of the learning rate; empty if they depend on the number of ranks.
        asked: What people have changed at the scheduler of torch.
        exchange: What the next exchange of this rank needs of the last one.
    """

    local_step: int = 0
    steps: int = 0
    epoch: int = 0
    step: int = 0
    averages: int = 0
    seconds: float = 0.0
    rate: Mapping[str, float] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    exchange: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RankCounts:
        """Return the numbers in the :func:`rank_record` of a rank."""
        return cls(**{one.name: record[one.name] for one in fields(cls)})


def rank_record(
    parts: Assembly, logs: EpochLogs, counts: RankCounts, label: str, states: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a checkpoint keeps of this rank.

    Args:
        parts: Model, optimizer, loader and the rest, of this rank.
        logs: Measurements of this rank.
        counts: The numbers of this rank.
        label: Identifies this rank's device after a restart.
        states: States of its parts in which it differs from the first rank.
    """
    return {
        "states": states,
        "modes": modes(parts.model),
        "logs": logs.state(),
        "label": label,
        **asdict(counts),
    }


_FOLLOW_STEPS = ("optimizer", "scaler", "average", "schedule")
"""Parts that change only in optimizer steps."""


def own_states(parts: Assembly, group: Group, *, same_steps: bool) -> dict[str, Any]:
    """Return the states of a rank in which it differs from the first one.

    Args:
        parts: Model, optimizer, loader and the rest, of this rank.
        group: The ranks.
        same_steps: Whether the ranks take every step together, so that their optimizers and all
            that follows steps are the same.
    """
    if group.leads:  # the file has its states
        return {}
    shared = ("loader", *(_FOLLOW_STEPS if same_steps else ()))
    states = states_of(parts.parts({}))
    return _on_cpu({name: state for name, state in states.items() if name not in shared})


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
    base: Mapping[str, Tensor] = field(default_factory=dict)
    """The last average of the ranks that this rank has joined."""
    joined: Joined | None = None
    """Where the ranks were that this rank has joined; None if it begins by itself."""
    continues: bool = True
    """Whether this is a state of a training; False at the beginning of a new one."""


def begin(
    plan: TrainingPlan,
    parts: Assembly,
    group: Group,
    planned: tuple[ScheduleConfig, ScheduleState] | None,
    *,
    label: str,
    before_epoch: Callable[[int], object],
    state: Callable[[Path], object],
) -> RankStart:
    """Start from the beginning, or from a checkpoint of any number of ranks; collective.

    Only rank 0 reads the file. Afterwards all ranks have the parameters and buffers of rank 0.
    Where ranks come and go, the others start with the state that one of them has sent.

    Args:
        plan: Names the checkpoint.
        parts: The new parts.
        group: The ranks.
        planned: How ranks share the batches, and the schedule of a new training; None if each rank
            trains its own batches in order.
        label: Identifies this rank's device after a restart.
        before_epoch: As for :func:`~flodl.train.run.resume.resume`.
        state: Writes the state of this rank for one that joins.

    Raises:
        DistributedError: This rank cannot take part.
        CheckpointError: The checkpoint is damaged or belongs to another training.
    """
    if plan.distributed.elastic and not group.leads:
        return _begin_joined(plan, parts, group, before_epoch, state)
    labels = group.gather_objects(label)
    message: dict[str, Any] = {}
    shares: list[dict[str, Any]] | None = None
    start = Start()
    if group.leads:
        start = resume(plan, parts, before_epoch)
        if start.source is not None:
            with withdrawn_if_refused(plan):
                message, ranks = _message(start, parts, planned, labels)
                shares = _shares(ranks, labels, scaled=planned is not None)
    message = group.broadcast_object(message)
    if group.world_size > 1:
        broadcast_state(parts.model, group)
    if not message:
        first = planned[1] if planned is not None else None
        return RankStart(start=start, schedule=first, continues=False)
    mine = group.scatter_objects(shares)
    if not group.leads:
        start = _follow(message, mine, parts, before_epoch)
    return RankStart(
        start=start,
        schedule=ScheduleState.from_json(message["schedule"]) if planned is not None else None,
        counts=RankCounts.of(mine),
        logs=mine["logs"],
        ledger=message["ledger"],
        outer=message["outer"],
    )


def _begin_joined(
    plan: TrainingPlan,
    parts: Assembly,
    group: Group,
    before_epoch: Callable[[int], object],
    state: Callable[[Path], object],
) -> RankStart:
    """Wait for the others and start with the state that one of them has sent."""
    # Imported here: only ranks that come and go need it.
    from flodl.ranks.elastic.group import ElasticGroup

    assert isinstance(group, ElasticGroup)  # noqa: S101 - the runner makes it
    group.begin(state)
    file = group.meet()
    assert file is not None  # noqa: S101 - a rank without a state waits for one
    with generators_kept():
        start = resume(replace(plan, resume=file, run_dir=None), parts, before_epoch)
    form, shared = start.extra[ELASTIC], start.state.distributed
    return RankStart(
        start=replace(start, generators=None, source=None),
        schedule=ScheduleState.from_json(shared["schedule"]),
        counts=replace(RankCounts.of(shared["ranks"][0]), local_step=0, step=0, exchange={}),
        writes=bool(form["writes"]),
        # A rank that joins later may have no access to the files.
        ledger=None if group.joins else shared["ledger"],
        joined=Joined.from_json(form),
        base=form["base"],
    )


def _message(
    start: Start,
    parts: Assembly,
    planned: tuple[ScheduleConfig, ScheduleState] | None,
    labels: list[str],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the contents of a checkpoint that every rank needs, and those of each rank."""
    saved = start.state.distributed
    ranks, schedule = saved["ranks"], None
    ledger, outer = None, {}
    if planned is None:
        if saved["schedule"] is not None:
            ranks = [_in_order(start, ranks[0]) | {"logs": []}]
    elif saved["schedule"] is None:
        ranks = [_by_samples(start, ranks[0], parts)]
        schedule = _schedule_of_one(start, planned[1], planned[0])
    else:
        config = planned[0]
        try:
            for begun in saved["orders"]:
                parts.loader.order(int(begun["epoch"]))  # drawn once: the batches need it, too
                check_same_order(f"checkpoint {start.source}", begun, parts.loader)
            schedule = ScheduleState.from_json(saved["schedule"])
            ledger, outer = saved["ledger"], saved["outer"]
            known = dict(zip((one["label"] for one in ranks), schedule.elche.ms, strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{start.source} has a malformed record of its ranks ({error}); resume from "
                "another checkpoint"
            ) from error
        if [one["label"] for one in ranks] != labels:
            schedule = redistributed(schedule, config, [known.get(label) for label in labels])
        else:  # this run may be longer, or have more to do between two epochs
            schedule = pass_barrier(schedule, config)
    states = {}
    if len(labels) > 1:
        states = _on_cpu(states_of(parts.parts({})))
        del states["random"]  # a new rank draws its own
    return {
        "schedule": schedule.as_json() if schedule is not None else None,
        "ledger": ledger,
        "outer": outer,
        "position": (start.position.epoch, start.position.step, start.position.global_step),
        "state": replace(start.state, distributed={"schedule": None, "ranks": []}).as_json(),
        "states": states,
        "rates": start.rates,
    }, ranks


def _shares(
    ranks: list[dict[str, Any]], labels: list[str], *, scaled: bool
) -> list[dict[str, Any]]:
    """Return the state for each current rank: its own if its device was there before.

    Args:
        ranks: The ranks of the checkpoint.
        labels: The current ranks.
        scaled: Whether the factors of the learning rate depend on the number of ranks.
    """
    if [one["label"] for one in ranks] == labels:
        return ranks
    by_label = {one["label"]: one for one in ranks}
    # A new device begins with the states of rank 0, and with fresh random numbers.
    found = [dict(by_label.get(label, {**ranks[0], "states": {}}), logs=[]) for label in labels]
    for share in found:
        share["exchange"] = {}
        if scaled:
            share["rate"] = {}
    found[0] |= {"states": {}, "logs": add_up([one["logs"] for one in ranks])}
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
    set_states(parts.parts({}), message["states"] | mine["states"])
    set_modes(parts.model, mine["modes"])
    state = LoopState.from_json(message["state"])
    if "scheduler" in state.acts:
        state = replace(state, acts={**state.acts, "scheduler": mine["asked"]})
    last_rates: list[float] = []
    if message["rates"] is not None:
        last_rates = rates_of(parts.optimizer)
        set_rates(parts.optimizer, message["rates"])
    return Start(position, state, mine["states"].get("random"), last_rates=last_rates)


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


def _in_order(start: Start, rank: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a process that continues where a schedule has trained every batch."""
    place = start.position
    counts = RankCounts(
        local_step=place.global_step, steps=place.global_step, epoch=place.epoch, step=place.step
    )
    return {**rank, **asdict(counts)}


def _by_samples(start: Start, rank: dict[str, Any], parts: Assembly) -> dict[str, Any]:
    """Return the record of a process alone as that of ranks, which weight by samples."""
    size, step = parts.batches.batch_size or 1, start.position.step
    logs = [
        {
            **known,
            "losses": [one * size for one in known["losses"]],
            "batches": step,
            "samples": step * size,
            "busy_ms": rank["seconds"] * 1000,
        }
        for known in rank["logs"]
    ]
    return {**rank, "logs": logs, "label": "one"}


def _on_cpu(states: dict[str, Any]) -> dict[str, Any]:
    """Copy nested tensors to host memory: a process must not need the GPU of another process."""
    return {name: changed(state, lambda one: one.detach().cpu()) for name, state in states.items()}
