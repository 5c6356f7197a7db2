"""Random numbers of the Python side: repeatable, fair, and nobody else's business."""

from __future__ import annotations

import copy
import math
import pickle
import random

import numpy as np
import pytest
import torch

from flodl.rng import Rng
from tests import fork_server
from tests.rows import each_row


def draw(rng):
    items = list(range(20))
    rng.shuffle(items)
    return [
        rng.f64(),
        rng.f32(),
        rng.usize(1000),
        rng.range(-50, 50),
        rng.bernoulli(0.5),
        rng.normal(1, 2),
        items,
    ]


@pytest.mark.case("runtime", 71)
def test_a_seed_fixes_every_number():
    assert Rng.seed(42).f64() == 0.6394267984578837
    assert Rng.seed(42).normal(0, 1) == pytest.approx(1.4107277054, abs=1e-10)


@pytest.mark.case("runtime", 71)
def test_a_clone_continues_identically_and_on_its_own():
    original = Rng.seed(7)
    draw(original)
    clones = original.clone(), copy.copy(original.clone()), pickle.loads(pickle.dumps(original))
    expected = [draw(original) for _ in range(5)]
    for clone in clones:
        assert [draw(clone) for _ in range(5)] == expected


@pytest.mark.case("runtime", 71)
def test_drawing_from_nothing_is_refused():
    rng = Rng.seed(0)
    with pytest.raises(ValueError, match="n must be at least 1 to draw an index below it, got 0"):
        rng.usize(0)
    with pytest.raises(ValueError, match="from 5 to 5 is empty"):
        rng.range(5, 5)


def test_other_impossible_requests_are_refused():
    rng = Rng.seed(0)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="probability"):
            rng.bernoulli(p)
    for std in (-1.0, math.nan):
        with pytest.raises(ValueError, match="std"):
            rng.normal(0, std)
    for seed in (-1, 0.5, "x"):
        with pytest.raises(ValueError, match="seed must be an integer"):
            Rng.seed(seed)


def test_another_process_draws_the_same():
    program = "from flodl.rng import Rng; r = Rng.seed(9); print(r.f64(), r.usize(10**6), r.f32())"
    done = fork_server.python("-c", program, torch=True, abrupt=True)
    rng = Rng.seed(9)
    assert done.stdout.split() == [str(rng.f64()), str(rng.usize(10**6)), str(rng.f32())]


def test_it_shares_nothing_with_the_other_generators():
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = draw(Rng.seed(3))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    torch.manual_seed(2)
    random.seed(2)
    assert draw(Rng.seed(3)) == first


def test_seeds_and_entropy_give_different_streams():
    assert draw(Rng.seed(1)) != draw(Rng.seed(2))
    assert draw(Rng.from_entropy()) != draw(Rng.from_entropy())


def test_integers_are_fair_and_reach_both_ends():
    rng = Rng.seed(11)
    counts = [0] * 7
    for _ in range(7000):
        counts[rng.usize(7)] += 1
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 22.5  # χ², 6 degrees, 0.1 %
    assert {rng.range(-2, 2) for _ in range(200)} == {-2, -1, 0, 1}
    assert rng.usize(1) == 0
    assert rng.range(10**30, 10**30 + 1) == 10**30


def test_floats_are_uniform_and_below_one():
    rng = Rng.seed(12)
    for one in (rng.f64, rng.f32):
        values = sorted(one() for _ in range(10_000))
        assert 0 <= values[0] < 0.001
        assert 0.999 < values[-1] < 1
        assert max(abs(v - i / 10_000) for i, v in enumerate(values)) < 1.95 / 100
    assert all(np.float32(value) == value for value in (rng.f32() for _ in range(1000)))


def test_a_coin_has_its_bias():
    rng = Rng.seed(13)
    heads = sum(rng.bernoulli(0.3) for _ in range(10_000))
    assert heads == pytest.approx(3000, abs=4 * math.sqrt(2100))
    assert not any(rng.bernoulli(0) for _ in range(100))
    assert all(rng.bernoulli(1) for _ in range(100))


def test_normal_numbers_are_normal():
    rng = Rng.seed(14)
    values = sorted((rng.normal(5, 2) - 5) / 2 for _ in range(10_000))
    below = [0.5 * math.erfc(-value / math.sqrt(2)) for value in values]
    assert max(abs(p - i / 10_000) for i, p in enumerate(below)) < 1.95 / 100
    assert rng.normal(3, 0) == 3


def test_shuffling_keeps_the_items_and_every_order_comes_up():
    rng = Rng.seed(15)
    orders = {}
    for _ in range(6000):
        items = ["a", "b", "c"]
        rng.shuffle(items)
        orders["".join(items)] = orders.get("".join(items), 0) + 1
    assert set(orders) == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert sum((count - 1000) ** 2 / 1000 for count in orders.values()) < 20.5  # χ², 5 degrees


@each_row("rows", [torch.arange(8), np.eye(3), "text", (1, 2)])
def test_what_is_no_list_is_not_shuffled(rows):
    before = copy.deepcopy(rows)
    with pytest.raises(TypeError, match=f"not of a {type(rows).__name__}; .* a list of indices"):
        Rng.seed(0).shuffle(rows)
    assert np.array_equal(np.asarray(rows), np.asarray(before))
