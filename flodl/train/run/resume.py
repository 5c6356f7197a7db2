"""Restoring new parts to the point where an earlier training stopped, and how to ask for that."""

from __future__ import annotations

import copy
import os
import shlex
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fdl.base.files import remove_leftovers
from fdl.base.run_record import RESUME, without_resume
from fdl.base.units import counted
from flodl import log, terminal
from flodl.checkpoint.generators import generator_states
from flodl.checkpoint.sharded import agreed, is_sharded
from flodl.errors import CheckpointError, RunDirectoryError
from flodl.ranks.launch.launcher import has_begun
from flodl.train.observers.guards.snapshots import Snapshot
from flodl.train.run.loop_state import BEGINNING, LoopState, Position
from flodl.train.run.part_states import modes, set_modes, set_states, states_of
from flodl.train.run.resume_checks import check_epochs, check_optimizer, tell_ignored
from flodl.train.run.run_records import LAST, checkpoint_in, typed_words
from flodl.train.run.training_state import TrainingState
from flodl.train.step.learning_rate import FIRST_RATE, rates_of, set_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from flodl.errors import DistributedError, WorkersFailed
    from flodl.ranks.launch.launcher import Launched
    from flodl.train.parts import Assembly
    from flodl.train.run.part_states import Parts
    from flodl.train.run.run_directory import RunDirectory
    from flodl.train.run.training_state import Restored
    from flodl.train.settings import TrainingPlan


