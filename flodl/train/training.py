"""A training, from its plan to a trained model: on one process or on several ranks."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from flodl import log
from flodl.data import DataLoader, IterableLoader
from flodl.device import deterministic_algorithms, select_device
from flodl.errors import DivergedError
from flodl.monitor.ledger import TimeLedger
from flodl.ranks.group import LocalGroup
from flodl.ranks.settings import Policy
from flodl.ranks.signature import check_same, reads_files, signature
from flodl.train.epoch_end import diverged, end_state
from flodl.train.epoch_metrics import device_name
from flodl.train.handle import TrainerHandle
from flodl.train.loop import Loop
from flodl.train.micro_batch import settled_micro_batch
from flodl.train.observers.digests import few_samples_digest
from flodl.train.observers.epoch_observers import merge_into_run, recorded
from flodl.train.observers.reporting import Reporter, reported
from flodl.train.parts import Assembly, assemble
from flodl.train.policies.choice import barrier_every, schedule_config, tell_waiting, with_policy
from flodl.train.run.resume import add_hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flodl.monitor import EpochMetrics
    from flodl.ranks.group import Group
    from flodl.train.plan import TrainingPlan


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


def _alone(plan: TrainingPlan, ledger: TimeLedger | None) -> TrainerHandle:
    """Train in this process, whatever other ranks do."""
    group = LocalGroup(select_device(plan.device))
    return carry_out(plan, group, in_order=True, ledger=ledger)


def _facts(plan: TrainingPlan, parts: Assembly) -> dict[str, object]:
    """Return the settings and facts that must be the same on every rank."""
    from flodl.ranks.averaging.buffers import model_facts

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
