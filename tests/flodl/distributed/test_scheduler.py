"""The queue of batches and the windows cut out of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from flodl.ranks.planning.elche import ElCheConfig, ElCheState
from flodl.ranks.planning.schedule import (
    Advice,
    Joined,
    ScheduleConfig,
    ScheduleState,
    Spans,
    WindowReport,
    front,
    insert,
    size,
)
from flodl.ranks.planning.scheduler import (
    _next_overshoot,
    _shares,
    _with_ratios,
    close_window,
    digest,
    extend_window,
    initial_schedule,
    leave_out,
    open_window,
    pass_barrier,
    pass_left_out,
    redistributed,
    stops_here,
    take_step,
)
from flodl.ranks.settings import Policy
from tests.rows import each_row


def config(epochs: int = 1, batches: int = 100, **changes: object) -> ScheduleConfig:
    settings: dict[str, object] = {
        "elche": ElCheConfig(world_size=2),
        "policy": Policy.CADENCE,
        "epochs": epochs,
        "batches_per_epoch": batches,
    }
    return ScheduleConfig(**{**settings, **changes})  # type: ignore[arg-type]


def calibrated(settings: ScheduleConfig) -> ScheduleState:
    state = initial_schedule(settings)
    return replace(state, elche=ElCheState(10, (25, 10), (40.0, 100.0), calibrated=True))


def test_spans_are_cut_and_put_together() -> None:
    assert front(((0, 5), (8, 10)), 6) == (((0, 5), (8, 9)), ((9, 10),))
    assert front(((0, 5),), 0) == ((), ((0, 5),))
    assert front(((0, 9),), 4, before=2) == (((0, 2),), ((2, 9),))
    assert insert(((0, 2), (6, 8)), ((2, 6),)) == ((0, 8),)
    with pytest.raises(ValueError, match="two places"):
        insert(((0, 3),), ((2, 4),))


@each_row(
    ("queue", "own", "leased", "expected"),
    [
        ((), (), (), []),  # all is trained
        (((10, 30),), (), (), []),  # the second and third have not begun
        (((4, 30),), (), (), [(0, 4)]),
        (((12, 30),), ((), ((8, 10),)), (), [(0, 8), (1, 2)]),  # a rank holds what is left
        (
            ((13, 19), (29, 30)),
            (((20, 21),), ()),
            (((9, 11),), ((25, 26),)),
            [(0, 9), (1, 3), (2, 7)],
        ),
    ],
)
def test_epochs_that_have_begun_are_told_with_their_trained_batches(
    queue: Spans, own: tuple[Spans, ...], leased: tuple[Spans, ...], expected: list[tuple[int, int]]
) -> None:
    elche = ElCheState(10, (5, 5), (1.0, 1.0), calibrated=True)
    state = ScheduleState(elche=elche, queue=queue, own=own, leased=leased, next_epoch=3)
    assert state.unfinished(10) == expected
    later = replace(state, complete=1)
    assert later.unfinished(10) == [entry for entry in expected if entry[0] > 0]


def test_leases_have_room_to_run_ahead_and_what_is_unused_comes_back_first() -> None:
    settings = config()
    state, plan = open_window(calibrated(settings), settings)
    assert plan is not None
    assert plan.leases == (((0, 32),), ((32, 45),))
    assert (plan.counts, plan.timed, plan.window_ms) == ((25, 10), True, 1000.0)
    reports = [
        WindowReport(wall_ms=1000, batches=25),
        WindowReport(wall_ms=1000, batches=10),
    ]
    state, outcome = close_window(state, plan, reports, settings)
    assert state.queue == ((25, 32), (42, 100))
    assert state.position == 35
    assert outcome.complete == range(0)
    _, plan = open_window(state, settings)
    assert plan is not None
    assert plan.leases[0] == ((25, 32), (42, 67))


def test_a_window_that_could_not_be_averaged_becomes_longer_and_keeps_its_owners() -> None:
    settings = config()
    state, plan = open_window(calibrated(settings), settings)
    assert plan is not None
    state, longer = extend_window(state, plan, settings)
    assert longer.index == plan.index
    assert longer.leases == (((0, 32), (45, 77)), ((32, 45), (77, 90)))
    assert longer.counts == (50, 20)
    reports = [WindowReport(wall_ms=2000, batches=60), WindowReport(wall_ms=100, batches=1)]
    state, _ = close_window(state, longer, reports, settings)
    assert state.queue == ((33, 45), (73, 100))


def test_the_rest_before_a_barrier_goes_to_whoever_would_be_done_first() -> None:
    settings = config(batches=14)
    _, plan = open_window(calibrated(settings), settings)
    assert plan is not None
    assert plan.counts == (10, 4)
    assert not plan.timed


def test_exactly_one_window_of_batches_is_a_whole_window() -> None:
    settings = config(batches=35)
    state = calibrated(settings)
    # A share of the rest would be others: these speeds give the first rank 26 of 35 batches.
    state = replace(state, elche=replace(state.elche, ms=(36.0, 100.0)))
    _, plan = open_window(state, settings)
    assert plan is not None
    assert (plan.counts, plan.timed) == ((25, 10), True)


def test_lockstep_holds_to_the_last_batch() -> None:
    elche = ElCheConfig(world_size=2, max_batch_diff=0)
    settings = config(batches=37, elche=elche, timed=False)
    state = initial_schedule(settings)
    state = replace(state, elche=ElCheState(10, (10, 10), (40.0, 100.0), calibrated=True))
    counts = []
    while True:
        state, plan = open_window(state, settings)
        if plan is None:
            break
        counts.append(plan.counts)
        reports = [WindowReport(wall_ms=40.0 * n, batches=n) for n in plan.counts]
        state, _ = close_window(state, plan, reports, settings)
    assert counts == [(10, 10), (9, 8)]


def test_windows_reach_into_the_next_epoch_unless_something_is_due_between() -> None:
    flowing, held = config(2, 50), config(2, 50, barrier_every=1)
    for settings, leases in ((flowing, ((32, 64), (64, 77))), (held, ((25, 36), (36, 40)))):
        state = replace(calibrated(settings), queue=((32, 50),), next_epoch=1)
        _, plan = open_window(state, settings)
        assert plan is not None
        if settings is flowing:
            assert tuple(spans[0] for spans in plan.leases) == leases
        else:
            assert sum(plan.counts) == 18
    state, plan = open_window(replace(calibrated(held), next_epoch=1), held)
    assert plan is None
    assert pass_barrier(replace(state, complete=1), held).barrier == 1


def test_a_rank_stops_at_the_batch_whose_end_is_nearest_to_that_of_the_window() -> None:
    settings = config()
    _, plan = open_window(calibrated(settings), settings)
    assert plan is not None
    assert not stops_here(plan, 0, 24, 960.0, 40.0)
    assert stops_here(plan, 0, 25, 1000.0, 40.0)
    assert stops_here(plan, 0, 24, 981.0, 40.0)
    assert stops_here(plan, 0, 32, 500.0, 15.0)


def test_steps_take_a_batch_per_rank_and_never_mix_epochs() -> None:
    settings = config(2, 3, policy=Policy.SYNC, stream_epochs=False, progressive=False)
    state, taken = initial_schedule(settings), []
    while state.complete < 2:
        state, spans = take_step(state, settings)
        taken.append((spans, state.position))
        if not spans:
            state = pass_barrier(state, settings)
    assert [one for one in taken if one[0]] == [
        (((0, 2),), 2),
        (((2, 3),), 3),
        (((3, 5),), 5),
        (((5, 6),), 6),
    ]


def test_rates_run_through_all_positions_of_a_window() -> None:
    settings = config()
    _, plan = open_window(calibrated(settings), settings)
    assert plan is not None
    assert [plan.rate_position(1, index) for index in range(4)] == [0, 3, 7, 10]
    assert plan.rate_position(0, 24) == 33


def test_a_rank_that_only_averages_keeps_the_rate_of_the_beginning_of_the_window() -> None:
    settings = config(batches=1)
    _, plan = open_window(calibrated(settings), settings)
    assert plan is not None
    assert plan.counts == (1, 0)
    assert plan.rate_position(1, 0) == plan.start == 0


def test_batches_are_left_out_once_unless_they_have_been_trained() -> None:
    settings = config(2, 50)
    # Trained are batches 0 to 19, and the second epoch has not begun.
    state = replace(initial_schedule(settings), queue=((20, 50),), next_epoch=1)
    state = leave_out(state, settings, [10, 20, 30, 60])
    assert state.left_out == ((20, 21), (30, 31), (60, 61))
    assert state.queue == ((21, 30), (31, 50))
    assert leave_out(state, settings, [10, 20, 30, 60]) == state
    passed, numbers = pass_left_out(state, settings)
    assert (numbers, passed.position) == (((20, 21),), state.position + 1)
    assert passed.left_out == ((30, 31), (60, 61))


def test_what_a_rank_that_joins_is_told_survives_json() -> None:
    settings = config()
    _, plan = open_window(calibrated(settings), settings)
    for window in (plan, None):
        told = Joined(members=("a", "b"), window=window, offers=(), barrier_every=3, saved_at=7)
        again = Joined.from_json(json.loads(json.dumps(asdict(told))))
        assert (again.members, again.window, again.barrier_every) == (("a", "b"), window, 3)
        assert list(again.offers) == []


def test_a_state_survives_json_and_another_number_of_ranks() -> None:
    settings = config(batches=100, progressive=False)
    state, plan = open_window(initial_schedule(settings), settings)
    assert plan is not None
    again = ScheduleState.from_json(state.as_json())
    assert again == state
    assert digest(again) == digest(state)
    assert digest(replace(again, position=1)) != digest(state)
    assert digest(state) < 2**53  # a float64 holds all integers below
    reports = [WindowReport(wall_ms=9, batches=3), WindowReport(wall_ms=9, batches=3)]
    state, _ = close_window(state, plan, reports, settings)
    three = config(batches=100, elche=ElCheConfig(world_size=3))
    moved = redistributed(state, three, [None, None, None])
    assert size(moved.queue) == 94
    assert moved.own == ((), (), ())
    assert moved.elche.counts == (3, 3, 3)


def test_fixed_shares_are_shared_out_again_among_new_ranks() -> None:
    settings = config(
        elche=ElCheConfig(world_size=3), progressive=False, partition_ratios=(0.5, 0.25, 0.25)
    )
    two = replace(calibrated(config()), queue=((20, 22),), own=(((4, 10),), ((12, 20),)))
    moved = redistributed(two, settings, [None, None, None])
    assert moved.queue == ()
    assert moved.own == (((4, 10), (12, 14)), ((14, 18),), ((18, 22),))


def test_in_the_first_window_a_rank_may_go_on_while_slower_ones_are_on_their_part() -> None:
    settings = config()
    state, plan = open_window(initial_schedule(settings), settings)
    assert plan is not None
    assert (plan.warm_up, plan.timed, plan.counts) == (True, False, (3, 3))
    assert [plan.lease_size(rank) for rank in range(2)] == [24, 24]
    assert not stops_here(plan, 0, 2, 1.0, 1.0)
    # It asks where the others are from its count on.
    assert stops_here(plan, 0, 3, 1.0, 1.0)
    # The positions of its count span the window, and each further batch is one more.
    assert [plan.rate_position(0, index) for index in range(6)] == [0, 2, 4, 6, 7, 8]
    reports = [
        WindowReport(wall_ms=280, batches=8, measured=7),
        WindowReport(wall_ms=200, batches=3, measured=2),
    ]
    closed, _ = close_window(state, plan, reports, settings)
    assert closed.position == 11
    assert size(closed.queue) == 100 - 11
    assert closed.elche.counts == (25, 10)
    _, following = open_window(closed, settings)
    assert following is not None
    assert not following.warm_up


def test_a_hint_of_the_speeds_leaves_the_first_window_a_warm_up() -> None:
    settings = config()
    state, first = open_window(initial_schedule(settings, [2.0, 1.0]), settings)
    assert first is not None
    assert (first.index, first.warm_up) == (0, True)
    # ASYNC opens the next window before the first one is closed, so nothing is measured yet.
    _, second = open_window(state, settings)
    assert second is not None
    assert (second.index, second.warm_up) == (1, False)


def test_where_windows_are_counted_nobody_goes_on_in_the_first_one() -> None:
    settings = config(timed=False)
    _, plan = open_window(initial_schedule(settings), settings)
    assert plan is not None
    assert [plan.lease_size(rank) for rank in range(2)] == [3, 3]


@each_row(
    ("batches", "now", "advice", "then"),
    [
        (350, 2, Advice.STABLE, 3),
        # At most one fiftieth of an epoch, at least 3 and at most 10 batches.
        (350, 7, Advice.STABLE, 7),
        (100, 3, Advice.STABLE, 3),
        (10_000, 10, Advice.STABLE, 10),
        (350, 5, Advice.SUPPRESS_GROWTH, 5),
        # Back to the first one: one hundredth of an epoch, at least 2 and at most 5.
        (350, 7, Advice.NUDGE_DOWN, 3),
        (10_000, 9, Advice.NUDGE_DOWN, 5),
    ],
)
def test_the_overshoot_grows_by_one_up_to_a_part_of_the_epoch(batches, now, advice, then):
    assert _next_overshoot(now, advice, config(batches=batches)) == then
    assert _next_overshoot(now, advice, config(batches=batches, max_overshoot=4)) == now


@each_row(
    ("ratios", "total", "shares"),
    [
        # 0.7 and 0.3 are no exact numbers: 0.7 * 10 / (0.7 + 0.3) may be 6.999….
        ((0.7, 0.3), 10, (7, 3)),
        ((0.1, 0.2, 0.7), 100, (10, 20, 70)),
        # The remainder goes to the fastest rank, among equals to the lowest.
        ((0.5, 0.5), 5, (3, 2)),
        ((0.2, 0.8), 4, (0, 4)),
        ((0.5, 0.25, 0.25), 6, (4, 1, 1)),
    ],
)
def test_fixed_shares_add_up_and_follow_the_ratios(ratios, total, shares):
    settings = config(
        batches=total, partition_ratios=ratios, elche=ElCheConfig(world_size=len(ratios))
    )
    assert _shares(total, initial_schedule(settings), settings) == shares


def test_windows_follow_fixed_shares_rounded_to_the_nearest_batch():
    settings = config(partition_ratios=(0.26, 0.74))
    state = initial_schedule(settings)
    anchor = state.elche.anchor
    # 0.74 / 0.26 is 2.846.
    assert _with_ratios(state.elche, settings).counts == (anchor, round(anchor * 0.74 / 0.26))


def test_ranks_whose_speeds_are_all_known_begin_with_windows_that_fit():
    state = calibrated(config())
    known = redistributed(state, config(), [40.0, 100.0]).elche
    assert known.calibrated
    assert known.ms == (40.0, 100.0)
    assert known.counts[0] > known.counts[1]
    # One unknown speed, and nothing is assumed of the others.
    partly = redistributed(state, config(), [40.0, None]).elche
    assert not partly.calibrated
    assert partly.counts[0] == partly.counts[1]
