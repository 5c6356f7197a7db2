"""The guard: when it asks for shorter windows, and that the anchor obeys."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from flodl.ranks.planning.elche import ElCheConfig, ElCheState, RankReport, elche_step, nudge
from flodl.ranks.planning.schedule import (
    KEPT,
    Advice,
    GuardState,
    ScheduleConfig,
    WindowReport,
    growth_rate,
    judge,
)
from flodl.ranks.planning.scheduler import (
    close_window,
    initial_schedule,
    open_window,
)
from flodl.ranks.settings import Policy
from tests.rows import each_row


def advice_after(*maxima, threshold=0.05):
    state, advice = GuardState(), Advice.STABLE
    for value in maxima:
        state, advice = judge(state, (value / 2, value), threshold)
    return advice


@pytest.mark.case("distributed", 53)
def test_ranks_that_drift_apart_hold_the_anchor():
    assert advice_after(0.06, 0.07, 0.08) is Advice.SUPPRESS_GROWTH
    config = ElCheConfig(world_size=2)
    state = ElCheState(10, (25, 10), (40.0, 100.0), calibrated=True)
    costly = [RankReport(1000, 25, 300), RankReport(1000, 10, 300)]
    assert elche_step(state, costly, config, suppress=True).anchor == 10


@pytest.mark.case("distributed", 53)
def test_ranks_that_drift_far_apart_halve_the_anchor():
    assert advice_after(0.11, 0.12, 0.13) is Advice.NUDGE_DOWN
    state = ElCheState(20, (50, 20), (40.0, 100.0), calibrated=True)
    halved = nudge(state, 0.5, ElCheConfig(world_size=2))
    assert (halved.anchor, halved.counts) == (10, (25, 10))


@pytest.mark.case("distributed", 53)
@each_row(
    "maxima",
    [
        (0.06, 0.09, 0.07),
        (0.07, 0.08, 0.08),
        (0.02, 0.03, 0.05),
        (0.20, 0.30),
        (0.30, 0.20, 0.25),
        (),
    ],
)
def test_anything_but_three_rising_above_the_threshold_is_stable(maxima):
    assert advice_after(*maxima) is Advice.STABLE


@pytest.mark.case("distributed", 53)
@each_row(("on", "advised"), [(True, Advice.NUDGE_DOWN), (False, Advice.STABLE)])
def test_without_the_guard_everything_is_stable(on, advised):
    config = ScheduleConfig(
        elche=ElCheConfig(world_size=2),
        policy=Policy.CADENCE,
        epochs=1,
        batches_per_epoch=1000,
        divergence_guard=on,
    )
    state, outcome = initial_schedule(config), None
    for divergence in (0.11, 0.12, 0.13):
        state, plan = open_window(state, config)
        reports = [
            WindowReport(wall_ms=100.0 * count, batches=count, divergence=divergence)
            for count in plan.counts
        ]
        state, outcome = close_window(state, plan, reports, config)
    assert outcome.advice is advised
    assert state.elche.anchor == (5 if on else 10)


def test_only_the_last_has_to_be_above_the_threshold():
    assert advice_after(0.01, 0.02, 0.06) is Advice.SUPPRESS_GROWTH
    assert advice_after(0.9, 0.01, 0.02, 0.06) is Advice.SUPPRESS_GROWTH


def test_only_the_last_has_to_be_above_twice_the_threshold():
    assert advice_after(0.06, 0.07, 0.11) is Advice.NUDGE_DOWN


def test_values_that_are_not_finite_are_left_out():
    state, advice = judge(GuardState((0.06, 0.07)), (math.nan, 0.08), 0.05)
    assert (state.maxima, advice) == ((0.06, 0.07, 0.08), Advice.SUPPRESS_GROWTH)
    unchanged, advice = judge(state, (math.nan, math.inf), 0.05)
    assert (unchanged, advice) == (state, Advice.STABLE)


def test_the_rate_of_divergence_is_per_batch():
    assert growth_rate(GuardState((0.12, 0.04)), 8) == pytest.approx(-0.137, abs=5e-4)
    # The two newest rounds count, also in a window of one batch.
    newest = GuardState((0.3, 0.2, 0.12, 0.04))
    assert growth_rate(newest, 1) == pytest.approx(math.log(0.04 / 0.12))
    assert growth_rate(GuardState((0.12,)), 8) is None
    assert growth_rate(GuardState((0.0, 0.04)), 8) is None
    assert growth_rate(GuardState((0.12, 0.04)), 0) is None


@settings(derandomize=True)
@given(st.lists(st.floats(0, 1), max_size=20))
def test_the_newest_rounds_are_kept(maxima):
    state = GuardState()
    for value in maxima:
        state, _ = judge(state, (value,), 0.05)
    assert state.maxima == tuple(maxima[-KEPT:])
