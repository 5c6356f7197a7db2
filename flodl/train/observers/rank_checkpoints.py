"""Write the checkpoints, the trace and the sample ledger of a training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from flodl.ranks.ledger.sample_ledger import LedgerFacts, SampleLedger, SampleRecorder
from flodl.ranks.planning.scheduler import redistributed
from flodl.ranks.settings import Policy
from flodl.train.observers.checkpoints import CheckpointKeeper, last_values
from flodl.train.observers.step_trace import StepTrace
from flodl.train.parts import LOADER_DEFAULTS, Assembly
from flodl.train.run.loop_state import EpochTexts, LoopState
from flodl.train.run.rank_state import RankCounts, RankStart, own_states, rank_record
from flodl.train.run.training_state import Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flodl.monitor import EpochMetrics
    from flodl.ranks.group import Group
    from flodl.ranks.planning.schedule import ScheduleConfig, ScheduleState
    from flodl.train.epoch_metrics import EpochLogs
    from flodl.train.plan import TrainingPlan


@final
class RankCheckpoints:
    """Collects the state of all ranks and writes it on rank 0.

    Args:
        plan: The plan of the training, with the run directory.
        group: The ranks.
        parts: Model, optimizer, loader and the rest, of this rank.
        config: How windows are planned; None for a process that trains all batches in order.

    Attributes:
        keeper: Writes the files, or takes part in that.
        samples: Records which batches this rank trains.
        trace: Records the steps of rank 0; None without a run directory, and before :meth:`begin`.
        unchecked: Whether :meth:`check_once` is still to be called.
    """

    def __init__(
        self, plan: TrainingPlan, group: Group, parts: Assembly, config: ScheduleConfig | None
    ) -> None:
        self._plan, self._group, self._parts, self._config = plan, group, parts, config
        self.keeper = CheckpointKeeper(parts.model, plan.run_dir)
        self._texts = EpochTexts()
        self._ledger: SampleLedger | None = None
        self.samples = SampleRecorder(group.rank, parts.batches.batch_size or 0)
        self.trace: StepTrace | None = None
        self._writes = False
        self.unchecked = True

    @property
    def keeps(self) -> bool:
        """Whether states are kept."""
        return self._writes

    def begin(self, found: RankStart, label: str) -> None:
        """Continue from a checkpoint or start from the beginning; collective."""
        plan, group = self._plan, self._group
        self._label = label
        self.keeper.check(self._parts.parts({}))
        self._writes = (
            self._group.broadcast_object(self.keeper.keeps)
            if found.writes is None
            else found.writes
        )
        start = found.start
        if start.source is not None and plan.best is not None:
            self.keeper.adopt_best(start.source, start.position.epoch)
        if found.schedule is not None and plan.run_dir is not None and self._group.leads:
            path = plan.run_dir.sample_ledger
            facts = self._facts()
            if found.ledger is None:
                facts = replace(facts, since=found.schedule.position)
            self._ledger = _ledger(path, facts, found.ledger, start.source)
        elif plan.whole is not None and (run := plan.whole.run_dir) is not None and found.ledger:
            self._ledger = SampleLedger.follow(run.sample_ledger, found.ledger)
        self.trace = StepTrace.begin(
            plan, self._parts.batches, group, after=found.counts.steps, source=start.source
        )

    def take_over(self, plan: TrainingPlan, steps: int) -> None:
        """Write from now on what another rank has written.

        Args:
            plan: Names the run directory.
            steps: Optimizer steps of this rank.

        Raises:
            RunDirectoryError: The ledger cannot be continued.
        """
        self._plan = plan
        self.keeper.finish()
        self.keeper = CheckpointKeeper(self._parts.model, plan.run_dir)
        if self._ledger is not None:
            self._ledger.take_over()
        self.trace = StepTrace.begin(
            plan, self._parts.batches, self._group, after=steps, source=None
        )

    def ledger_mark(self) -> dict[str, Any] | None:
        """Return the mark of the sample ledger; None if this rank has none."""
        return self._ledger.mark() if self._ledger is not None else None

    def check_once(self) -> None:
        """Check after the first step that the training can be saved.

        An optimizer has no state before its first step.

        Raises:
            ValueError: It cannot; the message names the tensor or the object.
        """
        if self.unchecked:
            self.unchecked = False
            self.keeper.check(self._parts.parts({}))

    def end_trace(self, logs: EpochLogs) -> None:
        """Write what is left of the trace, and close it."""
        if self.trace is not None:
            if logs.current is not None:
                self.trace.drain(logs.current.losses)
            self.trace.close()

    def append_samples(self, position: int) -> None:
        """Append the samples that all ranks have trained since the last call; collective.

        Args:
            position: Batches that all ranks together have consumed.
        """
        taken = self.samples.take(), self.samples.take_left_out()
        if not self._writes:
            return
        segments = self._group.gather_objects_to_first(taken)
        if self._ledger is not None and segments is not None:
            self._ledger.append(position, [trained for trained, _ in segments])
            self._ledger.append(position, [left for _, left in segments], left_out=True)

    def append_segments(self, position: int, segments: Sequence[bytes]) -> None:
        """Append samples that are collected already, on the rank that writes."""
        if self._ledger is not None:
            self._ledger.append(position, segments)

    def save(
        self, state: LoopState, position: Position, logs: EpochLogs, counts: RankCounts,
        schedule: ScheduleState | None,
    ) -> Path | None:  # fmt: skip
        """Save the state of all ranks; collective, while they have the same model.

        Args:
            state: The state of the loop, without that of the ranks.
            position: Where a single process would continue.
            logs: Measurements of this rank.
            counts: Numbers of this rank.
            schedule: How the ranks share the batches; None if this process trains all of them.

        Returns:
            Path of the checkpoint on rank 0; None elsewhere, and without a run directory.
        """
        if schedule is not None:
            self.append_samples(schedule.position)
        if not self._writes:
            return None
        together = self._plan.distributed.policy is Policy.SYNC
        own = own_states(self._parts, self._group, same_steps=together)
        record = rank_record(self._parts, logs, counts, self._label, own)
        ranks = self._group.gather_objects_to_first(record)
        if ranks is None:
            return None
        state = replace(state, distributed=self._of_ranks(ranks, schedule))
        extra = state.as_json(self._texts)
        self.keeper.save(self._parts.parts(extra), position, last_values(state.history))
        return self._plan.run_dir.last_checkpoint if self._plan.run_dir is not None else None

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
            "ledger": self.ledger_mark(),
            "outer": outer.state_dict() if outer is not None else {},
            "orders": [
                self._parts.loader.state_at(*begun) for begun in schedule.unfinished(length)
            ],
        }

    def keep_best(self, history: Sequence[EpochMetrics]) -> None:
        """Save the model that was just evaluated, if it is the best so far."""
        best = self._plan.best
        # Checked on all ranks, so that an unknown metric ends all of them.
        if best is None or not self.keeper.agreed(best.reached(history)) or not self._group.leads:
            return
        with self.averaged():
            self.keeper.save_best(Position(len(history), 0, 0), last_values(history))

    def save_final(self, history: Sequence[EpochMetrics]) -> None:
        """Write the trained model."""
        with self.averaged():
            self.keeper.save_final(len(history), last_values(history))
        if self._ledger is not None and self._plan.run_dir is not None:
            self._plan.run_dir.add_record({"ledger": self._ledger.mark()})

    def averaged(self) -> AbstractContextManager[None]:
        """Put the running average of the weights (EMA) into the model, if there is one."""
        average = self._parts.average
        return average.applied() if average is not None else nullcontext()

    def _facts(self) -> LedgerFacts:
        plan, loader = self._plan, self._parts.loader
        options = {**LOADER_DEFAULTS, **plan.loader_options}
        return LedgerFacts(
            samples=loader.num_samples,
            batch_size=loader.batch_size,
            seed=plan.seed,
            sampler=loader.order_kind,
            drop_last=options["drop_last"],
            epochs=plan.num_epochs,
            join_remainder=options["join_remainder"],
        )


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
