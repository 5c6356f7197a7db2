"""Metrics of an epoch are the same on one process and on many ranks, however they are reduced."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from flodl import Callback, record_scalar
from flodl.ranks.group import Group
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Outcome, train

SAMPLES = 100
"""Thirteen batches; the last one has four samples."""


class Counts(Callback):
    """Counts the steps of a process, in a hook."""

    def on_step_end(self, run: Any) -> None:
        run.log("steps", 1, reduce="sum")


def recording(group: Group, policy: str) -> Outcome:
    def loss(net: Any, batch: Any, _rank: int, _step: int) -> Tensor:
        numbers = batch[2]
        record_scalar("samples", len(numbers), reduce="sum")
        record_scalar("highest", numbers.max(), reduce="max")
        record_scalar("lowest", float(numbers.min()), reduce="min")
        record_scalar("epochs", float(len(seen)), reduce="last")
        record_scalar("first", float(numbers[0]))
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value

    seen: list[None] = []
    builder = {"callbacks": Counts(), "metrics_fn": lambda _: seen.append(None), "deterministic": 1}
    return train(group, n=SAMPLES, policy=policy, loss=loss, builder=builder, epochs=3)


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_metrics_of_ranks_are_those_of_one_process(ranks: Ranks, policy: str) -> None:
    (alone,) = ranks(1, recording, policy)
    together = ranks(2, recording, policy)[0]
    for one, both in zip(alone.metrics, together.metrics, strict=True):
        for name in ("samples", "highest", "lowest"):
            assert both.scalars[name] == one.scalars[name], name
        assert both.scalars["first"] == pytest.approx(one.scalars["first"])
        assert one.scalars["samples"] == SAMPLES
        assert (one.scalars["lowest"], one.scalars["highest"]) == (0, SAMPLES - 1)
        assert one.scalars["steps"] == 13
        # Ranks of policy sync take one step together; the others count their own.
        assert both.scalars["steps"] == (14 if policy == "sync" else 13)
    assert [one.scalars["epochs"] for one in alone.metrics] == [0, 1, 2]


def two_ways(group: Group) -> None:
    def loss(net: Any, batch: Any, _rank: int, step: int) -> Tensor:
        record_scalar("tokens", 1.0, reduce="sum" if step else "max")
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value

    train(group, policy="sync", loss=loss)


def unknown_way(group: Group) -> None:
    def loss(net: Any, batch: Any, _rank: int, _step: int) -> Tensor:
        record_scalar("tokens", 1.0, reduce="median")  # type: ignore[arg-type]
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value

    train(group, policy="sync", loss=loss)


def test_two_reductions_of_one_metric_and_unknown_ones_are_refused(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"reduce='sum'\): this epoch has values of 'tokens' with"):
        ranks(1, two_ways)
    with pytest.raises(RankError, match=r"reduce='median'\): use one of 'mean', 'sum', 'max'"):
        ranks(1, unknown_way)
