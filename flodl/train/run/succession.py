"""Let a rank do what rank 0 has done: ranks that come and go may lose it, too.

The rank writes on in the same run directory. The page and the curves show its own steps from now
on. Of earlier epochs, the load of the machine is not known any more.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from flodl import log
from flodl.errors import DivergedError
from flodl.train.observers.epoch_observers import EpochFunction

if TYPE_CHECKING:
    from flodl.train.loop import Loop


def take_over(loop: Loop) -> None:
    """Write and print from now on; only this rank takes part.

    Raises:
        RunDirectoryError: The run directory or its sample ledger cannot be continued.
    """
    plan, steps, reporter = loop.plan.whole, loop.steps, loop.reporter
    assert plan is not None  # noqa: S101 - a rank of the start has it
    log.set_verbosity(log.level_of(os.environ))
    log.warning("the rank that writes the files of the training is gone; another one writes now")
    if plan.run_dir is not None:
        plan.run_dir.take_over()
    with suppress(DivergedError):  # the next average or the end of the epoch tells it
        steps.logs.pass_on()
    loop.plan = steps.plan = plan
    loop.checkpoints.take_over(plan, steps.engine.global_step)
    steps.logs.record_losses(loop.checkpoints.trace.loss_sink())
    loop.steering.record_in(plan.run_dir)
    records = reporter.take_over(plan)
    reporter.introduce(loop.model, loop.parts.optimizer, steps.engine.report(), records)
    reporter.follow(loop.run, steps.engine)
    reporter.steer(loop.steering)
    if plan.metrics_fn is not None:
        loop.observers.add(EpochFunction(plan.metrics_fn))
    loop.steering.open()
    steps.leads, steps.told = True, -1


def step_down(loop: Loop) -> None:
    """Write no more: the others have gone on without this rank, and one of them writes."""
    if loop.plan.run_dir is not None:
        loop.plan.run_dir.hand_over()
