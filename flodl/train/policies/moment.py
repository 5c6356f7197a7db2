"""What a process counts between two steps, to go back to it."""

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
class Moment:
    """Counters, logs and recorded samples of a process; model and optimizer are elsewhere.

    Attributes:
        schedule: How the ranks share the batches; None for a process that trains all of them.
    """

    schedule: ScheduleState | None
    logs: Sequence[Mapping[str, Any]]
    samples: tuple[list[Stretch], list[Stretch]]
    local_step: int
    versions: int
    epoch: int
    step: int
    trace_steps: int

    @classmethod
    def of(cls, loop: Loop, trace_steps: int) -> Self:
        """Return the present state of a process.

        Args:
            loop: The training.
            trace_steps: Steps that its trace has.
        """
        return cls(
            None if loop.in_order else loop.schedule,
            loop.logs.state(),
            loop.checkpoints.samples.state(),
            loop.local_step,
            loop.versions,
            loop.run.epoch,
            loop.run.step,
            trace_steps,
        )

    def restore(self, loop: Loop) -> None:
        """Return to this state; the engine is there already. Progress is reported again."""
        if self.schedule is not None:
            loop.schedule = self.schedule
        loop.logs.go_back(self.logs)
        loop.checkpoints.samples.go_back(self.samples)
        loop.checkpoints.trace.rewind(self.trace_steps)
        loop.local_step, loop.versions = self.local_step, self.versions
        loop.run.epoch, loop.run.step = self.epoch, self.step
        loop.run.global_step = loop.engine.global_step
        loop.told = -1
        loop.timer.begin()
