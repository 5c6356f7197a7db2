"""When the loop must do something besides steps."""

from __future__ import annotations

import math
from typing import final


@final
class DueTimes:
    """The next moment at which something besides a step is due.

    The loop compares both numbers after every optimizer step.

    Args:
        checkpoint_steps: Optimizer steps between two checkpoints; None for none.
        every_step: Something is due after every step.
        last_step: Optimizer steps after which the training stops; None for no limit.
    """

    __slots__ = ("_checkpoint_steps", "_every_step", "_last_step", "next_step", "next_time")

    def __init__(
        self, checkpoint_steps: int | None, *, every_step: bool, last_step: int | None = None
    ) -> None:
        self._last_step = last_step
        self._checkpoint_steps = checkpoint_steps
        self._every_step = every_step
        self.next_time = 0.0
        self.next_step: float = 0

    def watch_each_step(self) -> None:
        """Make something due after every step from now on."""
        self._every_step, self.next_step = True, 0

    def wake(self) -> None:
        """Make the loop check what is due after the current step; safe in a signal handler."""
        self.next_time = 0.0

    def plan(self, global_step: int, next_time: float, guard_step: float = math.inf) -> None:
        """Set what is due next.

        Args:
            global_step: Optimizer steps done.
            next_time: When the reporter is due.
            guard_step: Optimizer steps after which a guard is due.
        """
        self.next_time = next_time
        every = self._checkpoint_steps
        if self._every_step:
            self.next_step = 0
        else:
            self.next_step = guard_step
            if every is not None:
                self.next_step = min(guard_step, (global_step // every + 1) * every)
            if self._last_step is not None:
                self.next_step = min(self.next_step, self._last_step)

    def is_over(self, global_step: int) -> bool:
        """Whether this optimizer step is the last one."""
        return self._last_step is not None and global_step >= self._last_step

    def checkpoint_due(self, global_step: int) -> bool:
        """Whether a checkpoint is due after this optimizer step."""
        return self._checkpoint_steps is not None and global_step % self._checkpoint_steps == 0
