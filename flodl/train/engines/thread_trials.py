"""The number of threads of a step: tried in live steps, and again when the machine has changed.

Other programs decide which number is best. With a core for each thread, more threads are faster.
If another program has a core, each operation waits for the thread that got none.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, final

from flodl.openmp import ShortSpin
from flodl.train.engines.cores import CoreUse
from flodl.train.engines.live_steps import is_clear, median_of_steps
from flodl.train.engines.tuning import thread_words

if TYPE_CHECKING:
    from torch import Size

    from flodl.train.engines.live_steps import Steps, Taken
    from flodl.train.engines.tuned import TunedEngine
    from flodl.train.engines.tuning import Tuning


_FIRST = 5
"""Steps that show whether the machine is busy."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadPolicy:
    """Limits that decide when a number of threads is tried.

    Attributes:
        waited: The training waits for a core in more than this part of the time: the machine is
            busy.
        freed: As many more idle cores than before are a reason to try more threads.
        change: The time of a step changes by this factor: the numbers are tried again.
        gain: Another number must save this part of a step to be used.
        window: Seconds of steps whose mean is compared with the earlier one.
        least: Fewest steps in a window.
        block: Seconds of steps with one number in a trial.
        steps: A run with fewer steps left tries nothing.
        seconds: A run with less time left tries nothing.
        rest: After a trial, the next one waits until this many times its duration has passed.
    """

    waited: float = 0.1
    freed: float = 0.7
    change: float = 1.5
    gain: float = 0.05
    window: float = 0.5
    least: int = 8
    block: float = 0.025
    steps: int = 100
    seconds: float = 0.5
    rest: float = 20.0


class _Pace(NamedTuple):
    """What a window of steps looked like: seconds per step, and idle cores of the machine."""

    seconds: float
    idle: float


@final
class ThreadTrials:
    """Chooses the number of threads for the steps of an engine, and watches whether it still fits.

    Args:
        engine: Computes the steps.
        most: The number of threads that the user has set.
        policy: Limits that decide when a trial pays.

    Attributes:
        was_busy: What :meth:`busy` last returned.
        overruled: Whether the program sets its own number in a step; then nothing is tried.
    """

    def __init__(self, engine: TunedEngine, most: int, policy: ThreadPolicy | None = None) -> None:
        self._engine = engine
        self._most = most
        self._policy = policy or ThreadPolicy()
        self._use = CoreUse()
        self._spin = ShortSpin()
        self._shapes: list[Size] = []
        self._seconds, self._steps = 0.0, 0
        self._rest = 0.0
        self._before: _Pace | None = None
        self._odd = ""
        self.was_busy = self.overruled = False

    def watch(self) -> None:
        """Start to watch: the next steps become those that later steps are compared with."""
        self._before = None
        self._restart()

    def busy(self) -> bool:
        """Whether the training had to wait for a core since the watch began."""
        self.was_busy = self._use.waited() > self._policy.waited
        # A thread that spins holds the core that another one waits for.
        (self._spin.hold if self.was_busy else self._spin.release)()
        return self.was_busy

    def close(self) -> None:
        """End what it keeps."""
        self._spin.release()

    def pays(self, seconds: float, steps: int) -> bool:
        """Whether a trial pays before so many steps of this time."""
        return steps >= self._policy.steps and seconds * steps >= self._policy.seconds

    def differs(self, was_busy: bool, steps: int) -> Steps[bool]:
        """Take some steps to see whether the machine is in other use than at the decision.

        Args:
            was_busy: Whether the machine was busy then.
            steps: Steps that are left; False if a trial does not pay for so few.
        """
        yield  # it makes what later steps use again
        self.watch()
        seconds = yield from median_of_steps(_FIRST)
        if self.busy() != was_busy and self.pays(seconds, steps):
            return True
        self.watch()
        return False

    def look(self, taken: Taken) -> str:
        """Look at a step.

        Returns:
            Why the numbers of threads should be tried again; empty if there is no reason.
        """
        self._rest -= taken.seconds
        shapes = [tensor.shape for tensor in taken.batch]
        if not self._shapes:
            self._shapes = shapes
        if shapes != self._shapes:
            return ""  # another amount of work
        self._seconds += taken.seconds
        self._steps += 1
        policy = self._policy
        if self._seconds < policy.window or self._steps < policy.least:
            return ""
        self.busy()
        now = _Pace(self._seconds / self._steps, self._use.idle())
        self._restart()
        if self._before is None:
            self._before = now
            return ""
        reason, told = self._changed(self._before, now), self._odd
        self._odd = reason
        # One odd window may be an accident.
        return reason if reason == told and self._rest <= 0 else ""

    def _restart(self) -> None:
        self._seconds, self._steps = 0.0, 0
        self._use.restart()

    def _changed(self, before: _Pace, now: _Pace) -> str:
        policy, ratio = self._policy, now.seconds / before.seconds
        if ratio >= policy.change:
            return "steps have become slower"
        if ratio <= 1 / policy.change:
            return "steps have become faster"
        if self._engine.tuning.threads and now.idle - before.idle >= policy.freed:
            return "a core has become free"
        return ""

    def choose(self, best: Tuning, notes: dict[str, object]) -> Steps[tuple[Tuning, float]]:
        """Try other numbers of threads for a tuning, and use the best one.

        Args:
            best: The tuning in use.
            notes: Receives the result of each number.

        Returns:
            The best tuning, and the time of its step divided by the time with ``best``.
        """
        bar, total = 1 - self._policy.gain, 1.0
        spent = 0.0
        for count in other_numbers(best.threads, self._most):
            other = replace(best, threads=count)
            ratio, seconds = yield from self._compare(best, other, bar)
            spent += seconds
            if not math.isfinite(ratio):
                break
            notes[thread_words(count or self._most)] = f"{ratio:.3f}x"
            if ratio <= bar:
                best, total = other, total * ratio
        self._engine.use(best)
        self._rest = self._policy.rest * spent
        self.watch()
        return best, total

    def _compare(self, one: Tuning, other: Tuning, bar: float) -> Steps[tuple[float, float]]:
        """Return the time with ``other`` by the time with ``one``, and the seconds of the trial."""
        engine, ratios, spent = self._engine, list[float](), 0.0
        while len(ratios) < 3 or (len(ratios) < 7 and not is_clear(ratios, bar)):
            means: dict[Tuning, float] = {}
            for tuning in (one, other) if len(ratios) % 2 else (other, one):
                engine.use(tuning)
                taken = yield  # do not measure the first step after a change
                spent += taken.seconds
                steps, total = 0, 0.0
                while steps < 3 or total < self._policy.block:
                    taken = yield
                    steps, total = steps + 1, total + taken.seconds
                    if engine.tuning != tuning:
                        self.overruled = engine.tuning.threads != tuning.threads
                        return math.inf, spent + total
                means[tuning], spent = total / steps, spent + total
            ratios.append(means[other] / means[one])
        return statistics.median(ratios), spent


def other_numbers(present: int, most: int) -> list[int]:
    """Return the numbers of threads to try instead of the present one, the largest one first.

    Args:
        present: The number in use; 0 stands for ``most``.
        most: The number that the user has set.
    """
    at = present or most
    counts = {1, at // 2, min(2 * at, most), most // 2, most} - {0, at}
    return [0 if count == most else count for count in sorted(counts, reverse=True)]
