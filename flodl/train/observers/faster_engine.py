"""One line at the end of a project's first long training: another engine may be faster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fdl.base.units import format_duration
from flodl import log
from flodl.monitor.ledger import Account
from flodl.terminal import is_first_rank
from flodl.train.step.decision import remember_told, was_told

if TYPE_CHECKING:
    from flodl.monitor.ledger import TimeLedger
    from flodl.train.plan import TrainingPlan

LONG_SECONDS = 300.0
"""A training whose steps take longer counts as long."""

_STEPS = (Account.FORWARD, Account.BACKWARD, Account.OPTIMIZER, Account.SYNC)
_OFF = ("", "0", "false")


def name_faster_engine(plan: TrainingPlan, ledger: TimeLedger) -> None:
    """Name the engine ``auto`` after a long training with the default; once in a project.

    Nothing is said to a quiet program, in CI, or if no file can remember that it was said.
    """
    spent = ledger.seconds()
    seconds = sum(spent.get(account.value, 0.0) for account in _STEPS)
    if plan.engine != "eager" or plan.deterministic or plan.sharded or seconds < LONG_SECONDS:
        return
    if plan.most_steps is not None or not is_first_rank() or not log.enabled(log.Verbosity.NORMAL):
        return
    if os.environ.get("CI", "").lower() not in _OFF or was_told() or not remember_told():
        return
    log.msg(
        f"  the steps took {format_duration(seconds)}; --engine auto may be faster, equal up to "
        "rounding: see docs/tutorials/training-more.md"
    )
