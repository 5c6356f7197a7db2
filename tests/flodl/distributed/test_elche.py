"""ElChe: the worked examples, the limits, and that every process computes the same."""

import ast
import json
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import flodl.ranks.planning.elche
from flodl.ranks.planning.elche import (
    ElCheConfig,
    ElCheState,
    RankReport,
    clamp_total,
    communication,
    elche_step,
    initial_state,
    nudge,
    split,
)
from flodl.ranks.settings import DdpRunConfig
from tests.rows import each_row

SOURCE = Path(flodl.ranks.planning.elche.__file__)
TWO = ElCheConfig(world_size=2)


def window(walls, batches, comm=0.0):
    return [RankReport(wall, n, comm) for wall, n in zip(walls, batches, strict=True)]


def after(*windows, config=TWO, speeds=None):
    """The state after these windows, from the beginning."""
    state = initial_state(config, speeds)
    for reports in windows:
        state = elche_step(state, reports, config)
    return state


E1 = window((400, 1000), (10, 10), comm=20)
E4 = window((400, 1000), (10, 10), comm=300)


@pytest.mark.case("distributed", 1)
def test_unequal_ranks_get_counts_in_proportion():
    state = after(E1)
    assert state == ElCheState(10, (25, 10), (40.0, 100.0), calibrated=True)
    assert state.window_ms == 1000.0


@pytest.mark.case("distributed", 2)
def test_a_small_change_of_speed_moves_the_estimate_a_little():
    state = after(E1, window((1100, 1000), (25, 10)))
    assert state.ms == pytest.approx((40.4, 100), abs=1e-9)
    assert state.counts == (25, 10)


@pytest.mark.case("distributed", 3)
def test_a_large_change_of_speed_moves_the_estimate_a_lot():
    state = after(E1, window((1100, 1000), (25, 10)), window((2000, 1000), (25, 10)))
    assert state.ms == pytest.approx((72.08, 100), abs=1e-9)
    assert state.counts == (14, 10)


@pytest.mark.case("distributed", 4)
def test_costly_communication_lengthens_the_window():
    state = after(E4)
    assert (state.anchor, state.counts) == (30, (75, 30))


@pytest.mark.case("distributed", 5)
def test_cheap_communication_shortens_the_window_by_one():
    state = after(E4, window((3000, 3000), (75, 30), comm=30))
    assert (state.anchor, state.counts) == (29, (73, 29))


@pytest.mark.case("distributed", 6)
def test_three_ranks_get_counts_in_proportion():
    state = after(window((250, 400, 1000), (10, 10, 10)), config=ElCheConfig(world_size=3))
    assert state.counts == (40, 25, 10)


@pytest.mark.case("distributed", 7)
@each_row(("lead", "counts"), [(5, (15, 10)), (0, (10, 10))])
def test_the_largest_lead_holds(lead, counts):
    config = replace(TWO, max_batch_diff=lead)
    assert after(E1, config=config).counts == counts
    assert after(config=config, speeds=(2.5, 1)).counts == counts


@pytest.mark.case("distributed", 8)
def test_the_anchor_settles_where_communication_is_worth_it():
    state = after(window((400, 1000), (10, 10), comm=150))
    assert (state.anchor, state.counts) == (15, (38, 15))
    for _ in range(50):
        reports = window((38 * 40, 15 * 100), (38, 15), comm=150)
        state = elche_step(state, reports, TWO)
        assert (state.anchor, state.counts) == (15, (38, 15))


@pytest.mark.case("distributed", 9)
@each_row(
    ("counts", "total", "clamped"),
    [
        ((25, 10), 14, (10, 4)),
        ((25, 10), 1, (1, 0)),
        ((1, 1, 40), 4, (0, 0, 4)),
        ((25, 10), 35, (25, 10)),
        ((25, 10), 100, (25, 10)),
        ((5, 5), 5, (3, 2)),
        ((5, 5), 0, (0, 0)),
    ],
)
def test_counts_are_clamped_to_a_total(counts, total, clamped):
    assert clamp_total(counts, total) == clamped


@pytest.mark.case("distributed", 10)
@each_row(("total", "counts"), [(0, (0, 0)), (3, (2, 1)), (5, (4, 1)), (7, (5, 2)), (14, (10, 4))])
def test_a_tail_goes_to_whoever_finishes_first(total, counts):
    assert split(total, (40, 100)) == counts


REPLAY = """
import hashlib, importlib.util, json, sys
spec = importlib.util.spec_from_file_location("elche", sys.argv[1])
elche = sys.modules["elche"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(elche)
seen = hashlib.sha256()
for sequence in json.load(sys.stdin):
    config = elche.ElCheConfig(**sequence["config"])
    state = elche.initial_state(config, sequence["speeds"])
    for window in sequence["windows"]:
        reports = [elche.RankReport(*rank) for rank in window["reports"]]
        state = elche.elche_step(state, reports, config, suppress=window["suppress"])
        if window["nudge"]:
            state = elche.nudge(state, window["nudge"], config)
        figures = [state.anchor, state.counts, [ms.hex() for ms in state.ms], state.calibrated]
        seen.update(json.dumps(figures).encode())
unwanted = sorted({"torch", "random", "datetime"} & set(sys.modules))
print(json.dumps([seen.hexdigest(), unwanted]))
"""


