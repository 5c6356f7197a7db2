"""The number of threads of a step: tried in live steps, before the engine decides.

Other programs decide which number is best. With a core for each thread, more threads are faster.
If another program has a core, each operation waits for the thread that got none.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, final

from flodl.openmp import ShortSpin, other_programs_run, usable_cores
from flodl.train.engines.cores import CoreUse
from flodl.train.engines.live_steps import is_clear
from flodl.train.engines.tuning import thread_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl.train.engines.live_steps import Steps
    from flodl.train.engines.tuned import TunedEngine
    from flodl.train.engines.tuning import Tuning


_CROWDED = 3
"""Steps that show whether it is crowded, if they are short."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadPolicy:
    """Limits that decide when a number of threads is tried.

    Attributes:
        waited: The training waits for a core in more than this part of the time: the machine is
            busy.
        freed: So many idle cores are a reason to try more threads than on the busy machine.
        crowded: If it waits for more than this part, the first steps are enough to see it.
        gain: Another number must save this part of a step to be used.
        share: On a busy machine, fewer threads are used even if a step takes this part longer:
            the steps are faster as soon as the other program does the same, and it may be another
            training.
        block: Seconds of steps with one number in a trial; at least one step.
        evident: If the first two comparisons save more than this part of a step, they suffice; on a
            crowded machine, the first one does.
        hopeless: A number is given up if the first step with it takes this many times as long.
        short: A single thread is tried for steps up to this many seconds: with the many threads of
            a large machine, a long step would take minutes with one.
        steps: A run with fewer steps left tries nothing.
        seconds: A run with less time left tries nothing.
        part: Part of the steps left that a trial of one number may take; three comparisons are
            always made.
    """

    waited: float = 0.1
    freed: float = 0.7
    crowded: float = 0.3
    gain: float = 0.05
    share: float = 0.1
    block: float = 0.025
    evident: float = 0.4
    hopeless: float = 2.0
    short: float = 0.02
    steps: int = 40
    seconds: float = 0.5
    part: float = 0.2


class _Block(NamedTuple):
    """Steps with one number of threads.

    Attributes:
        steps: How many, with the one before the measurement.
        mean: Seconds of a measured step; infinite if the program set its own number.
    """

    steps: int
    mean: float


