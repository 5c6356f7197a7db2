"""The beginning and the end of epochs: hooks, evaluation, metrics, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from flodl.monitor.ledger import Account
from flodl.train.callbacks import evaluate, model_metrics
from flodl.train.epoch_metrics import EpochShare, device_name, epoch_metrics
from flodl.train.observers.checkpoints import require_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from flodl.monitor import EpochMetrics
    from flodl.ranks.group import Group
    from flodl.train.callbacks import Hooks, Worker
    from flodl.train.guarding import Guarding
    from flodl.train.observers.rank_checkpoints import RankCheckpoints
    from flodl.train.observers.requests import StopRequests
    from flodl.train.policies.feed import Exchanged, Feed
    from flodl.train.steps import Steps


@final
class Epochs:
    """Begins the epochs that the ranks reach, and ends those of which every batch is trained.

    Args:
        group: The ranks.
        peers: The processes that act after the same step.
        feed: The order of the batches.
        steps: The steps.
        checkpoints: Writes the samples of an epoch, and knows the averaged weights.
        guarding: Forgets at the end of an epoch what it could go back to.
        stops: The reasons of callbacks to stop.
        observers: What flodl itself does at the beginning and the end of an epoch.
        history: Receives the metrics of every epoch.
        prepare: Lets the program prepare an epoch.
        worker: What the program sees of this process then.

    Attributes:
        begun: Epochs that have begun.
        ended: Epochs that have ended.
    """

    def __init__(
        self,
        group: Group,
        peers: Group,
        feed: Feed[Any],
        steps: Steps,
        checkpoints: RankCheckpoints,
        guarding: Guarding,
        stops: StopRequests,
        observers: Hooks,
        history: list[EpochMetrics],
        prepare: Callable[[int], object],
        worker: Worker,
    ) -> None:
        self._group, self._peers, self._feed, self._steps = group, peers, feed, steps
        self._checkpoints, self._guarding, self._stops = checkpoints, guarding, stops
        self._observers = observers
        self._history, self._prepare, self._worker = history, prepare, worker
        place = feed.place(0)
        self.begun, self.ended = place.epoch + (1 if place.step else 0), place.epoch
        self._comm_ms = self._wait_ms = 0.0

    def settle(self) -> None:
        """Make the model the same on all ranks; collective."""
        self._comm_ms += self._feed.settle()

    def begin(self, last: int) -> None:
        """Begin the epochs up to a last one: the program prepares them, and callbacks learn it."""
        feed, steps, run = self._feed, self._steps, self._steps.run
        while self.begun <= last:
            run.epoch, run.step = self.begun, 0
            self._worker.current_version = feed.averages
            self._worker.local_step = run.global_step if feed.in_order else steps.local_step
            self._prepare(self.begun)
            self.begun += 1
            steps.hooks.call("on_epoch_start", run)
            self._observers.call("on_epoch_start", run)
            self._guarding.forget()
            steps.ledger.lap(Account.LOGGING)

    def complete(self, exchanged: Exchanged) -> None:
        """End the epochs of which every batch is trained or left out; collective.

        Args:
            exchanged: The latest exchange; its cost counts to the next epoch that ends.
        """
        self._comm_ms += exchanged.comm_ms
        self._wait_ms += exchanged.wait_ms
        if self.ended == self._feed.complete:
            return
        self.settle()
        while self.ended < self._feed.complete:
            epoch, self.ended = self.ended, self.ended + 1
            self.begin(epoch)
            self._complete_epoch(epoch, averaged=exchanged.averaged)
            self._guarding.forget()
        self._steps.timer.begin()

    def _complete_epoch(self, epoch: int, *, averaged: bool) -> None:
        """Combine the measurements of an epoch, evaluate and report; collective.

        Args:
            epoch: An epoch of which the ranks have trained every batch.
            averaged: Whether the model is the average of all ranks now, so that it is evaluated.
        """
        group, feed, steps = self._group, self._feed, self._steps
        ledger = steps.ledger
        if (trace := steps.trace) is not None:
            trace.end_epoch(steps.engine.global_step)
        ledger.lap(Account.LOGGING)
        if group.leads and steps.told == epoch:
            steps.reporter.end_steps()
        known, epoch_ms = steps.logs.take(epoch)
        known.comm_ms, known.wait_ms = self._comm_ms, self._wait_ms
        self._comm_ms = self._wait_ms = 0.0
        shares = group.gather_objects(
            EpochShare(
                state=known.state(),
                device=device_name(group.device, group.rank),
                epoch_ms=epoch_ms,
                metrics=model_metrics(steps.parts.model),
            )
        )
        ledger.lap(Account.SYNC)
        anchor, counts = feed.counts()
        evaluated: Mapping[str, float] = {}
        if averaged and not feed.in_order:
            when = f"after epoch {epoch} (counted from 0)"
            last_step = steps.parts.loader.num_batches - 1
            require_finite(steps.parts.model, when, epoch=epoch, step=last_step)
        if averaged and steps.plan.eval_fn is not None:
            evaluated = self._evaluated(steps.plan.eval_fn, epoch)
        metrics = epoch_metrics(
            epoch,
            shares,
            anchor=anchor,
            counts=counts,
            lr=float(steps.parts.optimizer.param_groups[0]["lr"]),
            evaluated=evaluated,
        )
        ledger.lap(Account.EVALUATION)
        steps.hooks.call("on_epoch_end", steps.run, metrics)
        self._history.append(metrics)
        if feed.schedule is not None:
            self._checkpoints.append_samples(feed.schedule.position)
        steps.run.averaged = averaged
        self._observers.call("on_epoch_end", steps.run, metrics)
        ledger.lap(Account.LOGGING)
        self._stops.agree(self._peers.gather_objects(steps.run.stopped))
        steps.logs.restart_clock()
        if trace is not None:
            trace.resume_clock(steps.engine.global_step)

    def _evaluated(
        self, eval_fn: Callable[[Any], Mapping[str, float | Tensor]], epoch: int
    ) -> dict[str, float]:
        """Evaluate on rank 0 and send the result to all ranks."""
        steps = self._steps

        def evaluated() -> dict[str, float]:
            averaged = self._checkpoints.averaged()
            return evaluate(eval_fn, steps.parts.model, averaged, epoch)

        return self._group.from_first(evaluated)
