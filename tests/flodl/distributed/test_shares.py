"""Which part of a batch each rank computes."""

from __future__ import annotations

import pytest

from flodl.train.plain_loop.joined_rows import FLOOR, Shares, divide, proportional


def test_a_batch_is_divided_by_ratios_to_the_last_sample() -> None:
    assert divide(70, (5 / 7, 2 / 7)) == (50, 20)
    assert divide(10, (1 / 3, 1 / 3, 1 / 3)) == (4, 3, 3)
    for samples in range(200):
        assert sum(divide(samples, (0.61, 0.3, 0.09))) == samples


def test_a_rank_gets_nothing_only_where_there_are_fewer_samples_than_ranks() -> None:
    assert divide(4, (0.95, 0.05)) == (3, 1)
    assert divide(2, (0.5, 0.3, 0.2)) == (1, 1, 0)
    assert divide(1, (0.2, 0.8)) == (0, 1)


def test_parts_follow_the_speed_and_never_fall_below_the_floor() -> None:
    assert proportional((2.5, 1.0)) == pytest.approx((2.5 / 3.5, 1 / 3.5))
    slow = proportional((1000.0, 1.0, 999.0))
    assert slow[1] == FLOOR
    assert sum(slow) == pytest.approx(1)
    assert slow[0] / slow[2] == pytest.approx(1000 / 999)
    assert proportional((1.0,) * 40) == pytest.approx((1 / 40,) * 40)


def test_parts_are_equal_for_ten_steps_and_looked_at_every_fifty() -> None:
    shares = Shares(2)
    changes = []
    for step in range(1, 151):
        before = shares.ratios
        # The second rank becomes slower all the time.
        shares.learn((50, 20), (50.0, 50.0 + step))
        if shares.ratios != before:
            changes.append(step)
    assert changes == [10, 50, 100, 150]


def test_the_speed_is_a_mean_in_which_the_latest_step_weighs_three_tenths() -> None:
    shares = Shares(2)
    shares.learn((10, 10), (5.0, 10.0))
    assert shares.throughput == (2.0, 1.0)
    shares.learn((10, 10), (10.0, 0.0))
    assert shares.throughput == pytest.approx((0.3 * 1.0 + 0.7 * 2.0, 1.0))


def test_parts_that_shall_not_move_stay_equal() -> None:
    shares = Shares(2, balanced=False)
    for _ in range(60):
        shares.learn((50, 20), (10.0, 10.0))
    assert shares.ratios == (0.5, 0.5)
    assert shares.throughput == pytest.approx((5.0, 2.0))