def random_sequences(number):
    draw = random.Random(7)
    for _ in range(number):
        ranks = draw.randint(1, 5)
        yield {
            "config": {
                "world_size": ranks,
                "anchor": draw.randint(1, 20),
                "min_anchor": draw.choice([None, 1, 5]),
                "max_anchor": draw.randint(1, 300),
                "overhead_target": draw.uniform(0.01, 0.5),
                "max_batch_diff": draw.choice([None, 0, 7]),
            },
            "speeds": draw.choice([None, [draw.uniform(0.2, 3) for _ in range(ranks)]]),
            "windows": [
                {
                    "reports": [
                        [draw.uniform(1, 5000), draw.randint(0, 60), draw.uniform(0, 400)]
                        for _ in range(ranks)
                    ],
                    "suppress": draw.random() < 0.2,
                    "nudge": draw.choice([0, 0, 0, draw.random()]),
                }
                for _ in range(draw.randint(1, 12))
            ],
        }


@pytest.mark.case("distributed", 11)
def test_separate_processes_compute_the_same_bytes():
    sequences = json.dumps(list(random_sequences(1000)))
    answers = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", REPLAY, str(SOURCE)],
            input=sequences,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": hash_seed},
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]
    assert answers[0][1] == []


@pytest.mark.case("distributed", 11)
def test_elche_has_neither_clock_nor_chance_nor_torch():
    imported = set()
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported == {"__future__", "collections.abc", "dataclasses", "heapq", "math", "typing"}


@pytest.mark.case("distributed", 12)
@each_row(
    ("target", "count"),
    # A target that is off by exactly a tenth of the count does not move it.
    [(54, 50), (55, 50), (56, 56), (46, 50), (45, 50), (44, 44)],
)
def test_a_count_follows_its_target_only_out_of_the_dead_zone(target, count):
    pace = 20 * 100 / target
    state = ElCheState(20, (50, 20), (pace, 100.0), calibrated=True)
    reports = window((50 * pace, 2000), (50, 20), comm=150)
    assert elche_step(state, reports, replace(TWO, anchor=20)).counts == (count, 20)


@pytest.mark.case("distributed", 12)
def test_a_short_warm_up_does_not_make_communication_look_costly():
    state = after(window((80, 200), (2, 2), comm=150))
    assert (state.anchor, state.counts) == (15, (38, 15))


@pytest.mark.case("distributed", 13)
def test_the_cap_holds_before_any_report():
    assert after(config=replace(TWO, max_anchor=3)).counts == (3, 3)
    assert after(config=replace(TWO, max_anchor=2)).counts == (2, 2)
    assert after().counts == (3, 3)


@pytest.mark.case("distributed", 13)
def test_the_cap_holds_however_costly_communication_is():
    config = replace(TWO, max_anchor=30)
    state = after(window((400, 1000), (10, 10), comm=5000), config=config)
    assert (state.anchor, state.counts) == (30, (75, 30))


@pytest.mark.case("distributed", 14)
@each_row("ratio", [2.5, 0.4])
def test_a_hint_gives_counts_and_shares_before_any_timing(ratio):
    told = DdpRunConfig(speed_hint=(1, ratio)).relative_speeds(2)
    state = initial_state(TWO, told)
    assert state.counts == (25, 10)
    assert state.ms == (1.0, 2.5)
    assert not state.calibrated
    assert split(35_000, state.ms) == (25_000, 10_000)


def test_the_first_measurement_replaces_a_hint():
    state = after(E1, speeds=(1, 1))
    assert (state.ms, state.counts) == ((40.0, 100.0), (25, 10))


def test_the_first_measurement_moves_even_counts_that_are_almost_right():
    state = after(window((420, 1000), (10, 10)), speeds=(2.5, 1))
    assert state.counts == (24, 10)


def test_a_hinted_rank_without_batches_keeps_its_relation_to_the_measured():
    config = ElCheConfig(world_size=3)
    state = after(window((400, 1000, 0), (10, 10, 0)), config=config, speeds=(5, 2, 1))
    assert state.ms == pytest.approx((40, 100, 200))
    assert state.counts == (50, 20, 10)


def test_counts_stay_as_they_are_until_every_rank_was_measured():
    first = after(window((400, 0), (10, 0), comm=5000))
    assert (first.anchor, first.counts, first.calibrated) == (10, (3, 3), False)
    both = elche_step(first, window((120, 300), (3, 3)), TWO)
    assert (both.counts, both.calibrated) == ((25, 10), True)


def test_a_window_in_which_nothing_was_timed_changes_nothing():
    state = after(E1)
    assert elche_step(state, window((0, 0), (0, 0), comm=900), TWO) == state


def test_a_time_that_is_not_finite_is_no_measurement():
    reports = [RankReport(float("inf"), 10, 20.0), RankReport(1000, 10, 20.0)]
    assert elche_step(after(E1), reports, TWO) == after(E1)


