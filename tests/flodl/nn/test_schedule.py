"""Schedules: the rates the formulas say, the rates torch gives, and the wrapper for torch."""

from __future__ import annotations

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from flodl.nn.schedule import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    PlateauScheduler,
    Scheduler,
    StepDecay,
    WarmupScheduler,
    as_torch_scheduler,
)
from tests.rows import each_row


def rates(schedule, *steps):
    return [schedule.lr(step) for step in steps]


def exactly(*expected):
    return pytest.approx(list(expected), rel=1e-9, abs=1e-12)


# --- The formulas -------------------------------------------------------------------------------


@pytest.mark.case("runtime", 49)
def test_steps_and_milestones_multiply_by_gamma():
    assert rates(StepDecay(0.1, 10, 0.5), 9, 10, 20) == exactly(0.1, 0.05, 0.025)
    milestones = MultiStepLR(0.1, [60, 30, 90], 0.5)
    assert rates(milestones, 29, 30, 90) == exactly(0.1, 0.05, 0.0125)


@pytest.mark.case("runtime", 50)
def test_a_cosine_falls_to_its_minimum_and_stays():
    schedule = CosineScheduler(0.1, 0.001, 100)
    assert rates(schedule, 0, 50, 100, 250) == exactly(0.1, 0.0505, 0.001, 0.001)
    assert schedule.lr(25) == pytest.approx(0.0855017857, abs=1e-10)


@pytest.mark.case("runtime", 51)
def test_a_warmup_rises_to_its_target_and_hands_over():
    schedule = WarmupScheduler(CosineScheduler(0.1, 0.001, 90), 0.1, 10)
    assert rates(schedule, 0, 9, 10, 55) == exactly(0.01, 0.1, 0.1, 0.0505)
    assert schedule.total_steps == 100
    assert schedule.lr(100) == pytest.approx(0.001)


@pytest.mark.case("runtime", 52)
def test_one_cycle_goes_up_in_a_line_and_down_in_a_cosine():
    cycle = OneCycleLR(0.01, 100)
    expected = exactly(0.0004, 0.0052, 0.01, 0.0052, 0.0004, 0.0004)
    assert rates(cycle, 0, 15, 30, 65, 100, 200) == expected
    short = OneCycleLR(0.01, 15)
    assert max(range(16), key=short.lr) == 5
    assert short.lr(5) == pytest.approx(0.01)


@pytest.mark.case("runtime", 53)
def test_a_cyclic_rate_swings_in_straight_lines():
    assert rates(CyclicLR(0.001, 0.01, 10), 5, 10, 20) == exactly(0.0055, 0.01, 0.001)
    assert rates(CyclicLR.asymmetric(0, 1, 4, 6), 4, 7, 10) == exactly(1, 0.5, 0)


@pytest.mark.case("runtime", 54)
def test_a_plateau_lowers_the_rate_at_the_third_observation_without_improvement():
    schedule = PlateauScheduler(0.1, 3, 0.5, 1e-6)
    seen = []
    for metric in (1, 1.1, 1.2, 1.3):
        returned = schedule.observe(metric)
        assert returned == schedule.lr() == schedule.lr(17)
        seen.append(returned)
    assert seen == exactly(0.1, 0.1, 0.1, 0.05)


def test_an_exponential_falls_at_every_step():
    assert rates(ExponentialLR(0.2, 0.9), 0, 1, 10) == exactly(0.2, 0.18, 0.2 * 0.9**10)


def test_a_milestone_named_twice_counts_twice():
    assert MultiStepLR(1.0, (5, 5), 0.5).lr(5) == 0.25


def test_the_share_of_the_rise_can_be_chosen():
    cycle = OneCycleLR.with_warmup_frac(0.01, 1000, 0.2)
    assert cycle == OneCycleLR(0.01, 1000, warmup_frac=0.2)
    assert max(range(1001), key=cycle.lr) == 200
    assert OneCycleLR(0.01, 10, 0).lr(0) == pytest.approx(0.01)


