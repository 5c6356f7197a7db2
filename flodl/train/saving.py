"""The checkpoints of a training: what the loop adds to the state of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from flodl.data import IterableLoader
from flodl.monitor.ledger import Account
from flodl.train.callbacks import Callback
from flodl.train.epoch_end import call_back
from flodl.train.observers.checkpoints import non_finite_parameters
from flodl.train.run.loop_state import LoopState
from flodl.train.run.rank_state import RankCounts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flodl.monitor import EpochMetrics
    from flodl.train.callbacks import TrainingRun
    from flodl.train.guarding import Guarding
    from flodl.train.observers.steering import Steering
    from flodl.train.policies.feed import Feed
    from flodl.train.steps import Steps


@final
class Saving(Callback):
    """Saves the best model, and the state of all ranks, in the run directory.

    Args:
        feed: The order of the batches.
        steps: The steps.
        guarding: The guards.
        steering: What people have changed.
        history: The metrics of all epochs.
    """

    def __init__(
        self,
        feed: Feed[Any],
        steps: Steps,
        guarding: Guarding,
        steering: Steering,
        history: Sequence[EpochMetrics],
    ) -> None:
        self._feed, self._steps, self._guarding = feed, steps, guarding
        self._steering, self._history = steering, history

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:  # noqa: ARG002
        """Keep the model if the epoch was evaluated and is the best so far; collective."""
        if run.averaged:
            self._steps.checkpoints.keep_best(self._history)
            self._steps.ledger.lap(Account.CHECKPOINT)

    def on_barrier(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Save a checkpoint if that is due between two epochs, and tell the program; collective."""
        epochs, plan = self._feed.complete, self._steps.plan
        if epochs % plan.checkpoint_every:
            return
        self.save()
        if plan.checkpoint_fn is not None and epochs:
            model = self._steps.parts.model
            call_back("checkpoint_fn", epochs - 1, plan.checkpoint_fn, epochs, model)

    def save_now(self) -> str:
        """Save a checkpoint; return why that cannot be done now, or an empty text; collective."""
        steps = self._steps
        if self._cannot_resume():
            return (
                "data that can only be iterated has no checkpoint inside an epoch; the one at the "
                "end of the epoch is written anyway"
            )
        if self._feed.in_order and steps.logs.current is not None:
            steps.logs.current.losses.check()
        if bad := non_finite_parameters(steps.parts.model):
            return f"parameters are not finite: {', '.join(bad[:3])}"
        self.save()
        return ""

    def _cannot_resume(self) -> bool:
        """Whether a checkpoint of this moment would have no use."""
        iterated = isinstance(self._steps.parts.batches, IterableLoader)
        return iterated and self._feed.place(0).step > 0

    def save(self) -> None:
        """Save the state of all ranks; collective, while they have the same model."""
        feed, steps = self._feed, self._steps
        place = feed.place(steps.engine.global_step)
        # A state that cannot be resumed must not replace one that can.
        if self._cannot_resume() or (feed.in_order and not steps.checkpoints.keeps):
            return
        feed.saved()
        steps.engine.present()
        state, counts = self.state()
        written = steps.checkpoints.save(state, place, steps.logs, counts, feed.schedule)
        if place.step:
            self._guarding.forget()
        self._tell(written)
        steps.ledger.lap(Account.CHECKPOINT)

    def _tell(self, written: Path | None) -> None:
        if written is not None:
            self._steps.hooks.call("on_checkpoint", self._steps.run, written)

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
            grouping={"accumulate": steps.plan.accumulate},
            engine=steps.engine.decision(),
            acts=acts,
            guard=self._guarding.state(),
        )
        return state, counts
