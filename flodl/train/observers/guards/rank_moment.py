"""What one rank knows besides its parts between two steps, to go back to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flodl.ranks.ledger.ledger_format import Stretch
    from flodl.ranks.planning.schedule import ScheduleState
    from flodl.train.loop import Loop


@final
@dataclass(frozen=True, slots=True)
class RankMoment:
    """Counters, logs and recorded samples of a rank."""

    schedule: ScheduleState
    logs: Sequence[Mapping[str, Any]]
    samples: tuple[list[Stretch], list[Stretch]]
    local_step: int
    versions: int
    run_step: int
    trace_steps: int

    @classmethod
    def of(cls, worker: Loop, schedule: ScheduleState) -> Self:
        """Return the state of a rank before it takes the next step of a schedule."""
        return cls(
            schedule,
            worker.logs.state(),
            worker.checkpoints.samples.state(),
            worker.local_step,
            worker.versions,
            worker.run.step,
            worker.checkpoints.trace.steps,
        )

    def restore(self, worker: Loop) -> None:
        """Return to this state; the engine is there already. Progress is reported again."""
        worker.schedule = self.schedule
        worker.logs.go_back(self.logs)
        worker.checkpoints.samples.go_back(self.samples)
        worker.local_step, worker.versions = self.local_step, self.versions
        worker.run.step = self.run_step
        worker.run.global_step = worker.engine.global_step
        worker.told = -1
        worker.timer.begin()
