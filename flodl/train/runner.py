"""A training, from its plan to a trained model: on one process, or on several ranks."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

from flodl import log
from flodl.checkpoint.training import TrainingFile
from flodl.data import DataLoader, IterableLoader
from flodl.data.adapters import is_iterable
from flodl.device import deterministic_algorithms, select_device, usable_gpus
from flodl.errors import DistributedError, DivergedError, WorkersFailed
from flodl.monitor.ledger import TimeLedger
from flodl.ranks.group import LocalGroup
from flodl.ranks.launch.join import this_group as this_group
from flodl.ranks.launch.launcher import JOIN_VARIABLE, detect, end_with_launcher, mark_watched
from flodl.ranks.settings import PER_RANK, Policy
from flodl.ranks.signature import check_same, reads_files, signature
from flodl.train.callbacks import diverged, end_state
from flodl.train.epoch_metrics import device_name
from flodl.train.handle import TrainedState, TrainerHandle
from flodl.train.loop import Loop
from flodl.train.micro_batch import settled_micro_batch
from flodl.train.observers import merge_into_run, recorded
from flodl.train.observers.digests import few_samples_digest
from flodl.train.observers.reporting import Reporter, reported
from flodl.train.parts import Assembly, assemble
from flodl.train.policies.choice import (
    barrier_every,
    check_elastic,
    check_policy,
    check_sharded,
    schedule_config,
    tell_waiting,
    with_policy,
)
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
from flodl.train.settings import TrainingPlan
from flodl.train.settings.user_parts import build_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flodl.monitor import EpochMetrics
    from flodl.ranks.group import Group


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
        check_sharded(plan)
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


def carry_out(
    plan: TrainingPlan, group: Group, *, in_order: bool = False, ledger: TimeLedger | None = None
) -> TrainerHandle:
    """Carry out a plan on this rank, together with the others; collective.

    Rank 0 evaluates, writes files and prints. At the end the model is the same on all ranks.

    Args:
        plan: What to train.
        group: The ranks.
        in_order: Whether this process, the only one of its group, trains every batch in order. A
            training that several ranks have begun continues with their schedule instead.
        ledger: Books the time; None for a new one.

    Raises:
        DistributedError: The ranks cannot continue together.
        DivergedError: No rank has finite parameters, or a loss or the averaged model is not finite.
    """
    reason = ""
    given = [one for one in (*PER_RANK, "speed_hint") if getattr(plan.distributed, one) is not None]
    if group.world_size == 1 and given:  # it may continue a training of several ranks
        plan = replace(plan, distributed=plan.distributed.having(**dict.fromkeys(given)))
    if group.world_size > 1 or not in_order:
        plan.distributed.check_world(group.world_size)
        plan, reason = with_policy(plan, group)
    ledger = ledger or TimeLedger.since_process_start()
    history: list[EpochMetrics] = []
    devices = group.gather_objects(device_name(group.device, group.rank))
    exact = deterministic_algorithms(group.device) if plan.deterministic else nullcontext()
    with (
        recorded(_for_rank(plan, group), group) as timed,
        reported(replace(timed, timeline=None), ledger, history) as reporter,
        exact,
        nullcontext() if group.leads else _quiet(group),
    ):
        if group.world_size > 1:
            reporter.tell_policy(plan.distributed.policy, reason)
        loop = _train(timed, group, reporter, ledger, history, in_order=in_order)
        if group.world_size > 1 and plan.distributed.policy is Policy.SYNC:
            tell_waiting(history)
    return TrainerHandle(
        loop.model,
        history,
        average=loop.parts.average,
        stopped=loop.run.stopped,
        devices=() if in_order and group.world_size == 1 else devices,
        averages=loop.feed.averages,
        aborts=loop.feed.aborts,
        monitor=loop.run.monitor,
    )


def _train(
    plan: TrainingPlan,
    group: Group,
    reporter: Reporter,
    ledger: TimeLedger,
    history: list[EpochMetrics],
    *,
    in_order: bool,
) -> Loop:
    plan = settled_micro_batch(plan, group, _alone)
    parts = assemble(plan, group.device, group.world_size, group.rank)
    config = None
    together = group.world_size > 1 or not in_order
    in_order = in_order or isinstance(parts.batches, IterableLoader)
    if together:
        # Who joins later may run in another place, with other files.
        files = plan.distributed.elastic or reads_files(os.environ)
        check_same(group, signature(_facts(plan, parts), files=files))
    if not in_order:
        # Only rank 0 writes files, so only rank 0 knows when a write is due.
        every = group.broadcast_object(barrier_every(plan))
        config = schedule_config(plan, parts, group.world_size, every)
    loop = Loop(plan, group, config, parts, reporter, ledger, history)
    try:
        loop.train()
        if not plan.record_timeline:
            merge_into_run(plan, group)
    except DivergedError as error:
        scale = loop.rate.steered.scale
        scaled = "" if scale == 1 else f" (lr_scale_ratio multiplies it by {scale:g})"
        told = diverged(error, loop.checkpoints.keeper.whereabouts(), scaled)
        loop.hooks.tell_exception(loop.run, told)
        raise told from None
    except BaseException as error:
        # First the hint: another signal may end a callback.
        if group.leads and end_state(error) == "interrupted":
            add_hint(error, plan.run_dir, loop.checkpoints.keeper.to_resume(loop.start.source))
        loop.hooks.tell_exception(loop.run, error)
        raise
    finally:
        loop.close()
    return loop


def _facts(plan: TrainingPlan, parts: Assembly) -> dict[str, object]:
    """Return the settings and facts that must be the same on every rank."""
    from flodl.ranks.averaging.state_tensors import model_facts

    settings = plan.distributed
    loader, data = parts.batches, {}
    if isinstance(loader, DataLoader):
        order = loader.state_dict()["sampler"]
        data = {"the number of samples": loader.num_samples, "the order of the samples": order}
        if digest := few_samples_digest(loader.resident):
            data["the digest of some samples"] = digest
    facts = model_facts(parts.model) | {
        **data,
        "batch_size": loader.batch_size,
        "the number of batches": loader.num_batches,
        "num_epochs": plan.num_epochs,
        "seed": plan.seed,
        "accumulate": plan.accumulate,
        "guards": str(plan.guards),
        "eval_fn": plan.eval_fn is not None,
        "scheduler": plan.scheduler is not None,
        "lr_scheduler": plan.lr_scheduler is not None,
        "max_grad_norm": plan.max_grad_norm,
        "autocast": str(plan.autocast),
        "ema": plan.ema,
        "deterministic": plan.deterministic,
        "checkpoint_steps": plan.checkpoint_steps,
        "checkpoint_every": plan.checkpoint_every,
        "live_setting": [setting.name for setting in plan.live_settings],
    }
    plain = settings.__dataclass_fields__.keys() - {"outer_optimizer", "micro_batch"}
    if settings.elastic:
        plain -= {"ranks", "min_ranks", "max_restarts"}  # of one host
    return facts | {name: str(getattr(settings, name)) for name in sorted(plain)}


def _for_rank(plan: TrainingPlan, group: Group) -> TrainingPlan:
    """Return the plan for this rank: only rank 0 prints and writes files."""
    if group.leads:
        return plan
    whole = None if group.is_fixed else plan
    return replace(
        plan, whole=whole, monitor=None, live=None, run_dir=None, sinks=(), progress=False,
        metrics_fn=None, checkpoint_fn=None,
    )  # fmt: skip


@contextmanager
def _quiet(group: Group) -> Iterator[None]:
    """Limit a rank above 0 to warnings: rank 0 prints for all."""
    before = log.verbosity()
    if group.joins:
        log.msg("  joining the training; its first rank prints the epochs")
    log.set_verbosity(min(before, log.Verbosity.QUIET))
    try:
        yield
    finally:
        log.set_verbosity(before)
    if group.joins:
        log.msg("  the training has ended")
