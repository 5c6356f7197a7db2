"""Positions of a loader: saved, restored, and never a batch twice or missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from flodl.data import DataLoader, Sampler
from flodl.data.order import order_digest
from flodl.errors import DataError
from tests.flodl.data.sources import Numbers, Recorded, Whole, orders
from tests.rows import each_row

MODES: list[dict[str, Any]] = [
    {},
    {"streaming": True},
    {"streaming": True, "prefetch": 0},
    {"streaming": True, "prefetch": 3},
]


def take(batches: Iterator[Any], count: int) -> list[list[int]]:
    return [next(batches)[0].tolist() for _ in range(count)]


@pytest.mark.case("runtime", 64)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_an_epoch_goes_on_behind_the_batches_that_were_delivered(mode: dict[str, Any]) -> None:
    whole = orders(DataLoader(Numbers(20), 3), 4)
    assert orders(DataLoader(Numbers(20), 3, **mode), 4, start_batch=2) == whole[2:]

    stopped = DataLoader(Numbers(20), 3, **mode)
    assert take(iter(stopped.epoch(4)), 2) == whole[:2]
    state = json.loads(json.dumps(stopped.state_dict()))
    assert state == {
        "seed": 42,
        "epoch": 4,
        "batch": 2,
        "n": 20,
        "batch_size": 3,
        "drop_last": True,
        "sampler": "random",
        "order": order_digest(stopped.order(4)),
    }

    data = Recorded(20)
    resumed = DataLoader(data, 3, **mode)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    data.read.clear()
    batches = resumed.epoch(4)
    assert len(batches) == len(whole) - 2
    assert [batch[0].tolist() for batch in batches] == whole[2:]
    if mode:  # a resident data set was read when the loader was made
        assert data.read == [index for batch in whole[2:] for index in batch]
    # The state is used once: asked again, the epoch is whole.
    assert orders(resumed, 4) == whole


def test_a_for_loop_goes_on_too() -> None:
    loader = DataLoader(Numbers(10), 2)
    assert [batch[0].tolist() for batch in loader] == orders(loader, 0)
    batches = iter(loader)
    assert take(batches, 3) == orders(DataLoader(Numbers(10), 2), 1)[:3]

    resumed = DataLoader(Numbers(10), 2)
    resumed.load_state_dict(loader.state_dict())
    assert [batch[0].tolist() for batch in resumed] == orders(loader, 1)[3:]
    assert [batch[0].tolist() for batch in resumed] == orders(loader, 2)


def test_behind_a_finished_epoch_comes_the_next() -> None:
    loader = DataLoader(Numbers(10), 2)
    orders(loader, 3)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (3, 5)

    resumed = DataLoader(Numbers(10), 2)
    resumed.load_state_dict(state)
    assert list(resumed.epoch(3)) == []
    resumed.load_state_dict(state)
    assert [batch[0].tolist() for batch in resumed] == orders(loader, 4)


def test_batches_read_ahead_do_not_count() -> None:
    loader = DataLoader(Numbers(10), 1, streaming=True, prefetch=5)
    take(iter(loader.epoch(0)), 2)
    assert loader.state_dict()["batch"] == 2


def test_the_seed_comes_back_with_the_state() -> None:
    saved = DataLoader(Numbers(10), 2, seed=7)
    saved.epoch(2)
    resumed = DataLoader(Numbers(10), 2, seed=8)
    resumed.load_state_dict(saved.state_dict())
    assert orders(resumed, 2) == orders(saved, 2)
    assert resumed.state_dict()["seed"] == 7


def test_a_sampler_of_ones_own_stays() -> None:
    class Odd(Sampler):
        def indices(self, epoch: int) -> list[int]:
            return [(i * 3 + epoch) % 10 for i in range(10)]

    saved = DataLoader(Numbers(10), 5, sampler=Odd())
    take(iter(saved.epoch(1)), 1)
    resumed = DataLoader(Numbers(10), 5, sampler=Odd())
    resumed.load_state_dict(saved.state_dict())
    assert orders(resumed, 1) == [[6, 9, 2, 5, 8]]


@each_row(
    ("change", "complaint"),
    [
        ({"n": 11}, "saved with n=11 and this loader has n=10"),
        ({"batch_size": 3}, "saved with batch_size=3 and this loader has batch_size=2"),
        ({"drop_last": False}, "saved with drop_last=False and this loader has drop_last=True"),
        ({"batch": 6}, "batch 6 of epoch 0; an epoch has 5 batches"),
        ({"epoch": -1}, "batch 0 of epoch -1"),
    ],
)
def test_a_state_of_another_loader_is_refused(change: dict[str, int], complaint: str) -> None:
    loader = DataLoader(Numbers(10), 2)
    with pytest.raises(DataError, match=complaint):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(DataError, match=r"lacks epoch, batch, n, batch_size, drop_last"):
        loader.load_state_dict({"seed": 1})


@st.composite
def courses(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """A loader's shape, and what a consumer does with it."""
    shape = {
        "n": draw(st.integers(1, 24)),
        "batch_size": draw(st.integers(1, 9)),
        "drop_last": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }
    step = st.tuples(
        st.sampled_from(["take", "break", "save and restore", "leave the epoch"]),
        st.integers(0, 6),
    )
    return shape, draw(st.lists(step, max_size=12))


def follow(shape: dict[str, Any], course: list[tuple[str, int]], modes: Iterator[Any]) -> None:
    """Walk through the epochs with every interruption, beside the uninterrupted order."""

    def make(seed: int) -> DataLoader:
        return DataLoader(
            Whole(shape["n"]),
            shape["batch_size"],
            drop_last=shape["drop_last"],
            seed=seed,
            **next(modes),
        )

    straight = make(shape["seed"])
    loader, epoch, done = make(shape["seed"]), 0, 0
    batches = loader.epoch(epoch)
    for action, number in course:
        if action == "take":
            expected = orders(straight, epoch)[done : done + number]
            assert [batch[0].tolist() for batch in islice(batches, number)] == expected
            done += len(expected)
        elif action == "break":
            batches = loader.epoch(epoch, done)
        elif action == "leave the epoch":
            epoch, done = epoch + 1, 0
            batches = loader.epoch(epoch)
        else:
            state = loader.state_dict()
            assert (state["epoch"], state["batch"]) == (epoch, done)
            loader.close()
            loader = make(shape["seed"] + number)
            loader.load_state_dict(state)
            batches = loader.epoch(epoch)
        assert len(batches) == len(straight) - done
    assert [batch[0].tolist() for batch in batches] == orders(straight, epoch)[done:]


@pytest.mark.filterwarnings("ignore:batch_size=.* is larger than the data set")
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(course=courses(), modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=4))
def test_no_interruption_changes_the_order(
    course: tuple[dict[str, Any], list[tuple[str, int]]], modes: list[dict[str, Any]]
) -> None:
    follow(*course, cycle(modes))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:batch_size=.* is larger than the data set")
@settings(max_examples=3000, suppress_health_check=[HealthCheck.too_slow])
@given(course=courses(), modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=4))
def test_no_interruption_changes_the_order_in_many_courses(
    course: tuple[dict[str, Any], list[tuple[str, int]]], modes: list[dict[str, Any]]
) -> None:
    follow(*course, cycle(modes))
