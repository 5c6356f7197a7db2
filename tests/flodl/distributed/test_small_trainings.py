"""Trainings that end before the ranks know each other: any size works, down to one sample."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flodl import Callback
from flodl.ranks.group import Group
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Outcome, train
from tests.rows import sampled

POLICIES = ["auto", "cadence", "async", "sync"]


def small(group: Group, policy: str, n: int, epochs: int, rest: dict[str, Any]) -> Outcome:
    return train(group, n=n, batch_size=4, epochs=epochs, policy=policy, **rest)


def nothing_to_see(_model: Any) -> dict[str, float]:
    return {"nothing": 0.0}


WAYS: list[dict[str, Any]] = [
    {"settings": {"backend": "cpu"}},
    {"settings": {"progressive_dispatch": False}},
    {"settings": {"partition_ratios": (0.7, 0.3)}},
    {"settings": {"stream_epochs": False}, "builder": {"eval_fn": nothing_to_see}},
    {"builder": {"accumulate": 3}},
    {"builder": {"deterministic": True}},
]


def way(value: Any) -> str:
    """What a report calls a policy or a way of sharing."""
    if isinstance(value, str):
        return value
    return "-".join(name for part in value.values() for name in part)


def check(outcomes: list[Outcome], n: int, epochs: int) -> None:
    """Every sample was trained once per epoch, and all ranks end with one model."""
    seen = Counter(number for outcome in outcomes for number in outcome.samples)
    assert seen == dict.fromkeys(range(n), epochs)
    for outcome in outcomes:
        assert len(outcome.metrics) == epochs
        for mine, theirs in zip(outcome.params, outcomes[0].params, strict=True):
            assert mine.equal(theirs)
            assert mine.isfinite().all()


@pytest.mark.parametrize(("policy", "n"), sampled(POLICIES, [1, 2, 4, 5, 12, 40]))
def test_a_training_of_any_size_ends_well(ranks: Ranks, policy: str, n: int) -> None:
    check(ranks(2, small, policy, n, 1, {}), n, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_there_may_be_more_ranks_than_samples(ranks: Ranks, policy: str) -> None:
    check(ranks(3, small, policy, 2, 3, {}), 2, 3)


class Counts(Callback):
    """Counts the steps of a rank, in a hook."""

    def on_step_end(self, run: Any) -> None:
        run.log("steps", 1, reduce="sum")


def test_a_rank_without_any_batch_reports_values_of_steps(ranks: Ranks) -> None:
    outcomes = ranks(3, small, "sync", 2, 3, {"builder": {"callbacks": Counts()}})
    assert [one.scalars["steps"] for one in outcomes[0].metrics] == [3, 3, 3]


@pytest.mark.parametrize(("policy", "rest"), sampled(POLICIES, WAYS), ids=way)
def test_small_trainings_work_with_every_way_of_sharing(
    ranks: Ranks, policy: str, rest: dict[str, Any]
) -> None:
    for n, epochs in ((1, 2), (12, 2)):
        check(ranks(2, small, policy, n, epochs, rest), n, epochs)
