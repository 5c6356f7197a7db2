"""When the engine ``auto`` tries out a tuning, and when it keeps one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from flodl.train.engines.thread_trials import ThreadPolicy


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class AutoPolicy:
    """Limits that decide when a trial pays.

    Attributes:
        least_steps: A run with fewer steps tries nothing.
        least_seconds: A run that the plain engine would finish in less than this tries nothing.
        compile_gain: Part of the remaining time that compiling is expected to save.
        compile_seconds: Seconds that compiling is expected to take.
        gain: A tuning must save this part of a step to be kept.
        doubt: Part of the remaining steps that one comparison may use if its result is not clear.
        faults: Page faults per step from which on keeping the heap is tried.
        block: Largest number of steps that are measured together.
        short_step: Fewer threads are tried for steps up to this many seconds.
        slow_route: A trial of oneDNN is skipped if its products take more than this part of the
            usual time.
        only: The fields of :class:`Tuning` that are tried; None tries all.
        threads: Limits for trials of the number of threads on a busy machine.
    """

    least_steps: int = 200
    least_seconds: float = 3.0
    compile_gain: float = 0.15
    compile_seconds: float = 20.0
    gain: float = 0.02
    doubt: float = 0.02
    faults: int = 2000
    block: int = 40
    short_step: float = 0.02
    slow_route: float = 1.0
    only: frozenset[str] | None = None
    threads: ThreadPolicy = field(default_factory=ThreadPolicy)