@final
@dataclass(frozen=True, slots=True)
class Start:
    """Where a training begins."""

    position: Position = BEGINNING
    state: LoopState = field(default_factory=LoopState)
    generators: dict[str, Any] | None = None
    source: Path | None = None
    """The checkpoint; None for a new training."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """All values that the loop kept in it."""
    rates: list[float] | None = None
    """The initial learning rates for a schedule; None without a schedule."""
    last_rates: list[float] = field(default_factory=list)
    """Those of the step before, for the optimizer until the schedule sets the next ones."""


def resume_source(plan: TrainingPlan) -> Path | None:
    """Return the checkpoint to continue from; None for a new training.

    A run directory that continues another run names the checkpoint itself. A run whose ranks were
    started again continues from its own checkpoint, even if it first continued another run.

    Raises:
        RunDirectoryError: ``"last"`` was asked for without a run directory that looks for it, or
            there is no checkpoint.
    """
    own = plan.run_dir.restart_source() if plan.run_dir is not None else None
    if own is not None:
        return own
    if plan.resume is not None and plan.resume != "last":
        return checkpoint_in(plan.resume)
    source = plan.run_dir.resume_source() if plan.run_dir is not None else None
    if source is None and plan.resume == "last":
        raise RunDirectoryError(
            "resume('last'): the newest run is looked for when the run directory is made; make it "
            "with RunDirectory.create(root, resume='last') and give it to .run_dir(…), or name "
            "the last.fdl"
        )
    return source


@contextmanager
def withdrawn_if_refused(plan: TrainingPlan) -> Iterator[None]:
    """Withdraw the run directory if the checkpoint is refused inside the context."""
    try:
        yield
    except CheckpointError:
        if plan.run_dir is not None:
            plan.run_dir._withdraw()
        raise


def resume(plan: TrainingPlan, assembly: Assembly, before_epoch: Callable[[int], object]) -> Start:
    """Restore the parts of a training; a new training restores nothing.

    Args:
        plan: Names the checkpoint.
        assembly: The new parts.
        before_epoch: Called with the number of an epoch that continues after its beginning. It sets
            up objects that no checkpoint holds. Its changes to the parts are undone by a second
            restore.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another training.
    """
    own = resume_source(plan)
    path = str(own) if own is not None else None
    # With a sharded model, the lowest rank decides.
    path = agreed(path, assembly.model.parameters(), "the decisions of a training")
    if path is None:
        return Start()
    source = Path(path)
    terminal.status("reading the checkpoint")
    built = [dict(group) for group in assembly.optimizer.param_groups]
    rates = [float(group["lr"]) for group in built]
    remove_leftovers(source.parent)
    with withdrawn_if_refused(plan):
        restored, state = _restored(source, plan, assembly, built)
    position = restored.position
    if position.step:
        # Without the groups that the program has added: it may add one before this epoch.
        drop_groups(assembly.optimizer, len(rates))
        before_epoch(position.epoch)
        TrainingState.restore(source, assembly.parts({}))
    set_modes(assembly.model, state.distributed["ranks"][0]["modes"])
    first_rates, last_rates = None, list[float]()
    if assembly.schedule is not None:
        last_rates = rates_of(assembly.optimizer)
        # A schedule keeps the ratios of the rates at the very beginning.
        added = assembly.optimizer.param_groups[len(rates) :]
        rates += [float(group.get(FIRST_RATE, group["lr"])) for group in added]
        set_rates(assembly.optimizer, rates)
        first_rates = rates
    within = f" and {counted(position.step, 'batch')}" if position.step else ""
    complete = counted(position.epoch, "complete epoch")
    log.msg(f"  resumed from {source} after {complete}{within}")
    tell_ignored(built, assembly.optimizer, plan, state.acts)
    if position.epoch == plan.num_epochs:
        log.msg(f"  nothing is left to train: this run asks for {plan.num_epochs} epochs in all")
    return Start(
        position, state, generator_states(), source, restored.extra, first_rates, last_rates
    )


def _restored(
    source: Path, plan: TrainingPlan, assembly: Assembly, built: Sequence[Mapping[str, Any]]
) -> tuple[Restored, LoopState]:
    """Restore the parts, and check that the run asks for what the checkpoint can give."""
    restored = TrainingState.restore(source, assembly.parts({}))
    state = LoopState.from_json(restored.extra)
    state.check_grouping({"accumulate": plan.accumulate}, restored.position.step)
    check_optimizer(source, built, assembly.optimizer, plan)
    check_epochs(source, restored.position, plan)
    return restored, state


@contextmanager
def undone(parts: Parts, built: int) -> Iterator[None]:
    """Undo what a hook does to restored parts: their state holds it from before the checkpoint.

    Meanwhile the optimizer lacks the groups that the program has added: a hook may add one again.

    Args:
        parts: The restored parts.
        built: Number of groups that the optimizer was built with.
    """
    if any(map(is_sharded, parts.model.parameters())):  # each process keeps its own part
        states = copy.deepcopy(states_of(parts))
        states.pop("loader", None)
        restore = partial(set_states, parts, states)
    else:
        restore = partial(Snapshot.capture(parts, BEGINNING).restore, parts)
    kept = modes(parts.model)
    drop_groups(parts.optimizer, built)
    yield
    drop_groups(parts.optimizer, built)  # the state has them in their order
    restore()
    set_modes(parts.model, kept)


def drop_groups(optimizer: torch.optim.Optimizer, first: int) -> None:
    """Drop the parameter groups from ``first`` on, and their state."""
    for group in optimizer.param_groups[first:]:
        for parameter in group["params"]:
            optimizer.state.pop(parameter, None)
    del optimizer.param_groups[first:]


def add_hint(stop: BaseException, run: RunDirectory | None, checkpoint: Path | None) -> None:
    """Add the command that continues the training to the exception that ends it.

    Without a checkpoint, or if the program has no option ``resume``, nothing is added.

    Args:
        stop: The exception.
        run: The run directory, with the configuration of the program.
        checkpoint: The checkpoint that ``--resume last`` finds.
    """
    if run is not None and checkpoint is not None and "resume" in run.config:
        stop.add_note(_continue_with())


def extend_error(error: DistributedError, run: RunDirectory | None, launched: Launched) -> None:
    """Add what follows to the message of a rank that ends, because the launcher does not say it.

    If the training has begun and restarts are left, it starts the ranks again. Otherwise the
    message gets the last checkpoint of the run and the command. Rank 0 tells it, and rank 1 on the
    same host, because rank 0 may be the one that was lost.

    Args:
        error: Says what happened.
        run: The run directory, as this rank has it.
        launched: The place of this rank.
    """
    tells = launched.rank == 0 or (launched.rank == 1 and launched.node == 0)
    if run is None or not tells:
        return
    if launched.restarts_left and has_begun():
        times = f"{launched.restart + 1} of {launched.restart + launched.restarts_left}"
        error.args = (f"{error}; the launcher starts all ranks again ({times})", *error.args[1:])
        return
    try:
        kept = run.last_checkpoint.is_file()
    except RunDirectoryError:  # rank 0 has made none that this rank can see
        return
    if kept:
        _append(error, f"; the last checkpoint is {Path(run.typed, LAST)}", run)


def extend_failure(error: WorkersFailed, run: RunDirectory | None) -> None:
    """Add the command to the message about ranks that the program has started itself.

    It names the last checkpoint, if there is one.
    """
    if run is not None and error.last_checkpoint is not None:
        _append(error, "", run)


def _append(error: DistributedError, text: str, run: RunDirectory) -> None:
    command = f"\n{_continue_with()}" if "resume" in run.config else ""
    error.args = (f"{error}{text}{command}", *error.args[1:])


def _continue_with() -> str:
    return f"continue with: {_command(os.environ)}"


def _command(environ: Mapping[str, str]) -> str:
    words = typed_words(environ)
    if words is None:
        return f"the same command and {RESUME} last"
    return shlex.join([*without_resume(words), RESUME, "last"])