def test_a_warmup_knows_how_long_the_whole_lasts():
    assert WarmupScheduler(OneCycleLR(0.1, 50), 0.004, 10).total_steps == 60
    twice = WarmupScheduler(WarmupScheduler(CosineScheduler(1, 0, 5), 1, 3), 1, 2)
    assert twice.total_steps == 10
    assert WarmupScheduler(StepDecay(0.1, 10, 0.5), 0.1, 5).total_steps is None
    assert WarmupScheduler(StepDecay(0.1, 10, 0.5), 0.1, 0).lr(0) == 0.1


# --- Plateau ------------------------------------------------------------------------------------


def test_a_plateau_restarts_its_count_after_a_fall_and_after_an_improvement():
    schedule = PlateauScheduler(1.0, 2, 0.5)
    observed = [schedule.observe(m) for m in (1.0, 1.0, 0.9, 1.0, 0.9, 0.95, 0.95, 0.8, 1, 1)]
    assert observed == exactly(1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125)


def test_a_plateau_takes_nan_for_no_improvement_and_a_tensor_for_its_value():
    schedule = PlateauScheduler(1.0, 2, 0.5)
    assert schedule.observe(math.nan) == 1.0
    assert schedule.observe(torch.tensor(math.nan)) == 0.5
    assert schedule.observe(torch.tensor(3.0)) == 0.5
    assert schedule.observe(math.nan) == 0.5
    assert schedule.observe(2.0) == 0.5
    assert schedule.observe(2.5) == 0.5


def test_a_plateau_does_not_fall_below_its_minimum():
    schedule = PlateauScheduler(1.0, 1, 0.1, 0.05)
    assert [schedule.observe(m) for m in (1, 1, 1, 1)] == exactly(1, 0.1, 0.05, 0.05)


def test_a_plateau_continues_from_its_state():
    metrics = [3, 2, 2, 2, 2.5, math.nan, 1, 1, 1, 0.5, 2, 2]
    whole, first, second = (PlateauScheduler(0.1, 2, 0.3, 1e-4) for _ in range(3))
    expected = [whole.observe(m) for m in metrics]
    before = [first.observe(m) for m in metrics[:5]]
    second.load_state_dict(first.state_dict())
    assert before + [second.observe(m) for m in metrics[5:]] == expected
    assert first.state_dict() != second.state_dict() == whole.state_dict()


def test_the_state_of_a_plateau_inside_a_warmup_is_reached():
    plateau, fresh = PlateauScheduler(0.1, 1, 0.5), PlateauScheduler(0.1, 1, 0.5)
    plateau.observe(1)
    plateau.observe(1)
    state = WarmupScheduler(plateau, 0.1, 3).state_dict()
    WarmupScheduler(fresh, 0.1, 3).load_state_dict(state)
    assert fresh.lr() == 0.05
    assert WarmupScheduler(StepDecay(0.1, 10, 0.5), 0.1, 5).state_dict() == {}


# --- What is refused ----------------------------------------------------------------------------


