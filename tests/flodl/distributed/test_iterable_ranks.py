"""Data that can only be iterated, over several ranks: each batch belongs to one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from flodl import Callback, RunDirectory, Trainer
from flodl.ranks.group import Group
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, linear, plan_of, sgd, train


class Stream(IterableDataset[tuple[Tensor, Tensor, Tensor]]):
    """The samples of Numbers, one after the other."""

    def __init__(self, samples: int) -> None:
        self._numbers = Numbers(samples)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return (self._numbers[at] for at in range(len(self._numbers)))


def stream(
    group: Group, samples: int, batch_size: int = 8, builder: Any = None, **more: Any
) -> Outcome:
    calls = {"dataset": Stream(samples), "batch_size": batch_size, **(builder or {})}
    return train(group, policy=None, builder=calls, **more)


@pytest.mark.parametrize(
    ("samples", "accumulate"),
    [(64, 1), (72, 1), (77, 1), (136, 2), (8, 1)],
    ids=["even", "one batch more", "a part of a batch", "accumulated", "fewer than ranks"],
)
def test_two_ranks_train_each_sample_once_like_one_process_with_twice_the_batch(
    ranks: Ranks, samples: int, accumulate: int
) -> None:
    builder = {"accumulate": accumulate}
    outcomes = ranks(2, stream, samples, 8, builder)
    (alone,) = ranks(1, stream, samples, 16, builder)
    together = sorted(number for outcome in outcomes for number in outcome.samples)
    assert together == sorted(2 * list(range(samples)))  # two epochs
    assert all(map(torch.equal, outcomes[0].params, outcomes[1].params))
    assert all(map(torch.allclose, outcomes[0].params, alone.params))
    for mine, whole in zip(outcomes[0].metrics, alone.metrics, strict=True):
        assert mine.throughput > 0
        assert [one.samples for one in mine.per_rank] == [
            len(outcome.samples) // 2 for outcome in outcomes
        ]
        if samples % 16 == 0:
            assert mine.avg_loss == pytest.approx(whole.avg_loss, rel=1e-5)


def resumed(group: Group, folder: Path, epochs: int, source: Path | None) -> Outcome:
    builder: dict[str, Any] = {"resume": source}
    if group.leads:
        builder["run_dir"] = RunDirectory.create(folder, resume=source)
    return stream(group, 77, epochs=epochs, builder=builder, loss=noisy)


def noisy(net: Any, batch: Any, _rank: int, _step: int) -> Tensor:
    """A loss with random numbers, which a resumed training has to draw again."""
    inputs = batch[0] + 0.1 * torch.randn_like(batch[0])
    loss: Tensor = (net(inputs) - batch[1]).square().mean()
    return loss


def test_ranks_continue_at_the_end_of_an_epoch_to_the_same_bits(
    ranks: Ranks, tmp_path: Path
) -> None:
    straight = ranks(2, resumed, tmp_path / "straight", 3, None)
    ranks(2, resumed, tmp_path / "first", 1, None)
    (run,) = (tmp_path / "first").iterdir()
    second = ranks(2, resumed, tmp_path / "second", 3, run / "last.fdl")
    for one, other in zip(straight, second, strict=True):
        assert all(map(torch.equal, one.params, other.params))
    # One process goes on with the whole stream.
    (alone,) = ranks(1, resumed, tmp_path / "alone", 3, run / "last.fdl")
    assert sorted(alone.samples) == sorted(2 * list(range(77)))
    assert len(alone.metrics) == 3


class StopsEarly(Callback):
    """Stops the training after some steps of this rank."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step_end(self, run: Any) -> None:
        if run.global_step == self._steps:
            run.stop("enough")


def stopped(group: Group) -> Outcome:
    calls = () if group.leads else (StopsEarly(2),)
    return stream(group, 200, builder={"callbacks": calls[0]} if calls else {})


def test_a_callback_of_one_rank_stops_all_after_the_same_step(ranks: Ranks) -> None:
    outcomes = ranks(2, stopped)
    assert [len(outcome.batches) for outcome in outcomes] == [3, 3]
    assert outcomes[1].stopped == "enough"
    assert all(map(torch.equal, outcomes[0].params, outcomes[1].params))


def with_own_sampler(group: Group) -> Outcome:
    sampler: Any = DistributedSampler(
        Numbers(64), num_replicas=group.world_size, rank=group.rank, shuffle=False
    )
    loader = DataLoader(Numbers(64), batch_size=8, sampler=sampler)
    return train(group, policy=None, builder={"dataset": loader, "batch_size": 8})


def test_a_loader_that_gives_each_rank_its_part_is_taken_as_it_is(ranks: Ranks) -> None:
    outcomes = ranks(2, with_own_sampler)
    assert [sorted(set(outcome.samples)) for outcome in outcomes] == [
        list(range(0, 64, 2)),
        list(range(1, 64, 2)),
    ]


def refused(group: Group, settings: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match="can only be iterated") as problem:
        train(group, policy=None, builder={"dataset": Stream(64)}, settings=settings)
    return str(problem.value)


def test_what_needs_samples_with_numbers_says_so(ranks: Ranks) -> None:
    for settings in ({"policy": "cadence"}, {"policy": "async"}, {"partition_ratios": [0.7, 0.3]}):
        told = ranks(2, refused, settings)[0]
        assert f"{next(iter(settings))}" in told.split(" with ")[0]
        assert "use .policy('sync') without shares" in told


def with_a_bad_batch(group: Group) -> Outcome:
    def loss(net: Any, batch: Any, _rank: int, _step: int) -> Tensor:
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value * float("nan") if 20 in batch[2] else value

    return stream(group, 64, loss=loss)


def test_a_loss_that_is_not_finite_ends_all_ranks(ranks: Ranks) -> None:
    with pytest.raises(RankError, match="the loss of a rank is not finite"):
        ranks(2, with_a_bad_batch)


class Rates(Callback):
    """The learning rate after each step of a rank, with a scheduler of torch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_end(self, run: Any) -> None:
        self.seen.append(run.optimizer.param_groups[0]["lr"])


class EverySecond:
    """A loss scaler that leaves out every second step."""

    def __init__(self) -> None:
        self.calls = 0

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def step(self, optimizer: Any, **_: Any) -> bool:
        self.calls += 1
        if self.calls % 2:
            optimizer.step()
        return self.calls % 2 == 1

    def update(self) -> None:
        pass


def scheduled(group: Group) -> list[float]:
    rates = Rates()
    builder = Trainer.builder(linear, sgd, lambda net, batch: net(batch[0]).square().mean())
    builder.dataset(Stream(56)).batch_size(8).num_epochs(1).progress(False).callbacks(rates)
    builder.grad_scaler(EverySecond())
    builder.lr_scheduler(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "step")
    carry_out(plan_of(builder), group)
    return rates.seen


def test_a_step_that_a_scaler_left_out_counts_on_no_rank(ranks: Ranks) -> None:
    first, second = ranks(2, scheduled)  # the second rank has no batch in the fourth step
    assert first == second == [0.025, 0.025, 0.0125, 0.0125]
