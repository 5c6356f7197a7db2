"""After which steps digests are taken, so that they take a small part of the training's time."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 0.0025
"""Part of the time of the steps that digests may take."""

FIRST_STEPS = 16
"""Steps that measure the time of a step; a power of two."""


@final
class DigestTimes:
    """Digests are due before the first step, and after multiples of a power of two.

    The power is chosen from the cost of the latest digests and the time of the steps since then. So
    two runs share the steps of the larger power.

    Args:
        after: Steps that are complete.
        clock: Monotonic seconds.
        share: Part of the time of the steps that digests may take; infinity: after every step.

    Attributes:
        next_step: Number of complete steps from which on :meth:`is_due` must be asked.
    """

    next_step: float

    def __init__(
        self,
        after: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        share: float = SHARE,
    ) -> None:
        self.next_step = after
        self._clock, self._share = clock, share
        self._cost: float | None = None
        self._since: tuple[float, int] | None = None
        self._seconds, self._steps = 0.0, 0

    def run(self, step: int) -> None:
        """Start the clock: the next steps follow each other without a pause."""
        self._since = (self._clock(), step)

    def pause(self, step: int) -> None:
        """Stop the clock after ``step`` steps."""
        self._measure(step)
        self._since = None

    def is_due(self, step: int) -> bool:
        """Whether digests are due after ``step`` steps; else choose a later step."""
        self._measure(step)
        if self._cost is None:
            return True
        every = self._every(self._cost)
        self.next_step = -(-step // every) * every
        return self.next_step <= step

    def taken(self, step: int, seconds: float) -> None:
        """Plan the next digests, after some that took this long."""
        self._cost = seconds
        every = self._every(seconds) if self._steps or math.isinf(self._share) else FIRST_STEPS
        self.next_step = (step // every + 1) * every
        self._seconds, self._steps = 0.0, 0
        self.run(step)

    def _every(self, cost: float) -> int:
        least = 1.0
        if self._seconds > 0:
            least = max(1.0, cost * self._steps / (self._share * self._seconds))
        return 1 << math.ceil(math.log2(least))

    def _measure(self, step: int) -> None:
        if self._since is not None:
            now = self._clock()
            self._seconds += now - self._since[0]
            self._steps += step - self._since[1]
            self._since = (now, step)