@each_row(
    ("make", "complaint"),
    [
        (lambda: StepDecay(0.1, 0, 0.5), "StepDecay: step_size"),
        (lambda: StepDecay(-0.1, 10, 0.5), "StepDecay: base_lr"),
        (lambda: StepDecay(0.1, 10, math.nan), "StepDecay: gamma"),
        (lambda: StepDecay(0.1, 2.5, 0.5), "whole number"),
        (lambda: ExponentialLR(math.inf, 0.5), "ExponentialLR: base_lr"),
        (lambda: MultiStepLR(0.1, [3, -1], 0.5), "milestones .* -1"),
        (lambda: CosineScheduler(0.1, 0.001, 0), "CosineScheduler: total_steps"),
        (lambda: OneCycleLR(0.1, 0), "OneCycleLR: total_steps"),
        (lambda: OneCycleLR(0.1, 10, 1.0), "warmup_frac"),
        (lambda: OneCycleLR(0.1, 1, 0.6), "leaves none to come down"),
        (lambda: CyclicLR(0.1, 1.0, 0), "CyclicLR: steps_up"),
        (lambda: CyclicLR.asymmetric(0.1, 1.0, 3, 0), "CyclicLR: steps_down"),
        (lambda: WarmupScheduler(StepDecay(0.1, 1, 0.5), 0.1, -1), "warmup_steps"),
        (lambda: WarmupScheduler(StepDecay(0.1, 1, 0.5), -0.1, 1), "target_lr"),
        (lambda: PlateauScheduler(0.1, 0, 0.5, 0), "patience"),
        (lambda: PlateauScheduler(0.1, 3, 1.0, 0), "factor"),
        (lambda: PlateauScheduler(0.1, 3, 0.5, 0.2), "min_lr 0.2 is above base_lr 0.1"),
    ],
)
def test_a_degenerate_schedule_is_refused_when_it_is_made(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


ALL = [
    StepDecay(0.1, 10, 0.5),
    ExponentialLR(0.1, 0.99),
    MultiStepLR(0.1, [20, 40], 0.1),
    CosineScheduler(0.1, 0.001, 60),
    WarmupScheduler(CosineScheduler(0.1, 0.001, 50), 0.1, 10),
    OneCycleLR(0.1, 60),
    CyclicLR(0.01, 0.1, 7),
    PlateauScheduler(0.1, 3, 0.5, 1e-6),
]
NAMES = [type(schedule).__name__ for schedule in ALL]


@each_row("schedule", ALL[:-1], ids=NAMES[:-1])
def test_a_step_before_the_first_is_refused(schedule):
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        schedule.lr(-1)


@each_row("schedule", ALL, ids=NAMES)
def test_a_schedule_is_a_scheduler_gives_floats_and_can_be_copied(schedule):
    assert isinstance(schedule, Scheduler)
    wanted = rates(schedule, *range(80))
    assert all(type(rate) is float for rate in wanted)
    assert rates(schedule, *np.arange(80)) == pytest.approx(wanted, rel=1e-12)
    for twin in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert rates(twin, *range(80)) == wanted


# --- Against torch ------------------------------------------------------------------------------


def sgd(*lrs):
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in lrs]
    return torch.optim.SGD(groups, lr=1.0)


