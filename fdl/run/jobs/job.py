"""One command among several, and how it ended.

The terminal pool, the sweeps and the batch systems exchange only these two values.
"""

from __future__ import annotations

from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.plan.value import Plan

DONE, FAILED, STOPPED, SKIPPED = STATES = ("done", "failed", "stopped", "skipped")
"""How a job ended: with exit code 0, with another one, by fdl or a signal, or not started because
its inputs are unchanged."""


class Job(Record):
    """One plan to execute beside others.

    Attributes:
        name: What its lines and its row in the summary are called: ``train quick``, ``lr=0.1``.
        plan: What runs.
        directory: The run directory it writes, absolute; empty if it has none.
        varied: Setting -> value, as text, for a run of a sweep.
    """

    name: str
    plan: Plan
    directory: str = ""
    varied: Mapping[str, str] = {}


class Outcome(Record):
    """How one job ended.

    Attributes:
        job: The job.
        state: One of :data:`STATES`.
        code: The exit code, 128 + n after signal n; None for a job that was not started.
        seconds: Wall time.
        reason: Why it was skipped; else empty.
        signal: The signal to fdl that stopped it, or kept it from starting; 0 for none.
    """

    job: Job
    state: str
    code: int | None = None
    seconds: float = 0.0
    reason: str = ""
    signal: int = 0
