"""Comparisons of two tunings in live steps, in turns, so that drift of the machine affects both.

A tuning that changes one phase of a step is judged by the time of that phase. The rest of the step
adds no noise, and tunings of different phases are tried together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flodl.monitor.ledger import Account
from flodl.train.engines.live_steps import PHASES, is_clear, median_of_steps

if TYPE_CHECKING:
    from flodl.train.engines.live_steps import Steps, Taken
    from flodl.train.engines.tuned import TunedEngine
    from flodl.train.engines.tuning import Tuning

_HOPELESS = 0.08
"""A tuning whose rounds are all this far above the bar is not measured any longer."""


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """How long a comparison may take.

    Attributes:
        block: Steps with one tuning that are measured together.
        least: Rounds of two blocks.
        most: Rounds if the result is not clear.
    """

    block: int
    least: int
    most: int

    def ends(self, rounds: Sequence[Sequence[float]], bars: Sequence[float]) -> bool:
        """Whether the ratios of the rounds so far suffice.

        Args:
            rounds: The ratios of each thing that is compared.
            bars: For each, the ratio that decides.
        """
        done = len(rounds[0])
        pairs = list(zip(rounds, bars, strict=True))
        if done >= 2 and all(min(ratios) > bar + _HOPELESS for ratios, bar in pairs):
            return True
        if done < self.least:
            return False
        return done >= self.most or all(is_clear(ratios, bar) for ratios, bar in pairs)


def step_ratio(
    engine: TunedEngine, one: Tuning, other: Tuning, bar: float, extent: Extent
) -> Steps[float]:
    """Return the time of a step with ``other``, divided by the time with ``one``.

    It is infinite if the engine had to change ``other``.
    """
    ratios: list[float] = []
    while not extent.ends([ratios], [bar]):
        medians: dict[Tuning, float] = {}
        for tuning in _turns(one, other, len(ratios)):
            if engine.tuning != tuning:
                engine.use(tuning)
                yield  # do not measure the first step after a change
            medians[tuning] = yield from median_of_steps(extent.block)
            if engine.tuning != tuning or (tuning.fused and engine.fused_refusal):
                return math.inf
        ratios.append(medians[other] / medians[one])
    return statistics.median(ratios)


def phase_ratios(
    engine: TunedEngine,
    one: Tuning,
    other: Tuning,
    bars: Mapping[Account, float],
    extent: Extent,
) -> Steps[Mapping[Account, float]]:
    """Return how each phase changes the time of a step with ``other``, as a ratio to ``one``.

    A ratio of 0.9 says that ``other`` saves a tenth of the step in this phase.

    Args:
        engine: It has used ``other`` before, so that nothing is prepared in a measured step.
        one: A tuning.
        other: Another tuning. It has the same memory layout, heap and threads.
        bars: The phases to compare, each with the ratio that decides.
        extent: How long to compare.
    """
    ratios: dict[Account, list[float]] = {phase: [] for phase in bars}
    rounds = 0
    while not extent.ends(list(ratios.values()), list(bars.values())):
        medians: dict[Tuning, Mapping[Account, float]] = {}
        for tuning in _turns(one, other, rounds):
            if engine.tuning != tuning:
                engine.use(tuning)
                if extent.block > 1:  # in a long step, the change itself takes no noticeable time
                    yield
            medians[tuning] = yield from _median_phases(extent.block)
        whole = sum(medians[one].values())
        for phase, found in ratios.items():
            found.append(1 + (medians[other][phase] - medians[one][phase]) / whole)
        rounds += 1
    return {phase: statistics.median(found) for phase, found in ratios.items()}


def _turns(one: Tuning, other: Tuning, number: int) -> tuple[Tuning, Tuning]:
    """Return the order of a round; the next round begins with the last tuning of this one."""
    return (one, other) if number % 2 else (other, one)


def _median_phases(steps: int) -> Steps[Mapping[Account, float]]:
    taken: list[Taken] = []
    while len(taken) < steps:
        step = yield
        taken.append(step)
    return {phase: statistics.median(step.phases[phase] for step in taken) for phase in PHASES}
