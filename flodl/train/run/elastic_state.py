"""How a rank that joins a training begins: with the state that another rank has sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.ranks.elastic.group import ElasticGroup
from flodl.ranks.planning.schedule import Joined, ScheduleState
from flodl.train.run.member import ELASTIC
from flodl.train.run.rank_state import RankCounts, RankStart
from flodl.train.run.resume import resume

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flodl.ranks.group import Group
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan


def begin_joined(
    plan: TrainingPlan,
    parts: Assembly,
    group: Group,
    before_epoch: Callable[[int], object],
    state: Callable[[Path], object],
) -> RankStart:
    """Wait for the others and start with the state that one of them has sent.

    Args:
        plan: The plan of the training.
        parts: The new parts.
        group: The ranks.
        before_epoch: As for :func:`~flodl.train.run.resume.resume`.
        state: As for :meth:`~flodl.ranks.elastic.group.ElasticGroup.begin`.

    Raises:
        DistributedError: This rank cannot take part.
        CheckpointError: The state does not fit this rank's model, optimizer or data.
    """
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
        joined=Joined.from_json(form),
    )