def test_a_rank_of_unknown_speed_shares_a_tail_like_the_slowest():
    assert split(4, (0.0, 50.0)) == (2, 2)
    assert split(3, (0.0, 0.0)) == (2, 1)


def test_growth_can_be_held_back():
    state = after(E1)
    assert elche_step(state, E4, TWO, suppress=True).anchor == 10
    assert elche_step(state, E4, TWO).anchor == 30


def test_a_higher_floor_holds_the_anchor_up():
    config = replace(TWO, anchor=20, min_anchor=19)
    state = after(*[window((400, 1000), (10, 10))] * 5, config=config)
    assert state.anchor == 19


def test_the_last_to_arrive_waits_for_nobody():
    reports = [RankReport(400, 10, 620.0), RankReport(1000, 10, 20.0)]
    assert communication(reports) == (20.0, (600.0, 0.0))


def test_rounding_up_forgives_the_last_bit():
    # 10 · 0.33 / 0.11 is 30.000000000000004 in binary.
    config = replace(TWO, overhead_target=0.11)
    assert after(window((400, 1000), (10, 10), comm=330), config=config).anchor == 30


def test_a_nudge_may_pass_the_floor_and_never_lengthens():
    state = after(E1)
    shorter = nudge(state, 0.5, TWO)
    assert (shorter.anchor, shorter.counts) == (5, (13, 5))
    assert nudge(state, 0.0, TWO).anchor == 1
    assert nudge(state, 7.0, TWO) == state
    assert nudge(nudge(shorter, 0.1, TWO), 0.1, TWO).anchor == 1
    assert nudge(initial_state(TWO), 0.1, TWO).counts == (1, 1)


def test_growth_after_a_nudge_begins_at_the_floor():
    shortest = nudge(after(E1), 0.1, TWO)
    assert shortest.anchor == 1
    # 150 / 1000 of overhead would ask for 2.
    grown = elche_step(shortest, window((1000, 1000), (25, 10), comm=150), TWO)
    assert (grown.anchor, grown.counts) == (10, (25, 10))


@each_row("speeds", [(1,), (1, 0), (1, float("nan")), (1, float("inf"))])
def test_unusable_speeds_are_refused(speeds):
    with pytest.raises(ValueError, match="speed"):
        initial_state(TWO, speeds)


walls = st.floats(0.01, 1e6)
paces = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=6)


@settings(derandomize=True)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=8), st.integers(0, 2000))
def test_clamped_counts_add_up_and_never_grow(counts, total):
    clamped = clamp_total(counts, total)
    assert sum(clamped) == min(sum(counts), total)
    assert all(0 <= now <= before for now, before in zip(clamped, counts, strict=True))
    if sum(counts) > total:
        shares = [Fraction(count * total, sum(counts)) for count in counts]
        assert all(abs(now - share) < 1 for now, share in zip(clamped, shares, strict=True))


@settings(derandomize=True)
@given(st.integers(0, 400), paces)
def test_no_other_division_of_a_tail_ends_sooner(total, ms):
    counts = split(total, ms)
    assert sum(counts) == total
    end = max(count * pace for count, pace in zip(counts, ms, strict=True))
    # What all of them together complete strictly before that end is less than the total.
    assert total == 0 or sum(completed_before(end, pace) for pace in ms) < total


def completed_before(end, pace):
    count = int(end / pace) + 1
    while count * pace >= end:
        count -= 1
    return count


@settings(derandomize=True)
@given(
    paces,
    st.lists(st.tuples(walls, st.integers(0, 60), st.floats(0, 1e4)), min_size=6, max_size=30),
    st.integers(1, 20),
    st.integers(1, 300),
    st.one_of(st.none(), st.integers(0, 20)),
)
def test_the_limits_hold_in_every_state(speeds, figures, anchor, cap, lead):
    ranks = len(speeds)
    config = ElCheConfig(
        world_size=ranks, anchor=anchor, max_anchor=cap, max_batch_diff=lead, overhead_target=0.1
    )
    state = initial_state(config, speeds)
    for start in range(0, len(figures) - ranks + 1, ranks):
        state = elche_step(state, [RankReport(*f) for f in figures[start : start + ranks]], config)
        assert config.floor <= state.anchor <= cap
        assert min(state.counts) >= 1
        if lead is not None:
            assert max(state.counts) - min(state.counts) <= lead


@settings(derandomize=True)
@given(st.lists(st.floats(1, 500), min_size=1, max_size=5))
def test_constant_speeds_end_at_equal_times(ms):
    config = ElCheConfig(world_size=len(ms))
    state = initial_state(config)
    for _ in range(4):
        walls = [pace * count for pace, count in zip(ms, state.counts, strict=True)]
        state = elche_step(state, window(walls, state.counts, comm=1.0), config)
    for pace, count in zip(ms, state.counts, strict=True):
        assert abs(pace * count - state.window_ms) <= pace / 2 + 1e-6 * state.window_ms
