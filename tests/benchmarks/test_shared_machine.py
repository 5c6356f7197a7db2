"""A training that was ended at the limit gives a bound, and a bound decides only on its side."""

from argparse import Namespace

import pytest

from benchmarks.measure import NOT_YET
from benchmarks.shared_machine import (
    AS_IT_COMES,
    OF_BEST,
    OURS,
    WAYS,
    Taken,
    compared,
    measured,
    pairs_table,
    trainings_table,
)
from benchmarks.shared_machine_subject import DEFAULT
from tests.rows import each_row

LIMIT = 8.0


def rounds(*seconds):
    return [Taken(one, one + 3, ended=one < LIMIT) for one in seconds]


@each_row(
    ("ours", "other", "found"),
    [
        ((4, 4, 5), (4, 4, 4), ["1.00 (1.00 … 1.25)", "1.15 PASS"]),
        ((8, 8, 8), (8, 8, 8), ["both at the limit", "not decided"]),
        ((8, 8, 7), (5, 5, 5), [">1.60 (1.40 … 1.60)", "1.15 MISSED"]),
        ((8, 8, 8), (7.8, 7.8, 7.8), [">1.03 (1.03 … 1.03)", "not decided"]),
        ((4, 4, 4), (8, 8, 8), ["<0.50 (0.50 … 0.50)", "1.15 PASS"]),
    ],
)
def test_a_limit_decides_only_what_it_bounds(ours, other, found):
    ways = {OURS: rounds(*ours), "passive": rounds(*other)}
    assert compared(ways, OURS, "passive", OF_BEST) == found


def test_every_way_has_a_figure_or_says_that_it_was_not_measured():
    times = {way: rounds(float(place)) for place, way in enumerate(WAYS, 1)}
    measured_now = trainings_table({"digits": {"alone": times}})
    assert all(f"| {place}.00 |" in measured_now for place in range(1, 1 + len(WAYS)))
    del times[DEFAULT]
    # Its seconds, its ratio and its verdict.
    assert trainings_table({"digits": {"alone": times}}).count(NOT_YET) == 3


def test_many_rounds_of_two_ways_show_how_far_each_varies():
    ways = {AS_IT_COMES: rounds(2, 4, 6), DEFAULT: rounds(3, 4, 5)}
    row = pairs_table({"digits": {"two busy": ways}}).splitlines()[-1]
    cells = "digits | two busy | 3 | 4.00 (2.0 … 6.0) | 4.00 (3.0 … 5.0) | 1.00 (0.83 … 1.50)"
    assert row == f"| {cells} | 1.15 PASS |"


@pytest.mark.slow
def test_the_default_engine_trains():
    options = Namespace(scale=0.02, limit=60.0)
    assert measured("alone", DEFAULT, {}, "digits", options).ended
