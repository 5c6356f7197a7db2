"""Carry out a training: in one process, with ranks of a launcher, or in ranks that it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

from flodl import log
from flodl.checkpoint.training import TrainingFile
from flodl.data.adapters import is_iterable
from flodl.device import select_device, usable_gpus
from flodl.errors import DistributedError, WorkersFailed
from flodl.ranks.group import LocalGroup
from flodl.ranks.launch.current_group import this_group as this_group
from flodl.ranks.launch.launcher import JOIN_VARIABLE, detect, end_with_launcher, mark_watched
from flodl.train.epoch_end import end_state
from flodl.train.handle import TrainedState, TrainerHandle
from flodl.train.plan import TrainingPlan, build_model
from flodl.train.policies.choice import check_elastic, check_exchange, check_policy
from flodl.train.rehearsal import rehearse_for
from flodl.train.run.loop_state import KEY
from flodl.train.run.resume import (
    add_hint,
    extend_error,
    extend_failure,
    resume_source,
    withdrawn_if_refused,
)
from flodl.train.run.run_records import REHEARSAL
from flodl.train.training import carry_out

if TYPE_CHECKING:
    from flodl.monitor import EpochMetrics
    from flodl.monitor.ledger import TimeLedger


def run(plan: TrainingPlan) -> TrainerHandle:
    """Train as the plan says, on one rank or several.

    The first case that applies decides:

    - The model is sharded over the ranks (FSDP): each rank runs the training loop by itself.
    - torchrun or a batch system launched this process: train with the other ranks.
    - ``ranks`` is set, or several GPUs are usable: start processes and train in them.
    - Otherwise: train in this process alone, without a process group.
    """
    end_with_launcher(os.environ)
    mark_watched()
    if file := os.environ.get(REHEARSAL):
        rehearse_for(Path(file), plan, _alone)
    launched = detect(os.environ)
    if plan.sharded:
        check_exchange(plan)
    if plan.distributed.elastic or os.environ.get(JOIN_VARIABLE):
        check_elastic(plan, launched)
    if launched is not None and (
        plan.sharded or plan.distributed.elastic or launched.world_size > 1
    ):
        if not plan.sharded:
            check_policy(plan, plan.distributed.policy)
        try:
            return train_launched(plan)
        except DistributedError as error:
            extend_error(error, plan.run_dir, launched)
            raise
    ranks = 1 if plan.sharded else _ranks_to_start(plan)
    if launched is None and (ranks > 1 or plan.distributed.elastic):
        check_policy(plan, plan.distributed.policy)
        return _train_in_own_ranks(plan, ranks)
    return _alone(plan)


def _alone(plan: TrainingPlan, ledger: TimeLedger | None = None) -> TrainerHandle:
    """Train in this process, without a process group of ours."""
    group = LocalGroup(select_device(plan.device))
    numbered = not plan.sharded and not is_iterable(plan.dataset)
    in_order = not numbered or not continues_many_ranks(plan)
    return carry_out(plan, group, in_order=in_order, ledger=ledger)


def train_launched(plan: TrainingPlan) -> TrainerHandle:
    """Train on this rank and record an error for the launcher."""
    from flodl.ranks.launch.start_ranks import record_failure

    try:
        return _alone(plan) if plan.sharded else carry_out(plan, this_group(plan.device))
    except Exception as error:
        record_failure(error)
        raise


def continues_many_ranks(plan: TrainingPlan) -> bool:
    """Whether the checkpoint to resume from was written by several ranks.

    Such a training needs the schedule of several ranks for two reasons. The untrained batches of an
    unfinished epoch need not be its last ones, and the sample ledger has to be continued.
    """
    source = resume_source(plan)
    if source is None:
        return False
    with withdrawn_if_refused(plan):
        extra = TrainingFile.open(source).value("extra")
    return isinstance(extra, dict) and extra.get(KEY, {}).get("schedule") is not None


def _ranks_to_start(plan: TrainingPlan) -> int:
    if plan.distributed.ranks is not None:
        return plan.distributed.ranks
    if plan.device is not None or torch.cuda.device_count() < 2 or is_iterable(plan.dataset):
        return 1
    return len(usable_gpus())


@final
@dataclass(frozen=True)
class _Result:
    """The result that the rank that writes returns to the process that started it."""

    state: TrainedState
    average: TrainedState | None
    history: list[EpochMetrics]
    stopped: str | None
    devices: list[str]
    averages: int
    aborts: int


def _train_in_own_ranks(plan: TrainingPlan, ranks: int) -> TrainerHandle:
    from flodl.ranks.launch.start_ranks import launch_ranks

    log.msg(f"  starting {ranks} ranks")
    once = None
    if plan.distributed.elastic:
        from flodl.ranks.elastic.start import ElasticLaunch

        once = ElasticLaunch(plan.distributed.min_ranks)
    try:
        results = launch_ranks(
            _own_rank,
            (plan,),
            ranks,
            max_restarts=plan.distributed.max_restarts,
            simulated=plan.distributed.simulate_ms is not None,
            devices=usable_gpus() if plan.device is None and torch.cuda.is_available() else None,
            last_checkpoint=plan.run_dir.last_checkpoint if plan.run_dir is not None else None,
            once=once,
        )
    except BaseException as error:
        if plan.run_dir is not None:
            plan.run_dir.fail(error)
            if end_state(error) == "interrupted":
                checkpoint = plan.run_dir.last_checkpoint
                source = plan.run_dir.resume_source()
                add_hint(error, plan.run_dir, checkpoint if checkpoint.is_file() else source)
        if isinstance(error, WorkersFailed):
            extend_failure(error, plan.run_dir)
        raise
    result: _Result = next(one for one in results.values() if one is not None)
    model = build_model(plan.model_factory, torch.device("cpu"))
    result.state.load_into(model)
    return TrainerHandle(
        model,
        result.history,
        averaged=result.average,
        stopped=result.stopped,
        devices=result.devices,
        averages=result.averages,
        aborts=result.aborts,
        card=result.state.card,
    )


def _own_rank(plan: TrainingPlan) -> Any:
    """Train on a rank that this program started; after a restart, from the last checkpoint."""
    launched, run = detect(os.environ), plan.run_dir
    if launched is not None and run is not None:
        plan = replace(plan, run_dir=run.for_rank(launched.rank))
    handle = train_launched(plan)
    if not this_group().leads:
        return None
    return _Result(
        state=handle.join(),
        average=handle.average() if plan.ema is not None else None,
        history=handle.poll_metrics(),
        stopped=handle.stopped,
        devices=handle.devices,
        averages=handle.version,
        aborts=handle.abort_count,
    )