def torch_rates(make, base_lr, steps=200):
    optimizer = sgd(base_lr)
    scheduler = make(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


TORCH = torch.optim.lr_scheduler
PAIRS = {
    "StepLR": (StepDecay(0.3, 7, 0.8), lambda o: TORCH.StepLR(o, 7, 0.8)),
    "MultiStepLR": (
        MultiStepLR(0.3, [120, 20, 20, 50], 0.7),
        lambda o: TORCH.MultiStepLR(o, [120, 20, 20, 50], 0.7),
    ),
    "ExponentialLR": (ExponentialLR(0.3, 0.97), lambda o: TORCH.ExponentialLR(o, 0.97)),
    "CosineAnnealingLR": (
        CosineScheduler(0.3, 0.001, 200),
        lambda o: TORCH.CosineAnnealingLR(o, 200, 0.001),
    ),
    "CyclicLR": (
        CyclicLR(0.3, 0.9, 9),
        lambda o: TORCH.CyclicLR(o, 0.3, 0.9, 9, cycle_momentum=False),
    ),
    "CyclicLR asymmetric": (
        CyclicLR.asymmetric(0.3, 0.9, 5, 11),
        lambda o: TORCH.CyclicLR(o, 0.3, 0.9, 5, 11, cycle_momentum=False),
    ),
    "LinearLR, then constant": (
        WarmupScheduler(StepDecay(0.3, 1000, 1.0), 0.3, 10),
        lambda o: TORCH.LinearLR(o, start_factor=0.1, total_iters=9),
    ),
}


@each_row(("ours", "theirs"), PAIRS.values(), ids=PAIRS)
def test_two_hundred_steps_equal_torch(ours, theirs):
    assert rates(ours, *range(200)) == pytest.approx(torch_rates(theirs, 0.3), rel=1e-12)


def one_cycle(anneal, rise, total):
    """Torch counts its last step, and the last of the rise, one earlier than we do."""
    return lambda optimizer: TORCH.OneCycleLR(
        optimizer,
        0.5,
        total_steps=total + 1,
        pct_start=(rise + 1) / (total + 1),
        anneal_strategy=anneal,
        cycle_momentum=False,
        div_factor=25,
        final_div_factor=1,
    )


def test_one_cycle_is_the_linear_rise_and_the_cosine_fall_of_torch():
    ours = rates(OneCycleLR(0.5, 199), *range(200))
    rise = 60
    linear = torch_rates(one_cycle("linear", rise, 199), 0.5, 199)
    cosine = torch_rates(one_cycle("cos", rise, 199), 0.5, 199)
    assert ours[: rise + 1] == pytest.approx(linear[: rise + 1], rel=1e-12)
    assert ours[rise:199] == pytest.approx(cosine[rise:], rel=1e-12)
    assert linear[rise + 20] != pytest.approx(ours[rise + 20], rel=1e-3)


def test_where_torch_waits_one_longer_a_plateau_equals_it_with_one_less():
    generator = torch.Generator().manual_seed(3)
    metrics = (1 + torch.randn(200, generator=generator).abs()).tolist()
    optimizer = sgd(0.3)
    theirs = TORCH.ReduceLROnPlateau(
        optimizer, factor=0.7, patience=3, threshold=0, min_lr=1e-3, eps=0
    )
    ours = PlateauScheduler(0.3, 4, 0.7, 1e-3)
    seen = []
    for metric in metrics:
        theirs.step(metric)
        assert ours.observe(metric) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        seen.append(ours.lr())
    assert len(set(seen)) > 5


def test_after_its_end_our_cosine_stays_where_torch_rises_again():
    ours = rates(CosineScheduler(0.3, 0.001, 50), 50, 60, 100)
    theirs = torch_rates(lambda o: TORCH.CosineAnnealingLR(o, 50, 0.001), 0.3)
    assert ours == exactly(0.001, 0.001, 0.001)
    assert theirs[60] > 0.02
    assert theirs[100] == pytest.approx(0.3)


# --- As a torch scheduler -----------------------------------------------------------------------


def drive(optimizer, scheduler, steps):
    seen = []
    for _ in range(steps):
        seen.append([float(group["lr"]) for group in optimizer.param_groups])
        assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
        scheduler.step()
    return seen


@each_row("schedule", ALL, ids=NAMES)
def test_as_a_torch_scheduler_a_schedule_gives_the_same_rates(schedule):
    optimizer = sgd(0.7)
    scheduler = as_torch_scheduler(optimizer, schedule)
    assert isinstance(scheduler, TORCH.LRScheduler)
    assert drive(optimizer, scheduler, 80) == [[rate] for rate in rates(schedule, *range(80))]


def test_groups_keep_their_ratio_to_the_first():
    schedule = OneCycleLR(0.1, 30)
    optimizer = sgd(1e-3, 1e-4, 2e-3)
    seen = drive(optimizer, as_torch_scheduler(optimizer, schedule), 40)
    for step, (first, second, third) in enumerate(seen):
        assert first == schedule.lr(step)
        assert (second, third) == pytest.approx((first / 10, first * 2))
    at_zero = sgd(0.0, 0.1)
    assert drive(at_zero, as_torch_scheduler(at_zero, schedule), 1) == [[schedule.lr(0)] * 2]


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    rate = torch.tensor(0.5)
    optimizer = sgd(rate)
    scheduler = as_torch_scheduler(optimizer, StepDecay(0.5, 2, 0.5))
    seen = drive(optimizer, scheduler, 5)
    assert optimizer.param_groups[0]["lr"] is rate
    assert seen == [[0.5], [0.5], [0.25], [0.25], [0.125]]


def stored(state):
    """A state as it comes back from a file that may hold nothing but plain data."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@each_row("schedule", ALL, ids=NAMES)
def test_a_torch_scheduler_continues_from_its_saved_state(schedule):
    first, second = sgd(0.7, 0.07), sgd(0.3, 0.3)
    before = as_torch_scheduler(first, copy.deepcopy(schedule))
    after = as_torch_scheduler(second, copy.deepcopy(schedule))
    drive(first, before, 33)
    second.load_state_dict(stored(first.state_dict()))
    after.load_state_dict(stored(before.state_dict()))
    assert drive(second, after, 30) == drive(first, before, 30)


def test_the_state_of_a_plateau_travels_with_its_torch_scheduler():
    optimizers = sgd(0.1), sgd(0.1)
    plateaus = [PlateauScheduler(0.1, 1, 0.5) for _ in optimizers]
    first, second = map(as_torch_scheduler, optimizers, plateaus)
    for _ in range(3):
        plateaus[0].observe(1.0)
        optimizers[0].step()
        first.step()
    assert first.get_last_lr() == [pytest.approx(0.025)]
    second.load_state_dict(stored(first.state_dict()))
    assert plateaus[1].state_dict() == plateaus[0].state_dict()


def test_torch_can_chain_a_schedule_with_its_own():
    optimizer = sgd(0.8)
    chained = TORCH.SequentialLR(
        optimizer,
        [
            TORCH.ConstantLR(optimizer, factor=0.25, total_iters=100),
            as_torch_scheduler(optimizer, CosineScheduler(0.8, 0.0, 10)),
        ],
        milestones=[3],
    )
    seen = [rate for (rate,) in drive(optimizer, chained, 13)]
    assert seen[:3] == exactly(0.2, 0.2, 0.2)
    assert seen[3:] == exactly(*rates(CosineScheduler(0.8, 0.0, 10), *range(10)))


# --- Properties ---------------------------------------------------------------------------------

lrs = st.floats(1e-6, 10)
lengths = st.integers(1, 5000)
steps = st.integers(0, 20_000)
SLACK = 1e-9


@given(lrs, lrs, lengths, steps)
def test_a_cosine_stays_within_its_ends_and_goes_one_way(start, end, length, step):
    schedule = CosineScheduler(start, end, length)
    now, then = rates(schedule, step, step + 1)
    low, high = sorted((start, end))
    assert low * (1 - SLACK) <= now <= high * (1 + SLACK)
    assert (then - now) * (end - start) >= -SLACK


@given(lrs, st.integers(2, 5000), st.floats(0, 0.9), steps)
def test_one_cycle_rises_then_falls_and_jumps_nowhere(high, length, share, step):
    if math.floor(share * length + 0.5) == length:
        return
    schedule = OneCycleLR(high, length, share)
    peak = math.floor(share * length + 0.5)
    now, then = rates(schedule, step, step + 1)
    assert high / 25 * (1 - SLACK) <= now <= high * (1 + SLACK)
    assert (then >= now) if step < peak else (then <= now * (1 + SLACK))
    steepest = high * max(1 / max(peak, 1), math.pi / 2 / (length - peak))
    assert abs(then - now) <= steepest * (1 + SLACK)
    assert schedule.lr(peak) == pytest.approx(high)


@given(lrs, st.integers(1, 300), lengths)
def test_a_warmup_is_continuous_where_it_hands_over(lr, warmup, length):
    schedule = WarmupScheduler(CosineScheduler(lr, 0, length), lr, warmup)
    rise = rates(schedule, *range(warmup))
    assert rise == sorted(rise)
    assert rise[0] > 0
    assert rise[-1] == pytest.approx(lr)
    assert schedule.lr(warmup) == pytest.approx(lr)


@given(lrs, lrs, st.integers(1, 500), st.integers(1, 500), steps)
def test_a_cyclic_rate_repeats_itself_within_its_bounds(low, high, up, down, step):
    schedule = CyclicLR.asymmetric(low, high, up, down)
    below, above = sorted((low, high))
    assert below * (1 - SLACK) <= schedule.lr(step) <= above * (1 + SLACK)
    assert schedule.lr(step + up + down) == schedule.lr(step)
    assert schedule.lr(up) == pytest.approx(high)


@given(lrs, st.integers(1, 100), st.floats(0.01, 0.999), steps)
def test_a_decay_never_rises_and_its_forms_agree(base, size, gamma, step):
    schedule = StepDecay(base, size, gamma)
    assert schedule.lr(step + 1) <= schedule.lr(step)
    milestones = MultiStepLR(base, range(size, 50 * size + 1, size), gamma)
    inside = step % (50 * size)
    assert milestones.lr(inside) == pytest.approx(schedule.lr(inside), rel=1e-9)
    assert StepDecay(base, 1, gamma).lr(step) == ExponentialLR(base, gamma).lr(step)


@given(st.lists(st.floats(allow_nan=True), max_size=60), st.integers(1, 5))
def test_a_plateau_only_falls_and_stays_above_its_minimum(metrics, patience):
    schedule = PlateauScheduler(1.0, patience, 0.5, 0.01)
    observed = [1.0] + [schedule.observe(metric) for metric in metrics]
    assert observed == sorted(observed, reverse=True)
    assert min(observed) >= 0.01
    assert len(set(observed)) - 1 <= len(metrics) // patience