@final
class ThreadTrials:
    """Chooses the number of threads for the steps of an engine.

    Args:
        engine: Computes the steps.
        most: The number of threads that the user has set.
        policy: Limits that decide when a trial pays.

    Attributes:
        was_busy: What :meth:`busy` last returned.
    """

    def __init__(self, engine: TunedEngine, most: int, policy: ThreadPolicy | None = None) -> None:
        self._engine = engine
        self._most = most
        self._policy = policy or ThreadPolicy()
        self._use = CoreUse()
        self._spin = ShortSpin()
        self._step = self._crowded_step = 0.0
        self.was_busy = False

    def watch(self) -> None:
        """Start to watch how the next steps get their cores."""
        self._crowded_step = 0.0
        self._use.restart()

    def crowded(self) -> Steps[float]:
        """Take a few steps, to see whether the training waits so much that they show it.

        On such a machine each step with too many threads is long, so one of them may do.

        Returns:
            The seconds of a step on a crowded machine; 0.0 on another one.
        """
        # If another program wants a core, the first step can take seconds without this.
        if self._most >= usable_cores() or other_programs_run():
            self._spin.hold()
        yield  # it makes what later steps use again
        if self._use.waited() <= self._policy.waited:
            self._spin.release()
        self._use.restart()
        seconds: list[float] = []
        for _ in range(_CROWDED - 1):
            taken = yield
            seconds.append(float(taken.seconds))
            if self._waits() and sum(seconds) >= self._policy.block:
                break
        self._step = statistics.median(seconds)
        self._crowded_step = self._step if self._waits() else 0.0
        return self._crowded_step

    def _waits(self) -> bool:
        return self._use.waited() > self._policy.crowded

    def busy(self) -> bool:
        """Whether the training had to wait for a core since the watch began."""
        self.was_busy = self._use.waited() > self._policy.waited
        # A thread that spins holds the core that another one waits for.
        (self._spin.hold if self.was_busy else self._spin.release)()
        return self.was_busy

    def freed(self) -> bool:
        """Whether, since the watch began, it waited for no core and one had nothing to do.

        If not, the machine still counts as busy: the number of threads was chosen so.
        """
        policy = self._policy
        if self._use.waited() > policy.waited or self._use.idle() < policy.freed:
            return False
        return not self.busy()

    def close(self) -> None:
        """End what it keeps."""
        self._spin.release()

    def pays(self, seconds: float, steps: int) -> bool:
        """Whether a trial pays before so many steps of this time."""
        return steps >= self._policy.steps and seconds * steps >= self._policy.seconds

    def choose(
        self, best: Tuning, notes: dict[str, object], steps: int
    ) -> Steps[tuple[Tuning, float]]:
        """Try other numbers of threads for a tuning, and use the best one.

        Args:
            best: The tuning in use.
            notes: Receives the result of each number.
            steps: Steps that are left.

        Returns:
            The best tuning, and the time of its step divided by the time with ``best``.
        """
        total = 1.0
        short = self._step <= self._policy.short
        for count in other_numbers(best.threads, self._most, single=short):
            fewer = (count or self._most) < (best.threads or self._most)
            shares = self.was_busy and fewer
            bar = 1 + self._policy.share if shares else 1 - self._policy.gain
            other = replace(best, threads=count)
            ratio = yield from self._compare(best, other, bar, steps)
            if not math.isfinite(ratio):
                break
            notes[thread_words(count or self._most)] = f"{ratio:.3f}x"
            if ratio <= bar:
                best, total = other, total * ratio
        self._engine.use(best)
        self.watch()
        return best, total

    def _compare(self, one: Tuning, other: Tuning, bar: float, left: int) -> Steps[float]:
        """Return the time with ``other`` by the time with ``one``.

        On a crowded machine, the steps that have shown it are the first ones with ``one``. An
        evident gain over them suffices.
        """
        ratios, used = list[float](), 0
        known, self._crowded_step = self._crowded_step, 0.0
        if known:
            block = yield from self._block(other)
            used = block.steps
            ratios.append(block.mean / known)
            if math.isinf(block.mean) or ratios[0] < 1 - self._policy.evident:
                return ratios[0]
        while not self._suffice(ratios, bar, left, used):
            means: dict[Tuning, float] = {}
            for tuning in (one, other) if len(ratios) % 2 else (other, one):
                block = yield from self._block(tuning)
                used += block.steps
                if math.isinf(block.mean):
                    return math.inf
                means[tuning] = block.mean
            ratios.append(means[other] / means[one])
        return statistics.median(ratios)

    def _block(self, tuning: Tuning) -> Steps[_Block]:
        """Take the steps of a block with a tuning."""
        engine, steps, seconds, first = self._engine, 0, 0.0, 0
        if engine.tuning != tuning:
            engine.use(tuning)
            yield  # do not measure the first step after a change
            first = 1
        while not steps or seconds < self._policy.block:
            taken = yield
            steps, seconds = steps + 1, seconds + float(taken.seconds)
            if engine.tuning != tuning:  # the program sets its own number of threads
                return _Block(steps, math.inf)
        return _Block(steps + first, seconds / steps)

    def _suffice(self, ratios: Sequence[float], bar: float, left: int, used: int) -> bool:
        """Whether so many comparisons tell which number is faster.

        On a busy machine, a step with too many threads can take five times as long, so each
        comparison that is not needed costs a noticeable part of a short training.

        Args:
            ratios: The results of the comparisons.
            bar: The ratio that decides.
            left: Steps that were left before the first comparison.
            used: Steps that the comparisons have taken.
        """
        policy, made = self._policy, len(ratios)
        if made and min(ratios) > policy.hopeless:
            return True
        if made == 2:
            return max(ratios) < 1 - policy.evident
        if made < 3:
            return False
        return made >= 7 or is_clear(ratios, bar) or used > policy.part * left


def other_numbers(present: int, most: int, *, single: bool = True) -> list[int]:
    """Return the numbers of threads to try instead of the present one, the largest one first.

    Args:
        present: The number in use; 0 stands for ``most``.
        most: The number that the user has set.
        single: Whether to go from more than two threads to one at once.
    """
    at = present or most
    counts = {at // 2, min(2 * at, most), most // 2, most, *([1] if single else [])} - {0, at}
    return [0 if count == most else count for count in sorted(counts, reverse=True)]
