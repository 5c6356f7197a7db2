"""Whether the policies learn as much as torch's DDP from equally many samples, by default."""

from __future__ import annotations

import pytest

from benchmarks import policy_accuracy
from benchmarks.policy_accuracy import DDP, OPTIMIZERS, POLICIES, TASKS, judge
from benchmarks.unequal_ranks import in_ranks


def test_a_policy_passes_that_is_not_worse_than_ddp_by_more_than_one_deviation() -> None:
    found = {
        f"digits/SGD/{DDP}": [0.90, 0.92, 0.94],
        "digits/SGD/cadence": [0.90, 0.90, 0.905],
        "digits/SGD/async": [0.89, 0.90, 0.90],
    }
    assert judge(found, "digits", "SGD", "cadence").passes
    assert not judge(found, "digits", "SGD", "async").passes


def test_every_rank_gets_equally_many_batches_from_ddp() -> None:
    for task in TASKS.values():
        assert len(task.train()[1]) % (policy_accuracy.RANKS * task.batch) == 0
        assert len(task.test()[0]) == len(task.test()[1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_with_default_settings_every_policy_is_as_accurate_as_ddp() -> None:
    ways = (DDP, *POLICIES)
    found = in_ranks(policy_accuracy.RANKS, policy_accuracy.results, tuple(TASKS), ways)
    missed = [
        (name, optimizer, policy, judge(found, name, optimizer, policy))
        for name in TASKS
        for optimizer in OPTIMIZERS
        for policy in POLICIES
        if not judge(found, name, optimizer, policy).passes
    ]
    assert not missed
