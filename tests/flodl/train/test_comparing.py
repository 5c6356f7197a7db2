"""Comparisons of two tunings, with times that the test chooses."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from flodl.data import Batch
from flodl.monitor.ledger import Account
from flodl.train.engines.comparing import Extent, phase_ratios, step_ratio
from flodl.train.engines.live_steps import PHASES, PhaseClock, Steps, Taken
from flodl.train.engines.tuning import Tuning

FORWARD, BACKWARD, UPDATE = PHASES
PLAIN, FUSED = Tuning(), Tuning(fused=True)
BATCH = Batch((torch.zeros(1),), ("x",))


class Clockwork:
    """Stands in for an engine: its steps take the time that the test says.

    Args:
        seconds: Tuning -> seconds of forward, backward and update.
        noise: Relative noise of forward and backward.
    """

    def __init__(
        self, seconds: Mapping[Tuning, tuple[float, float, float]], noise: float = 0.0
    ) -> None:
        self.tuning = PLAIN
        self.fused_refusal = ""
        self.seconds, self.noise, self.steps = seconds, noise, 0
        self._draw = random.Random(3)

    def use(self, tuning: Tuning) -> None:
        self.tuning = tuning

    def run(self, trial: Steps[Any]) -> Any:
        """Take steps until a trial ends, and return its result."""
        next(trial)
        while True:
            self.steps += 1
            loud = [1 + self.noise * self._draw.uniform(-1, 1) for _ in range(2)] + [1.0]
            pairs = zip(PHASES, self.seconds[self.tuning], loud, strict=True)
            phases = {phase: spent * factor for phase, spent, factor in pairs}
            try:
                trial.send(Taken(sum(phases.values()), BATCH, phases))
            except StopIteration as end:
                return end.value


def test_a_small_gain_of_one_phase_is_found_in_the_noise_of_the_others() -> None:
    seconds = {PLAIN: (0.1, 0.2, 0.010), FUSED: (0.1, 0.2, 0.006)}
    engine = Clockwork(seconds, noise=0.3)
    bars = {UPDATE: 0.996}
    found = engine.run(phase_ratios(engine, PLAIN, FUSED, bars, Extent(1, 5, 5)))
    assert found == {UPDATE: pytest.approx(1 - 0.004 / 0.31, rel=5e-3)}
    assert engine.steps == 10
    # The time of whole steps says nothing.
    engine = Clockwork(seconds, noise=0.3)
    whole = engine.run(step_ratio(engine, PLAIN, FUSED, 0.98, Extent(1, 5, 5)))
    assert abs(whole - (1 - 0.004 / 0.31)) > 0.02


def test_phases_of_one_trial_are_judged_one_by_one() -> None:
    both = Tuning(route_forward=True, route_backward=True)
    engine = Clockwork({PLAIN: (0.1, 0.2, 0.1), both: (0.14, 0.12, 0.1)})
    bars = {FORWARD: 0.996, BACKWARD: 0.996}
    found = engine.run(phase_ratios(engine, PLAIN, both, bars, Extent(2, 5, 15)))
    assert found == {FORWARD: pytest.approx(1.1), BACKWARD: pytest.approx(0.8)}
    # One step after each change is not measured. A round begins as the one before it ended.
    assert engine.steps == 5 * 2 * 2 + 6


def test_a_tuning_that_clearly_loses_is_given_up_after_two_rounds() -> None:
    slow = Tuning(channels_last=True)
    engine = Clockwork({PLAIN: (0.1, 0.1, 0.1), slow: (0.2, 0.1, 0.1)})
    ratio = engine.run(step_ratio(engine, PLAIN, slow, 0.98, Extent(1, 5, 15)))
    assert ratio == pytest.approx(4 / 3)
    assert engine.steps == 7
    engine = Clockwork({PLAIN: (0.1, 0.1, 0.1), slow: (0.101, 0.1, 0.1)})
    engine.run(step_ratio(engine, PLAIN, slow, 0.98, Extent(1, 5, 15)))
    assert engine.steps == 16


def test_a_clock_of_phases_also_tells_the_ledger_and_adds_the_parts_of_a_batch() -> None:
    told: list[Account] = []
    clock = PhaseClock(told.append)
    for _ in range(2):
        clock.begin()
        clock(FORWARD)
        clock(BACKWARD)
    clock(UPDATE)
    taken = clock.take()
    assert told == [FORWARD, BACKWARD, FORWARD, BACKWARD, UPDATE]
    assert all(taken[phase] > 0 for phase in PHASES)
    assert clock.take() == dict.fromkeys(PHASES, 0.0)
