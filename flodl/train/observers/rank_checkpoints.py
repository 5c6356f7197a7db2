"""Write the checkpoints, the trace and the sample ledger of a training."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from flodl import log
from flodl.data import IterableLoader
from flodl.monitor.ledger import Account
from flodl.ranks.planning.scheduler import redistributed
from flodl.ranks.sample_ledger import LedgerFacts, SampleLedger, SampleRecorder
from flodl.ranks.settings import Policy
from flodl.train.callbacks import Callback, Hooks, call_back
from flodl.train.observers import EpochFunction
from flodl.train.observers.checkpoints import (
    CheckpointKeeper,
    last_values,
    non_finite_parameters,
)
from flodl.train.parts import Assembly, order_facts
from flodl.train.policies.feed import Membership
from flodl.train.run.loop_state import EpochTexts, LoopState, Position
from flodl.train.run.rank_state import ELASTIC, RankCounts, RankStart, own_states, rank_record
from flodl.train.run.training_state import TrainingState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flodl.monitor import EpochMetrics
    from flodl.ranks.group import Group
    from flodl.ranks.planning.schedule import ScheduleConfig, ScheduleState
    from flodl.train.callbacks import TrainingRun
    from flodl.train.guarding import Guarding
    from flodl.train.observers.steering import Steering
    from flodl.train.policies.feed import Feed
    from flodl.train.settings import TrainingPlan
    from flodl.train.steps import Steps


@final
class RankCheckpoints(Callback):
    """Collects the state of all ranks and writes it on rank 0, and the best model.

    Args:
        plan: The plan of the training, with the run directory.
        group: The ranks.
        parts: Model, optimizer, loader and the rest, of this rank.
        config: How windows are planned; None for a process that trains all batches in order.

    Attributes:
        keeper: Writes the files, or takes part in that.
        samples: Records which batches this rank trains.
        keeps: Whether states are kept; the same on all ranks after :meth:`begin`.
    """

    _feed: Feed[Any]
    _steps: Steps
    _guarding: Guarding
    _steering: Steering
    _history: Sequence[EpochMetrics]

    def __init__(
        self, plan: TrainingPlan, group: Group, parts: Assembly, config: ScheduleConfig | None
    ) -> None:
        self._plan, self._group, self._parts, self._config = plan, group, parts, config
        self.keeper = CheckpointKeeper(parts.model, plan.run_dir)
        self._texts = EpochTexts()
        self._ledger: SampleLedger | None = None
        self.samples = SampleRecorder(group.rank, parts.batches.batch_size or 0)
        self.keeps = False

    def begin(self, found: RankStart, label: str) -> None:
        """Continue from a checkpoint or start from the beginning; collective."""
        plan = self._plan
        self._label = label
        self.check()
        self.keeps = (
            self._group.broadcast_object(self.keeper.keeps)
            if found.writes is None
            else found.writes
        )
        start = found.start
        if start.source is not None and plan.best is not None:
            self.keeper.adopt_best(start.source, start.position.epoch)
        if found.schedule is not None and plan.run_dir is not None and self._group.leads:
            path = plan.run_dir.sample_ledger
            order = order_facts(plan, self._parts.loader)
            since = found.schedule.position if found.ledger is None else 0
            facts = LedgerFacts(epochs=plan.num_epochs, since=since, **order)
            self._ledger = _ledger(path, facts, found.ledger, start.source)
        elif plan.whole is not None and (run := plan.whole.run_dir) is not None and found.ledger:
            self._ledger = SampleLedger.follow(run.sample_ledger, found.ledger)

    def attend(
        self,
        feed: Feed[Any],
        steps: Steps,
        guarding: Guarding,
        steering: Steering,
        history: Sequence[EpochMetrics],
    ) -> None:
        """Learn of what a checkpoint keeps the state, besides that of the parts.

        Args:
            feed: The order of the batches.
            steps: The steps.
            guarding: The guards.
            steering: What people have changed.
            history: The metrics of all epochs.
        """
        self._feed, self._steps, self._guarding = feed, steps, guarding
        self._steering, self._history = steering, history

    def membership(self, observers: Hooks) -> Membership:
        """Return what this rank does for the others, if ranks come and go.

        Args:
            observers: What flodl itself does; a rank that writes from now on does more.
        """
        return Membership(
            logs=self._steps.logs,
            samples=self.samples,
            write=self._write_for_joining,
            record=self._record,
            take_over=partial(self._take_over, observers),
            step_down=self._step_down,
        )

    def _take_over(self, observers: Hooks) -> None:
        """Write and print from now on; only this rank takes part.

        Raises:
            RunDirectoryError: The run directory or its sample ledger cannot be continued.
        """
        assert self._plan.whole is not None  # noqa: S101 - a rank of the start has it
        plan = self._plan = self._plan.whole
        log.set_verbosity(log.level_of(os.environ))
        log.warning(
            "the rank that writes the files of the training is gone; another one writes now"
        )
        if plan.run_dir is not None:
            plan.run_dir.take_over()
        self.keeper.finish()
        self.keeper = CheckpointKeeper(self._parts.model, plan.run_dir)
        if self._ledger is not None:
            self._ledger.take_over()
        self._steering.record_in(plan.run_dir)
        self._steps.take_over(plan, self._group, self._steering)
        if plan.metrics_fn is not None:
            observers.add(EpochFunction(plan.metrics_fn))
        self._steering.open()

    def _step_down(self) -> None:
        """Write no more: the others have gone on without this rank, and one of them writes."""
        if self._plan.run_dir is not None:
            self._plan.run_dir.hand_over()

    def _ledger_mark(self) -> dict[str, Any] | None:
        """Return the mark of the sample ledger; None if this rank has none."""
        return self._ledger.mark() if self._ledger is not None else None

    def check(self) -> None:
        """Check that the training can be saved; an optimizer has no state before its first step.

        Raises:
            ValueError: It cannot; the message names the tensor or the object.
        """
        if self.keeper.keeps:  # the same in all processes that share the model
            TrainingState.check(self._parts.parts({}))

    def append_samples(self, position: int) -> None:
        """Append the samples that all ranks have trained since the last call; collective.

        Args:
            position: Batches that all ranks together have consumed.
        """
        taken = self.samples.take(), self.samples.take_left_out()
        if not self.keeps:
            return
        segments = self._group.gather_objects_to_first(taken)
        if self._ledger is not None and segments is not None:
            self._ledger.append(position, [trained for trained, _ in segments])
            self._ledger.append(position, [left for _, left in segments], left_out=True)

    def _record(self, position: int, segments: Sequence[bytes]) -> None:
        """Append samples that are collected already, on the rank that writes."""
        if self._ledger is not None:
            self._ledger.append(position, segments)

    # --- Saving --------------------------------------------------------------------------------

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:  # noqa: ARG002
        """Keep the model if the epoch was evaluated and is the best so far; collective."""
        best, history = self._plan.best, self._history
        if best is None or not run.averaged:
            return
        # Checked on all ranks, so that an unknown metric ends all of them.
        if self.keeper.agreed(best.reached(history)) and self._group.leads:
            with self.averaged():
                self.keeper.save_best(Position(len(history), 0, 0), last_values(history))
        self._steps.ledger.lap(Account.CHECKPOINT)

    def on_barrier(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Save a checkpoint if that is due between two epochs, and tell the program; collective."""
        epochs, plan = self._feed.complete, self._plan
        if epochs % plan.checkpoint_every:
            return
        self.save()
        if plan.checkpoint_fn is not None and epochs:
            model = self._parts.model
            call_back("checkpoint_fn", epochs - 1, plan.checkpoint_fn, epochs, model)

    def save_now(self) -> str:
        """Save a checkpoint; return why that cannot be done now, or an empty text; collective."""
        current = self._steps.logs.current
        if self._cannot_resume():
            return (
                "data that can only be iterated has no checkpoint inside an epoch; the one at the "
                "end of the epoch is written anyway"
            )
        if self._feed.in_order and current is not None:
            current.losses.check()
        if bad := non_finite_parameters(self._parts.model):
            return f"parameters are not finite: {', '.join(bad[:3])}"
        self.save()
        return ""

    def _cannot_resume(self) -> bool:
        """Whether a checkpoint of this moment would have no use."""
        return isinstance(self._parts.batches, IterableLoader) and self._feed.place(0).step > 0

    def save(self) -> None:
        """Save the state of all ranks; collective, while they have the same model."""
        feed, steps = self._feed, self._steps
        place = feed.place(steps.engine.global_step)
        # A state that cannot be resumed must not replace one that can.
        if (feed.in_order and not self.keeps) or self._cannot_resume():
            return
        feed.saved()
        steps.engine.present()
        if feed.schedule is not None:
            self.append_samples(feed.schedule.position)
        written = self._write(place) if self.keeps else None
        if place.step:
            self._guarding.forget()
        if written is not None:
            steps.hooks.call("on_checkpoint", steps.run, written)
        steps.ledger.lap(Account.CHECKPOINT)

    def _write(self, position: Position) -> Path | None:
        """Write the state of all ranks on rank 0; collective.

        Args:
            position: Where a single process would continue.

        Returns:
            Path of the checkpoint on rank 0; None elsewhere, and without a run directory.
        """
        state, counts = self.state()
        together = self._plan.distributed.policy is Policy.SYNC
        own = own_states(self._parts, self._group, same_steps=together)
        record = rank_record(self._parts, self._steps.logs, counts, self._label, own)
        ranks = self._group.gather_objects_to_first(record)
        if ranks is None:
            return None
        state = replace(state, distributed=self._of_ranks(ranks, self._feed.schedule))
        extra = state.as_json(self._texts)
        self.keeper.save(self._parts.parts(extra), position, last_values(state.history))
        return self._plan.run_dir.last_checkpoint if self._plan.run_dir is not None else None

    def state(self) -> tuple[LoopState, RankCounts]:
        """Return the state of the loop, and the numbers of this rank."""
        feed, steps, acts = self._feed, self._steps, self._steering.saved()
        place, done = feed.place(0), steps.engine.global_step
        counts = RankCounts(
            local_step=done if feed.in_order else steps.local_step,
            steps=done,
            epoch=place.epoch if feed.in_order else steps.run.epoch,
            step=place.step if feed.in_order else steps.run.step,
            averages=feed.averages,
            seconds=steps.logs.seconds if feed.in_order and place.step else 0.0,
            rate=steps.rate.state(),
            asked=acts.get("scheduler", {}),
            exchange=feed.wire.state() if feed.wire is not None else {},
        )
        state = LoopState(
            history=self._history,
            records=steps.reporter.records(),
            ledger=steps.ledger.state_dict(),
            grouping={"accumulate": self._plan.accumulate},
            engine=steps.engine.decision(),
            acts=acts,
            guard=self._guarding.state(),
        )
        return state, counts

    def _of_ranks(
        self, ranks: list[dict[str, Any]], schedule: ScheduleState | None
    ) -> dict[str, Any]:
        if schedule is None or self._config is None:
            return {"schedule": None, "ranks": ranks}
        if len(ranks) != len(schedule.elche.ms):  # one was lost since they shared the batches
            elche = replace(self._config.elche, world_size=len(ranks))
            config = replace(self._config, elche=elche)
            schedule = redistributed(schedule, config, [None] * len(ranks))
        outer, length = self._plan.distributed.outer_optimizer, self._config.batches_per_epoch
        return {
            "schedule": schedule.as_json(),
            "ranks": ranks,
            "ledger": self._ledger_mark(),
            "outer": outer.state_dict() if outer is not None else {},
            "orders": [
                self._parts.loader.state_at(*begun) for begun in schedule.unfinished(length)
            ],
        }

    def _write_for_joining(
        self, file: Path, place: Position, schedule: ScheduleState, joined: Mapping[str, Any]
    ) -> None:
        """Write the state of this rank for one that joins; only this rank takes part.

        A rank that joins gets an ordinary checkpoint with one more value: how the ranks share the
        window that they train.

        Args:
            file: The checkpoint to write.
            place: Where the training continues.
            schedule: How the ranks share the batches.
            joined: What ranks that come and go know besides.
        """
        state, counts = self.state()
        rank = rank_record(self._parts, self._steps.logs, counts, "", {}) | {"logs": []}
        shared = {"schedule": schedule.as_json(), "ranks": [rank], "ledger": self._ledger_mark()}
        extra = replace(state, distributed=shared).as_json()
        extra[ELASTIC] = {**joined, "writes": self.keeps}
        captured = TrainingState.capture(self._parts.parts(extra), place)
        assert captured is not None  # noqa: S101 - the model is not sharded
        captured.write(file)

    def save_final(self) -> None:
        """Write the trained model."""
        history = self._history
        if self.keeper.keeps:  # the same in all processes that share the model
            with self.averaged():
                self.keeper.save_final(len(history), last_values(history))
        if self._ledger is not None and self._plan.run_dir is not None:
            self._plan.run_dir.add_record({"ledger": self._ledger.mark()})

    def averaged(self) -> AbstractContextManager[None]:
        """Put the running average of the weights (EMA) into the model, if there is one."""
        average = self._parts.average
        return average.applied() if average is not None else nullcontext()


def _ledger(
    path: Path, facts: LedgerFacts, mark: Mapping[str, Any] | None, source: Path | None
) -> SampleLedger:
    """Continue the ledger of a checkpoint, or start a new one.

    The old ledger is in this run directory or beside the checkpoint.
    """
    if mark is None:
        return SampleLedger(path, facts)
    if path.is_file():
        return SampleLedger.reopen(path, mark, facts=facts)
    earlier = source.with_name(path.name) if source is not None else path
    if not earlier.is_file():
        return SampleLedger(path, facts)
    return SampleLedger.reopen(path, mark, facts=facts, source=earlier)
