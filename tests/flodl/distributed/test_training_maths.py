"""What many ranks compute together: the same as one, or an average of what each did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Batch, DataLoader, MultiStepLR
from flodl.errors import DivergedError
from flodl.ranks.averaging.outer_optimizer import Nesterov
from flodl.ranks.group import Group
from flodl.ranks.settings import DdpRunConfig
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, train
from tests.rows import sampled


def network(_: torch.device) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


PRECISE = ((torch.float32, 1e-5), (torch.float64, 1e-10))
"""How far apart the weights may be."""


@pytest.mark.case("distributed", 18)
@pytest.mark.parametrize(
    ("backend", "precise", "optimizer"), sampled(("nccl", "cpu"), PRECISE, (momentum, adam))
)
def test_sync_on_two_ranks_equals_one_process_with_the_double_batch(
    ranks: Ranks, optimizer: Any, precise: tuple[torch.dtype, float], backend: str
) -> None:
    dtype, bound = precise
    outcomes = ranks(2, train_in_step, optimizer, dtype, backend)
    torch.manual_seed(42)
    model = network(torch.device("cpu")).to(dtype)
    alone = optimizer(model.parameters())
    loader = DataLoader(Numbers(3200, dtype), 64)
    for epoch in range(4):
        for batch in loader.epoch(epoch):
            alone.zero_grad()
            (model(batch[0]) - batch[1]).square().mean().backward()
            alone.step()
    for outcome in outcomes:
        assert len(outcome.batches) == 200
        for mine, theirs in zip(outcome.params, model.parameters(), strict=True):
            assert (mine - theirs).abs().max() <= bound * theirs.abs().max().clamp(min=1)
    assert outcomes[0].moments
    for mine, theirs in zip(outcomes[0].moments, outcomes[1].moments, strict=True):
        assert torch.equal(mine, theirs)


def train_in_step(group: Group, optimizer: Any, dtype: torch.dtype, backend: str) -> Outcome:
    return train(
        group,
        n=3200,
        batch_size=32,
        epochs=4,
        policy="sync",
        model=network,
        optimizer=optimizer,
        dtype=dtype,
        settings={"backend": backend},
    )


def test_sync_with_accumulation_takes_one_step_for_several_batches_of_each_rank(
    ranks: Ranks,
) -> None:
    outcomes = ranks(2, train_accumulating)
    torch.manual_seed(42)
    model = network(torch.device("cpu")).to(torch.float64)
    alone = momentum(model.parameters())
    loader = DataLoader(Numbers(256, torch.float64), 32)
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            alone.zero_grad()
            (model(batch[0]) - batch[1]).square().mean().backward()
            alone.step()
    for mine, theirs in zip(outcomes[1].params, model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-10)


def train_accumulating(group: Group) -> Outcome:
    return train(
        group,
        n=256,
        batch_size=8,
        policy="sync",
        model=network,
        optimizer=momentum,
        dtype=torch.float64,
        builder={"accumulate": 2},
    )


@pytest.mark.case("distributed", 20)
@pytest.mark.parametrize("backend", ["nccl", "cpu"])
def test_async_keeps_what_was_learned_while_an_average_was_under_way(
    ranks: Ranks, backend: str
) -> None:
    for outcome in ranks(2, train_on_a_slope, backend):
        assert len(outcome.batches) == 100
        moved = outcome.params[0] - start_of_the_slope()
        # 100 steps of lr 0.05 against a gradient of 2, on every rank.
        assert torch.allclose(moved, torch.full_like(moved, -100 * 0.05 * 2), atol=1e-5, rtol=1e-6)


def start_of_the_slope() -> Tensor:
    torch.manual_seed(42)
    return nn.Linear(3, 1).weight.detach().clone()


def train_on_a_slope(group: Group, backend: str) -> Outcome:
    def loss(net: Any, *_: object) -> Tensor:
        slope: Tensor = 2.0 * net.weight.sum() + 0.0 * net.bias.sum()
        return slope

    return train(
        group,
        n=1600,
        epochs=1,
        policy="async",
        ms=(2.0, 2.0),
        loss=loss,
        settings={"backend": backend},
        # Where timings are declared, both ranks get the same number of batches.
        builder={"deterministic": True},
    )


@pytest.mark.case("distributed", 21)
@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_a_rank_whose_parameters_are_not_finite_takes_the_average_of_the_others(
    ranks: Ranks, policy: str
) -> None:
    outcomes = ranks(3, train_with_a_broken_rank, policy, (1,))
    for outcome in outcomes:
        assert all(tensor.isfinite().all() for tensor in outcome.params)
        assert torch.equal(outcome.params[0], outcomes[0].params[0])
    assert outcomes[0].metrics[-1].avg_loss < 0.5


@pytest.mark.case("distributed", 21)
@pytest.mark.parametrize("policy", ["cadence", "async", "sync"])
def test_without_a_rank_that_is_finite_training_has_diverged(ranks: Ranks, policy: str) -> None:
    for told in ranks(2, train_until_diverged, policy, (0, 1)):
        assert "finite" in told
        assert "Lower the learning rate" in told


def train_with_a_broken_rank(
    group: Group, policy: str, broken: tuple[int, ...], until: int = 7
) -> Outcome:
    def loss(net: nn.Module, batch: Batch, rank: int, step: int) -> Tensor:
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value * float("nan") if rank in broken and 7 <= step <= until else value

    return train(group, n=1200, policy=policy, ms=(2.0,) * group.world_size, loss=loss)


def train_until_diverged(group: Group, policy: str, broken: tuple[int, ...]) -> str:
    # On a busy machine one rank may reach step 7 a window before the other, which would mend
    # it with its own parameters: a training that diverges stays so.
    with pytest.raises(DivergedError) as caught:
        train_with_a_broken_rank(group, policy, broken, until=1200)
    return str(caught.value)


@pytest.mark.case("distributed", 23)
@pytest.mark.parametrize("averaged", [False, True])
def test_moments_of_adam_are_equal_on_all_ranks_only_where_they_are_averaged(
    ranks: Ranks, averaged: bool
) -> None:
    one, two = ranks(2, train_with_adam, averaged)
    same = [
        torch.equal(mine, theirs) for mine, theirs in zip(one.moments, two.moments, strict=True)
    ]
    assert all(same) if averaged else not any(same[1:3])


def train_with_adam(group: Group, averaged: bool) -> Outcome:
    return train(group, optimizer=adam, settings={"average_optimizer_state": averaged})


@pytest.mark.case("distributed", 24)
def test_an_outer_step_of_one_without_momentum_is_plain_averaging(ranks: Ranks) -> None:
    plain = ranks(2, train_with_outer, None)[0]
    outer = ranks(2, train_with_outer, Nesterov(1.0, 0.0))[0]
    nesterov = ranks(2, train_with_outer, Nesterov(0.7, 0.9))[0]
    assert torch.allclose(plain.params[0], outer.params[0], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(plain.params[0], nesterov.params[0], rtol=1e-3, atol=1e-3)


def train_with_outer(group: Group, outer: Nesterov | None) -> Outcome:
    exact = {"outer_optimizer": outer, "deterministic": True}
    return train(group, settings={"anchor": 3, "max_anchor": 3}, builder=exact)


@pytest.mark.case("distributed", 52)
def test_the_learning_rate_is_scaled_by_the_number_of_ranks_or_by_what_they_bring() -> None:
    assert DdpRunConfig().lr_scale((10, 10)) == 1.0
    assert DdpRunConfig(lr_world="effective").lr_scale((25, 10)) == 1.0
    assert DdpRunConfig(lr_scale_ratio=1.0).lr_scale((10, 10)) == 2.0
    assert DdpRunConfig(lr_scale_ratio=0.5).lr_scale((10, 10)) == 1.5
    assert DdpRunConfig(lr_scale_ratio=0.25).lr_scale((10,) * 4) == 1.75
    effective = DdpRunConfig(lr_scale_ratio=1.0, lr_world="effective")
    assert effective.lr_scale((25, 10)) == pytest.approx(1.690, abs=5e-4)
    assert effective.lr_scale((40, 25, 10)) == pytest.approx(2.419, abs=5e-4)


@pytest.mark.case("distributed", 52)
@pytest.mark.parametrize(
    "policy", ["cadence", pytest.param("async", marks=pytest.mark.slow), "sync"]
)
def test_a_rate_drops_when_all_ranks_together_have_consumed_so_many_batches(
    ranks: Ranks, policy: str
) -> None:
    dropped = {}
    for world_size in (1, 2, 3):
        outcomes = ranks(world_size, train_with_a_drop, policy)
        rates = {rate for outcome in outcomes for rate in outcome.rates}
        # The rate is set within a step: the loss sees that of the step before.
        assert {round(rate, 9) for rate in rates} == {0.05, 0.1, 0.01}
        dropped[world_size] = sum(rate > 0.06 for outcome in outcomes for rate in outcome.rates)
    window = 3 * 4
    assert all(abs(batches - 60) <= window for batches in dropped.values()), dropped


def train_with_a_drop(group: Group, policy: str) -> Outcome:
    return train(
        group,
        n=800,
        epochs=1,
        policy=policy,
        ms=(2.0,) * group.world_size,
        settings={"anchor": 4, "max_anchor": 4},
        builder={"scheduler": lambda _: MultiStepLR(0.1, [60], 0.1)},
    )


def test_without_a_schedule_the_rate_of_the_optimizer_is_scaled_once(ranks: Ranks) -> None:
    for outcome in ranks(2, train_scaled):
        assert set(outcome.rates) == {0.05 * 2.0}


def train_scaled(group: Group) -> Outcome:
    return train(group, settings={"lr_scale_ratio": 1.0})


@pytest.mark.parametrize(
    ("policy", "scheduled"), sampled(("sync", "cadence", "async", "auto"), (False, True))
)
def test_by_default_ranks_use_the_learning_rate_of_one_process(
    ranks: Ranks, policy: str, scheduled: bool
) -> None:
    (alone,) = ranks(1, train_by_default, policy, scheduled)
    for outcome in ranks(2, train_by_default, policy, scheduled):
        assert set(outcome.rates) == set(alone.rates) == {0.05}


def train_by_default(group: Group, policy: str, scheduled: bool) -> Outcome:
    builder = {"scheduler": lambda _: MultiStepLR(0.05, [10_000], 0.1)} if scheduled else None
    return train(group, policy=policy, builder=builder)


def test_gradients_are_clipped_by_the_norm_of_their_mean(ranks: Ranks) -> None:
    one, two = ranks(2, train_clipped)
    assert torch.equal(one.params[0], two.params[0])
    # One step of lr 0.05 along a gradient of norm 1.
    moved = torch.cat([(p - q).flatten() for p, q in zip(one.params, first_linear(), strict=True)])
    assert float(moved.norm()) == pytest.approx(0.05, rel=1e-4)


def first_linear() -> list[Tensor]:
    torch.manual_seed(42)
    return [p.detach().clone() for p in nn.Linear(3, 1).parameters()]


def train_clipped(group: Group) -> Outcome:
    return train(group, n=16, epochs=1, policy="sync", builder={"max_grad_norm": 1.0})


def test_a_rank_that_was_not_finite_goes_on_with_an_optimizer_that_is(ranks: Ranks) -> None:
    for outcome in ranks(2, train_adam_with_a_broken_rank):
        assert all(moment.isfinite().all() for moment in outcome.moments)
        assert all(tensor.isfinite().all() for tensor in outcome.params)
    assert outcome.metrics[-1].avg_loss < 4


def train_adam_with_a_broken_rank(group: Group) -> Outcome:
    def loss(net: nn.Module, batch: Batch, rank: int, step: int) -> Tensor:
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value * float("nan") if rank == 1 and step == 7 else value

    return train(group, n=1200, optimizer=adam, ms=(2.0, 2.0), loss=loss)


@pytest.mark.case("distributed", 52)
def test_a_rate_can_follow_what_the_ranks_bring_together(ranks: Ranks) -> None:
    for outcome in ranks(2, train_by_effective_world):
        assert outcome.rates[0] == pytest.approx(0.05 * 2)
        assert outcome.rates[-1] == pytest.approx(0.05 * 1.690, rel=0.01)


def train_by_effective_world(group: Group) -> Outcome:
    return train(
        group,
        n=1400,
        epochs=1,
        ms=(4.0, 10.0),
        settings={"lr_scale_ratio": 1.0, "lr_world": "effective"},
        builder={"deterministic": True},
    )


def test_schedules_count_optimizer_steps_in_ranks_as_well(ranks: Ranks) -> None:
    for outcome in ranks(2, train_accumulating_with_a_drop):
        # 100 batches of all ranks are 50 steps; the rate drops at the 25th.
        assert outcome.rates[len(outcome.rates) // 2 - 6] == pytest.approx(0.1)
        assert outcome.rates[-1] == pytest.approx(0.01)


def train_accumulating_with_a_drop(group: Group) -> Outcome:
    return train(
        group,
        n=800,
        epochs=1,
        policy="sync",
        builder={"accumulate": 2, "scheduler": lambda _: MultiStepLR(0.1, [25], 0.1)},
    )
