"""What the benchmark of the step trace makes of the turns that it measured."""

import pytest

from benchmarks.trace_cost import added, cells_of, costs_of, options_of, steps_between
from benchmarks.trace_cost_turns import Turns
from flodl.train.observers.digests import SHARE, DigestTimes
from tests.rows import each_row

RARE = {"digests": [0.004, 0.006], "snapshots": [], "histograms": [0.1], "losses": [0.001] * 4}


def turns(count: int = 20, steps: int = 2) -> Turns:
    """Steps of 0.1 s beside steps that take 0.5 % more, with a rare second in one turn."""
    seconds = [(0.19, 0.201, 0.21, 0.0)] * (count - 1) + [(0.19, 1.201, 0.21, 1.0)]
    return Turns(steps, seconds, {kind: list(times) for kind, times in RARE.items()}, 0.02)


def test_the_costs_of_every_step_and_of_rare_work_are_added():
    costs = costs_of(added(None, turns(), "trace"))
    assert costs.step == pytest.approx(0.1)
    assert costs.always == pytest.approx(0.005)
    assert costs.nothing == pytest.approx(0.21 / 0.19 - 1)
    assert costs.rare == {
        "digests": pytest.approx(0.005 / 32 / 0.1),
        "histograms": pytest.approx(0.1 / 100 / 0.1),
        "losses": pytest.approx(0.004 / 40 / 0.1),
    }
    assert costs.together == pytest.approx(0.005 + 0.0015625 + 0.01 + 0.001)
    assert costs.threads == pytest.approx(0.02 / 40 / 0.1)
    assert costs.low <= costs.always <= costs.high


def test_another_call_adds_its_turns():
    once = added(None, turns(), "trace")
    twice = added(once, turns(4), "trace")
    assert len(twice["turns"]) == 24
    assert len(twice["rare"]["digests"]) == 4
    other = added(twice, turns(4), "trace + guards")
    assert len(other["turns"]) == 4, "what measured something else is dropped"
    assert options_of({"mlp": once}) == []
    wide = {"mlp": {"with": "trace + histograms + guards"}}
    assert options_of(wide) == ["--histograms", "--also", "guards"]


def test_bars_are_percent_and_microseconds_for_the_tiny_perceptron():
    row = added(None, turns(), "trace")
    assert "1.00 MISSED %" in cells_of("mlp", row)
    assert "5.00 MISSED µs" in cells_of("tiny_mlp", row)


@each_row("cost", [1e-5, 0.0006, 0.01, 0.05])
def test_the_steps_between_digests_are_those_that_a_training_chooses(cost):
    now = 0.0
    times = DigestTimes(0, lambda: now)
    times.run(0)
    times.taken(0, cost)
    now = 64 * 0.1
    times.is_due(64)
    times.taken(64, cost)
    every = steps_between(cost, 0.1)
    assert times.next_step == (64 // every + 1) * every
    assert cost / every / 0.1 <= SHARE
