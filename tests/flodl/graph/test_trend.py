"""Questions about a series of points."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from flodl.graph.trend import Trend, TrendGroup
from tests.rows import each_row


@pytest.mark.case("runtime", 29)
def test_the_slope_is_that_of_the_least_squares_line():
    assert Trend([10, 8, 6, 4, 2]).slope() == -2
    winding = Trend([1, 5, 10, 8, 6])
    assert winding.slope() == pytest.approx(1.3)
    assert winding.slope(0) == winding.slope(5) == winding.slope(99) == winding.slope()
    assert winding.slope(3) == -2
    assert not winding.improving()
    assert winding.improving(3)


@pytest.mark.case("runtime", 30)
def test_converged_compares_the_population_variance():
    level = Trend([5, 5.01, 4.99, 5, 5.01])
    assert level.converged(5, 1e-3) is True
    assert level.converged(5, 1e-5) is False
    assert level.converged(5, 5.61e-5)  # the variance is 5.6e-5
    assert not level.converged(5, 5.59e-5)


@pytest.mark.case("runtime", 30)
def test_a_run_that_has_only_begun_has_neither_stalled_nor_converged():
    first = Trend([0.5])
    assert first.stalled(10, 1e-4) is False
    assert first.converged(10, 1e-4) is False
    assert not Trend([1, 1]).stalled(3, 1e-4)
    assert Trend([1, 1, 1]).stalled(3, 1e-4)
    assert Trend([1, 1, 1]).converged(3, 1e-4)
    assert first.stalled(10, 1e-4, min_points=1)
    assert first.converged(10, 1e-4, min_points=1)


@pytest.mark.case("runtime", 30)
def test_what_an_empty_trend_answers():
    empty = Trend([])
    assert math.isnan(empty.latest())
    assert math.isnan(empty.mean())
    assert (empty.min(), empty.max()) == (math.inf, -math.inf)
    assert empty.slope() == 0
    assert not empty.improving()
    assert (len(empty), empty.values, empty.last(3)) == (0, [], [])
    assert empty.stalled(0, 1e-4, min_points=0)
    assert empty.converged(0, 1e-4, min_points=0)


def test_points_and_their_summary():
    trend = Trend([3, 1, 2])
    assert trend.values == [3.0, 1.0, 2.0]
    assert len(trend) == 3
    assert (trend.latest(), trend.mean(), trend.min(), trend.max()) == (2, 2, 1, 3)
    assert (trend.last(0), trend.last(2), trend.last(9)) == ([], [1, 2], [3, 1, 2])
    assert repr(trend) == "Trend([3.0, 1.0, 2.0])"
    assert trend == Trend((3, 1, 2))
    assert trend != Trend([3, 1])
    assert hash(trend) == hash(Trend([3, 1, 2]))


def test_a_trend_is_nobody_elses_list():
    points = [1.0, 2.0]
    trend = Trend(points)
    points.append(3)
    trend.values.append(4)
    assert trend.values == [1, 2]


def test_stalled_looks_at_the_size_of_the_slope():
    assert Trend([1, 0.9, 0.8]).stalled(3, 0.11)
    assert not Trend([1, 0.9, 0.8]).stalled(3, 0.09)
    assert Trend([9, 9, 1, 1, 1]).stalled(3, 1e-9)


def test_a_nan_in_the_window_allows_no_judgement():
    broken = Trend([2, math.nan, 1])
    assert math.isnan(broken.slope())
    assert not broken.improving()
    assert not broken.stalled(3, 1)
    assert not broken.converged(3, 1)
    assert (broken.min(), broken.max()) == (1, 2)
    assert Trend([math.nan, 3, 2, 1]).slope(3) == -1


@each_row(
    "ask",
    [
        lambda trend: trend.last(-1),
        lambda trend: trend.slope(-1),
        lambda trend: trend.stalled(-1, 1),
        lambda trend: trend.converged(2, 1, min_points=-1),
    ],
)
def test_negative_counts_are_refused(ask):
    with pytest.raises(ValueError, match="cannot be negative, got -1"):
        ask(Trend([1, 2]))


@given(st.integers(2, 200), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_points_on_a_line_have_its_slope(count, slope, start):
    line = Trend(start + slope * place for place in range(count))
    assert line.slope() == pytest.approx(slope, abs=1e-6, rel=1e-6)


@pytest.mark.case("runtime", 31)
def test_a_group_asks_all_of_its_trends():
    group = TrendGroup([Trend([4, 2]), Trend([1, 2])])
    assert group.slopes() == [-2, 1]
    assert group.mean_slope() == -0.5
    assert group.all_improving() is False
    assert TrendGroup([group[0], group[0]]).all_improving()
    assert not TrendGroup([group[1]]).all_improving()


@pytest.mark.case("runtime", 31)
def test_an_empty_group_says_no_to_everything():
    empty = TrendGroup([])
    assert empty.all_improving() is False
    assert empty.all_stalled(1, 1, min_points=0) is False
    assert empty.all_converged(1, 1, min_points=0) is False
    assert empty.slopes() == []
    assert empty.mean_slope() == 0


def test_a_group_passes_window_tolerance_and_least_points_on():
    flat, falling = Trend([9, 1, 1, 1]), Trend([4, 3, 2, 1])
    mixed = TrendGroup([flat, falling])
    assert mixed.slopes(3) == [0, -1]
    assert not mixed.all_stalled(3, 0.1)
    assert mixed.all_stalled(3, 1.1)
    assert mixed.all_stalled(9, 9, min_points=4)
    assert not mixed.all_converged(3, 0.1)
    assert mixed.all_converged(3, 0.7)
    assert mixed.all_converged(9, 99, min_points=4)


def test_a_group_is_a_sequence_of_its_trends():
    group = TrendGroup(Trend([value]) for value in (1, 2, 3))
    assert len(group) == 3
    assert [trend.latest() for trend in group] == [1, 2, 3]
    assert group[-1] == Trend([3])
    assert group[:2] == (Trend([1]), Trend([2]))
    assert repr(group) == "TrendGroup([Trend([1.0]), Trend([2.0]), Trend([3.0])])"
