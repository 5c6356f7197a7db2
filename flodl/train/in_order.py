"""Train the batches of an epoch in order, and do between two steps what is due."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, final

from flodl.data import EpochIterator
from flodl.monitor.ledger import Account
from flodl.train.observers.checkpoints import require_finite
from flodl.train.settings import optimizer_steps

if TYPE_CHECKING:
    from flodl.ranks.group import Group, Pending
    from flodl.train.guarding import Guarding
    from flodl.train.observers.requests import StopRequests
    from flodl.train.policies.feed import SharedGradient
    from flodl.train.policies.in_order import InOrderFeed
    from flodl.train.steps import Steps


@final
class InOrder:
    """The steps of a process that trains its batches in order.

    Args:
        feed: The batches.
        steps: Takes the steps.
        guarding: Judges the losses.
        stops: What people and signals ask for.
        peers: The processes that act after the same step.
        seconds: Time of the epoch before a resume.

    Attributes:
        seconds: Time of the epoch before :meth:`train` begins with its rest.
    """

    def __init__(
        self,
        feed: InOrderFeed,
        steps: Steps,
        guarding: Guarding,
        stops: StopRequests,
        peers: Group | None,
        seconds: float,
    ) -> None:
        self._feed, self._steps, self._guarding = feed, steps, guarding
        self._stops, self._peers, self.seconds = stops, peers, seconds
        self._wishes: Pending | None = None
        self._seen = 0
        """Samples of the epoch that this process has been given, if it shares steps."""

    def train(self) -> None:
        """Train the rest of an epoch until something is due, or until its end.

        Raises:
            Setback: A guard found a bad loss.
            DivergedError: A loss or a parameter is not finite.
        """
        feed, steps = self._feed, self._steps
        losses = steps.logs.of(feed.epoch).losses
        try:
            if feed.begins:
                self._begin()
            if self._stops.agreed:
                feed.over = True
            elif not feed.exhausted:
                self._train_rest()
            if feed.exhausted and not feed.over:
                feed.over = not self._follow()
            if feed.over:
                self._end()
            else:
                self._between()
        except BaseException:
            if (trace := steps.trace) is not None:
                trace.drain(losses)
            feed.close()
            steps.engine.present()
            raise

    def _begin(self) -> None:
        """Begin an epoch, or continue it after the batches that are done."""
        feed, steps = self._feed, self._steps
        plan, batches, trace = steps.plan, steps.parts.batches, steps.trace
        log, step = steps.logs.of(feed.epoch), steps.engine.global_step
        feed.begins = False
        next_time = steps.reporter.begin_epoch(
            feed.epoch,
            steps=batches.num_batches,
            done=feed.done,
            first_step=step,
            losses=log.losses,
            scalars=log.scalars,
        )
        steps.told, self._seen = feed.epoch, 0
        if trace is not None:
            trace.begin_epoch(
                feed.epoch,
                feed.rest.order if isinstance(feed.rest, EpochIterator) else None,
                size=batches.batch_size or 0,
                first=feed.done,
                step=step,
                parts=plan.accumulate,
            )
        steps.logs.restart_clock(self.seconds)
        steps.timer.begin()
        self.seconds = 0.0
        feed.judged = int(log.losses.state()[1])
        self._plan_due(next_time)

    def _train_rest(self) -> None:
        """Train batches of the epoch until something besides steps is due, or until none is left.

        ``feed.done`` and ``feed.exhausted`` say how far that was.
        """
        feed, steps = self._feed, self._steps
        engine, due, model, skips = steps.engine, steps.due, steps.parts.model, feed.skips
        losses, done, batches = steps.logs.of(feed.epoch).losses, feed.done, feed.rest
        accumulate, lap, clock = steps.plan.accumulate, steps.ledger.lap, time.perf_counter
        waiting, schedule, gradient = Account.DATA, steps.parts.torch_schedule, steps.gradient
        trace, first_batch = steps.trace, steps.first_batch
        parts = 1
        for batch in batches:
            done += 1
            lap(waiting)
            if skips and done - 1 in skips:
                self._guarding.pass_over(done - 1)
                continue
            if first_batch.waits:
                first_batch.look(model, batch)
                lap(Account.SETUP)
            if trace is not None and engine.global_step >= trace.next_step:
                trace.look(model, batch, engine.global_step)
                lap(Account.LOGGING)
            if gradient is not None:
                self._expect(gradient, done)
            try:
                if accumulate == 1:
                    engine.step(batch, losses)
                else:
                    # The last group of an epoch may be smaller: then each of its batches counts
                    # more.
                    part = (done - 1) % accumulate
                    if part == 0:
                        parts = 1 + batches.ahead(accumulate - 1)
                    closes = part == parts - 1
                    engine.step(batch, losses, parts=parts, closes=closes)
                    if not closes:
                        continue
            except Exception as error:
                steps.run.step = done - 1
                where = f"in epoch {feed.epoch}, step {done - 1} (both counted from 0)"
                error.add_note(where)
                raise
            if schedule is not None:
                steps.step_scheduler()
            if clock() >= due.next_time or engine.global_step >= due.next_step:
                feed.done = done
                return
        feed.done, feed.exhausted, feed.over = done, True, gradient is None

    def _expect(self, gradient: SharedGradient, done: int) -> None:
        """Tell the log and the gradient how many samples the next batch has."""
        known = self._steps.logs.of(self._feed.epoch)
        seen = self._steps.parts.batches.samples_in(done)
        samples, self._seen = seen - self._seen, seen
        gradient.expect(known, samples)
        known.losses.expect(samples)

    def _follow(self) -> bool:
        """Take a step of the ranks that still have batches; return False if no rank has one."""
        # Imported here: a process that trains alone needs none of it.
        from flodl.train.policies.feed import NoBatchLeft

        try:
            self._steps.engine.follow()
        except NoBatchLeft:
            return False
        self._steps.step_scheduler()
        return True

    def _between(self) -> None:
        """Judge, notify and listen between two steps."""
        feed, steps, run, stops = self._feed, self._steps, self._steps.run, self._stops
        step, log = steps.engine.global_step, steps.logs.of(feed.epoch)
        run.step, due = feed.done, feed.checkpoint_due(step)
        # Before anyone sees the losses, and before a checkpoint holds what they have caused.
        self._guarding.look(certain=due)
        steps.tell_loss(log)
        steps.notify(log)
        if steps.due.is_over(step):  # on all peers: they take every step together
            stops.agree([run.stopped])
        # Plan first, then look at the request: a request between the two wakes the loop again.
        self._plan_due(steps.reporter.tick(feed.done))
        steps.ledger.lap(Account.LOGGING)
        self.hear()
        if due or stops.interrupted_by is not None:
            log.losses.check()
            self._guarding.look(certain=True)
        if due:
            self._require_finite()

    def _end(self) -> None:
        """End the steps of an epoch; losses and parameters are checked."""
        feed, steps, run = self._feed, self._steps, self._steps.run
        log, parts = steps.logs.of(feed.epoch), steps.parts
        self._guarding.look(certain=True)
        if (guard := self._guarding.guard) is not None:
            guard.pause()  # the time from now on is not that of steps
        steps.engine.present()
        steps.engine.end_epoch()
        if (scaler := steps.engine.settings.scaler) is not None:
            scaler.tell_skipped(feed.epoch, optimizer_steps(feed.done, steps.plan.accumulate))
        log.losses.check()
        run.step, run.global_step = feed.done, steps.engine.global_step
        steps.tell_loss(log)
        self._require_finite()
        log.batches, log.samples = feed.done, parts.batches.samples_in(feed.done)
        if (left_out := self._guarding.left_out) is not None:
            log.samples -= left_out.samples(feed.epoch)

    def _require_finite(self) -> None:
        epoch, step = self._feed.epoch, self._feed.done - 1
        when = f"at epoch {epoch}, step {step} (both counted from 0)"
        require_finite(self._steps.parts.model, when, epoch=epoch, step=step)

    def _plan_due(self, next_time: float) -> None:
        due, steps, guard = self._steps.due, self._steps, self._guarding.guard
        kept = guard.next_step if guard is not None else math.inf
        due.plan(steps.engine.global_step, next_time, kept)
        if any(self._stops.wishes()) or steps.after_first is not None:
            due.wake()  # they came before the plan, which must not put them off

    def hear(self) -> None:
        """Learn what people and signals ask for.

        Processes that share a model learn it one step later, so that none waits for the others.
        """
        stops = self._stops
        if self._steps.gradient is not None:
            return  # the step itself has told all ranks
        if self._peers is None:
            stops.heed(stops.wishes())
            return
        said, self._wishes = self._wishes, self._peers.gather_later(stops.wishes())
        if said is not None:
            stops.heed([max(wish) for wish in zip(*said.wait(), strict=True)])

    def hear_all(self, group: Group) -> None:
        """Learn what all processes of a group are asked for, at a barrier."""
        self.hear()  # what was said in the last step
        self._wishes = None
        rows = group.gather(self._stops.wishes())
        self._stops.heed(list(map(max, zip(*rows, strict=True))))
