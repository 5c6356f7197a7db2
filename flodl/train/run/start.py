"""Where a process begins: alone, with all ranks, or with the state that another rank has sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.ranks.planning.schedule import Joined, ScheduleState
from flodl.train.run.member import ELASTIC
from flodl.train.run.rank_state import RankCounts, RankStart, begin, begin_in_order
from flodl.train.run.resume import resume

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flodl.ranks.group import Group
    from flodl.ranks.planning.schedule import ScheduleConfig
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan


def start_of(
    plan: TrainingPlan,
    parts: Assembly,
    group: Group,
    planned: tuple[ScheduleConfig, ScheduleState] | None,
    *,
    label: str,
    before_epoch: Callable[[int], object],
    state: Callable[[Path], object],
) -> RankStart:
    """Return where this rank starts, from the beginning or from a checkpoint; collective.

    Args:
        plan: Names the checkpoint.
        parts: The new parts.
        group: The ranks.
        planned: As for :func:`~flodl.train.run.rank_state.begin`.
        label: Identifies this rank's device after a restart.
        before_epoch: As for :func:`~flodl.train.run.resume.resume`.
        state: Writes the state of this rank for one that joins.

    Raises:
        DistributedError: This rank cannot take part.
        CheckpointError: The checkpoint is damaged or belongs to another training.
    """
    if planned is None and group.world_size == 1:
        return begin_in_order(plan, parts, before_epoch)
    if plan.distributed.elastic and not group.leads:
        return _begin_joined(plan, parts, group, before_epoch, state)
    return begin(plan, parts, group, planned, label=label, before_epoch=before_epoch)


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
    random = generator_states()
    start = resume(replace(plan, resume=file, run_dir=None), parts, before_epoch)
    set_generator_states(random)
    form = start.extra[ELASTIC]
    return RankStart(
        start=replace(start, generators=None, source=None),
        schedule=ScheduleState.from_json(form["schedule"]),
        counts=RankCounts(**{**form["rank"], "local_step": 0, "step": 0}),
        writes=bool(form["writes"]),
        # A rank that joins later may have no access to the files.
        ledger=None if group.joins else form["ledger"],
        joined=Joined.from_json(form),
        base=form["base"],
    )
