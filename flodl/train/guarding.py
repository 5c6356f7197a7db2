"""What guards do with a training: judge the losses, keep states, go back, leave batches out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from flodl.data import IterableLoader
from flodl.errors import DivergedError
from flodl.train.observers.guards.guard import Setback
from flodl.train.observers.guards.left_out import LeftOut
from flodl.train.observers.guards.loss_guard import LossGuard
from flodl.train.policies.in_order import InOrderFeed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flodl.ranks.group import Group
    from flodl.train.callbacks import Rewind
    from flodl.train.observers.guards.loss_guard import FirstNonFinite
    from flodl.train.policies.feed import Feed, FeedWindow
    from flodl.train.run.resume import Start
    from flodl.train.steps import Counted, Steps


@final
class Guarding:
    """Guards one process of a training; without guards it does nothing.

    A training that continues one with guards leaves out what those have decided.

    Args:
        group: The ranks.
        start: Where the training begins.
        feed: The order of the batches.
        steps: The steps.

    Attributes:
        guard: Judges the losses; None without guards.
        left_out: What is left out; None if it is nothing.
    """

    def __init__(self, group: Group, start: Start, feed: Feed[Any], steps: Steps) -> None:
        self._group, self._feed, self._steps = group, feed, steps
        self._trace = steps.trace
        self._keeps = False
        self.guard: LossGuard | None = None
        self.left_out: LeftOut | None = None
        plan, parts, place = steps.plan, steps.parts, feed.place(0)
        given = plan, group, parts, steps.rate, start, (place.epoch, place.step)
        if plan.guards is not None:
            steps.logs.keep_for_judge()
            self.left_out = self.guard = LossGuard(
                *given, batches_per_step=feed.batches_per_step, settings=plan.guards,
                engine=steps.engine, steps=lambda: feed.steps(steps.engine.global_step),
            )  # fmt: skip
        elif isinstance(parts.batches, IterableLoader):
            return  # guards refuse data that can only be iterated
        elif group.broadcast_object(start.source is not None):
            left_out = LeftOut(*given, batches_per_step=feed.batches_per_step)
            if left_out.tell_repeated(start.source):
                self.left_out = left_out
        if self.left_out is not None:
            feed.leave_out(self.left_out.numbers)

    def state(self) -> Mapping[str, Any]:
        """Return what guards know, as JSON values for a checkpoint; empty without guards."""
        return self.left_out.state(self._feed.complete) if self.left_out is not None else {}

    # --- Judging -------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether a state is to be kept after the latest step; the same on all ranks."""
        return self.guard is not None and self.guard.is_due()

    def ready(self, guard: LossGuard, *, begins: bool) -> None:
        """Keep the state before a window, if there is none, or if one is due.

        Args:
            guard: Keeps it.
            begins: Whether an epoch begins.
        """
        if guard.is_empty or self._keeps:
            self._keeps = False
            guard.keep(self._feed.place(0), self._counted())
        elif begins:
            guard.run_clock()

    def look(self, *, certain: bool) -> None:
        """Judge the losses so far; collective.

        Args:
            certain: Wait for all losses of a device, and look at the parameters, too.

        Raises:
            Setback: A loss or a parameter is bad; on all ranks.
            DivergedError: A loss is not finite.
        """
        if self.guard is not None:
            due = self.guard.is_due()
            losses = self._feed.losses(self._steps.logs, wait=certain or due)
            self.guard.look(losses, certain=certain)
            self._keeps = due

    def forget(self) -> None:
        """Never go back past this point: what guards would go back to is dropped."""
        if self.guard is not None:
            self.guard.forget()

    # --- Leaving out ---------------------------------------------------------------------------

    def pass_left_out(self) -> None:
        """Go past the batches that come next and are left out: record them."""
        if self.left_out is None:
            return
        loader = self._steps.parts.loader
        for position, number in self._feed.pass_left_out():
            epoch, batch = divmod(number, loader.num_batches)
            self.left_out.pass_over(epoch, batch)
            if self._group.leads:
                place, rows = batch * loader.batch_size, loader.rows(epoch, batch)
                samples = self._steps.samples
                samples.left_out_samples(epoch, place, position, rows)

    def pass_over(self, batch: int) -> None:
        """Leave out a batch of an epoch whose batches are trained in order."""
        feed, steps = self._feed, self._steps
        if self.left_out is None or not isinstance(feed, InOrderFeed):
            return
        self.left_out.pass_over(feed.epoch, batch)
        if self._trace is not None and batch + 1 not in feed.skips:
            first = feed.begun_at
            self._trace.left_out(
                feed.epoch,
                size=steps.parts.batches.batch_size or 0,
                first=batch + 1,
                step=steps.engine.global_step,
                parts=steps.plan.accumulate,
                trained=batch + 1 - first - sum(first <= one <= batch for one in feed.skips),
            )

    # --- Going back ----------------------------------------------------------------------------

    def go_back(self, problem: Setback | DivergedError, window: FeedWindow) -> Rewind | Setback:
        """Continue from an earlier state, on all ranks.

        Args:
            problem: What happened in a window.
            window: The window.

        Returns:
            What changed, for callbacks; the setback if there were too many attempts, and nothing
            changed.

        Raises:
            DivergedError: There are no guards; it is ``problem``.
        """
        guard, feed, steps, setback = self.guard, self._feed, self._steps, problem
        if guard is None:
            raise problem
        if isinstance(setback, DivergedError):
            place, before = feed.failed_at(window, setback, steps.logs)
            setback = guard.cause(setback, feed.losses(steps.logs, wait=None), place, before=before)
        found = guard.go_back(setback, self._is_left)
        if found is None:
            return setback
        rewind, counted = found
        self._return_to(counted)
        self._keeps = False
        guard.begin_again()
        return rewind

    def look_back(self, setback: Setback) -> FirstNonFinite | None:
        """Go back once more, and end the guards: nothing is judged on the way to a setback.

        Returns:
            What looks at the modules on the way; None without guards.
        """
        if self.guard is None:
            return None
        if self._trace is not None:
            self._trace.close()  # the steps that are trained again do not belong to it
        counted, look = self.guard.go_back_once_more(setback, self._is_left)
        self._return_to(counted)
        self.guard = None
        return look

    def _counted(self) -> tuple[Any, Counted]:
        """Return everything that is counted, between two steps."""
        feed, steps = self._feed, self._steps
        told = steps.engine.global_step
        if isinstance(feed, InOrderFeed):
            steps.run.step = feed.done
        elif self._trace is not None:
            told = self._trace.steps
        return feed.state(), steps.counted(told)

    def _return_to(self, counted: tuple[Any, Counted]) -> None:
        """Go back to the result of :meth:`_counted`; model and optimizer are there already."""
        self._feed.return_to(counted[0])
        self._steps.return_to(counted[1])
        if self.left_out is not None:
            self._feed.leave_out(self.left_out.numbers)

    def _is_left(self, counted: tuple[Any, Counted], epoch: int, batch: int) -> bool:
        return self._feed.is_left(counted[0], epoch, batch)
