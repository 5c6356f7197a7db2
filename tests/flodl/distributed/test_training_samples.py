"""Which rank trains which samples: all of them, once per epoch, whatever the ranks' speeds."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from flodl import Batch, DataLoader, RunDirectory, Trainer
from flodl.errors import DistributedError, PlanMismatchError
from flodl.ranks.group import Group, LocalGroup
from flodl.ranks.planning.scheduler import WARM_UP_ROOM
from flodl.train.run.verify import verify_run
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, linear, sgd, train
from tests.waiting import at_some_pace

FAST = (2.5, 4.0, 10.0)


def numbered(outcomes: list[Outcome], **loader: Any) -> Counter[tuple[int, int]]:
    """How often each batch was trained, as (epoch, number), by what was in it."""
    loader = {"drop_last": False, "join_remainder": True, **loader}
    epochs = 6
    n = loader.pop("n")
    known = DataLoader(Numbers(n), **loader)
    places = {
        tuple(known.rows(epoch, number).tolist()): (epoch, number)
        for epoch in range(epochs)
        for number in range(known.num_batches)
    }
    trained = [tuple(rows) for outcome in outcomes for _, rows in outcome.batches]
    return Counter(places[rows] for rows in trained)


@pytest.mark.case("distributed", 26)
@pytest.mark.parametrize("drop_last", [False, True])
def test_cadence_trains_each_sample_once_per_epoch_on_three_unequal_ranks(
    ranks: Ranks, drop_last: bool
) -> None:
    outcomes = ranks(3, train_1003, "cadence", drop_last)
    found = numbered(outcomes, n=1003, batch_size=16, drop_last=drop_last)
    batches = 62 if drop_last else 63
    assert found == Counter({(epoch, number): 1 for epoch in range(5) for number in range(batches)})
    samples = Counter(number for outcome in outcomes for number in outcome.samples)
    if drop_last:
        assert sum(samples.values()) == 5 * 992
    else:
        assert set(samples.values()) == {5}
        assert len(samples) == 1003


def train_1003(group: Group, policy: str, drop_last: bool = False) -> Outcome:
    return train(
        group,
        n=1003,
        batch_size=16,
        epochs=5,
        policy=policy,
        ms=FAST[-group.world_size :],
        loader={"drop_last": drop_last},
    )


@pytest.mark.case("distributed", 27)
def test_async_trains_each_sample_once_when_a_rank_becomes_slow_within_an_epoch(
    ranks: Ranks,
) -> None:
    outcomes = ranks(3, train_with_slow_down)
    found = numbered(outcomes, n=1003, batch_size=16)
    assert found == Counter({(epoch, number): 1 for epoch in range(3) for number in range(63)})
    assert outcomes[0].averages > 3


def train_with_slow_down(group: Group) -> Outcome:
    def loss(net: torch.nn.Module, batch: Batch, rank: int, step: int) -> torch.Tensor:
        slow = 0.030 if rank == 2 and step >= 6 else FAST[rank] / 1000
        time.sleep(slow)
        return (net(batch[0]) - batch[1]).square().mean()

    return train(group, n=1003, batch_size=16, epochs=3, policy="async", loss=loss)


@pytest.mark.case("distributed", 28)
def test_the_order_of_an_epoch_is_the_same_for_any_number_of_ranks(ranks: Ranks) -> None:
    alone: list[int] = []
    loader = DataLoader(Numbers(90), 10, seed=7, drop_last=False, join_remainder=True)
    for batch in loader.epoch(3):
        alone += batch[2].tolist()
    for world_size in (2, 3, 5):
        outcomes = ranks(world_size, train_seed_7)
        places = {tuple(loader.rows(3, number).tolist()): number for number in range(9)}
        found = {
            places[tuple(rows)]: rows
            for outcome in outcomes
            for _, rows in outcome.batches
            if tuple(rows) in places
        }
        assert [number for at in range(9) for number in found[at]] == alone
    local = train_seed_7(LocalGroup())
    assert local.samples[270:360] == alone


def train_seed_7(group: Group) -> Outcome:
    return train(group, n=90, batch_size=10, epochs=4, builder={"seed": 7})


@pytest.mark.case("distributed", 29)
@pytest.mark.parametrize("policy", ["cadence", "async", "sync"])
def test_more_ranks_than_batches_do_not_hang(ranks: Ranks, policy: str) -> None:
    outcomes = ranks(3, train_two_batches, policy)
    found = numbered(outcomes, n=32, batch_size=16)
    assert found == Counter({(epoch, number): 1 for epoch in range(2) for number in range(2)})
    assert [outcome.epochs_begun for outcome in outcomes] == [[0, 1]] * 3
    assert all(torch.equal(outcomes[0].params[0], one.params[0]) for one in outcomes)


def train_two_batches(group: Group, policy: str) -> Outcome:
    return train(group, n=32, batch_size=16, policy=policy)


@pytest.mark.case("distributed", 30)
@pytest.mark.parametrize("policy", ["cadence", "async", "sync"])
def test_partition_ratios_fix_the_shares(ranks: Ranks, policy: str) -> None:
    outcomes = ranks(2, train_with_ratios, policy)
    assert [len(outcome.samples) for outcome in outcomes] == [700, 300]
    together = [number for outcome in outcomes for number in outcome.samples]
    assert sorted(together) == list(range(1000))


def train_with_ratios(group: Group, policy: str) -> Outcome:
    ratios = {"partition_ratios": (0.7, 0.3)}
    return train(group, n=1000, batch_size=10, epochs=1, policy=policy, settings=ratios)


@pytest.mark.case("distributed", 14)
def test_a_hint_gives_the_shares_before_anything_was_measured(ranks: Ranks) -> None:
    for hint in ((1, 2.5), (1, 0.4)):
        outcomes = ranks(2, train_with_hint, hint)
        assert [len(outcome.samples) for outcome in outcomes] == [2500, 1000]


def train_with_hint(group: Group, hint: tuple[int, float]) -> Outcome:
    fixed = {"speed_hint": hint, "progressive_dispatch": False}
    return train(group, n=3500, batch_size=10, epochs=1, settings=fixed)


@pytest.mark.case("distributed", 31)
def test_a_rank_that_plans_differently_stops_everyone_within_a_window(ranks: Ranks) -> None:
    for message, batches in ranks(2, train_with_a_tampered_plan):
        assert "rank 1 has planned window 0 differently from rank 0" in message
        # In the first window a rank trains its three batches and on, until the slowest has done so.
        assert batches <= 3 * WARM_UP_ROOM


def train_with_a_tampered_plan(group: Group) -> tuple[str, int]:
    from flodl.train.policies import windows

    genuine = windows.open_window

    def tampered(state: Any, config: Any) -> Any:
        from dataclasses import replace

        state, plan = genuine(state, config)
        return replace(state, position=state.position + 1), plan

    trained = []
    if group.rank == 1:
        windows.open_window = tampered  # type: ignore[assignment]
    try:
        train(group, loss=lambda net, batch, *_: trained.append(1) or net(batch[0]).mean())
    except PlanMismatchError as error:
        return str(error), len(trained)
    finally:
        windows.open_window = genuine
    return "", len(trained)


@pytest.mark.case("distributed", 49)
@pytest.mark.parametrize(
    "policy", ["cadence", pytest.param("async", marks=pytest.mark.slow), "sync"]
)
def test_what_two_ranks_left_of_an_epoch_is_trained_by_one(
    ranks: Ranks, policy: str, tmp_path: Path
) -> None:
    def broken_off(factor: float) -> bool:
        # Whoever fails second loses a peer that, here, does not end.
        root = tmp_path / f"{factor:g}"
        ranks(2, train_and_break_off, policy, root, sync_timeout=3.0 * factor)
        runs.extend(root.iterdir())
        return bool(verify_run(runs[-1]).unfinished_epochs)

    runs: list[Path] = []
    at_some_pace(broken_off)
    with RunDirectory.create(tmp_path, resume=runs[-1]) as run:
        trained = (
            Trainer.builder(linear, sgd, lambda net, batch: net(batch[0]).square().mean())
            .dataset(Numbers(1003))
            .batch_size(16)
            .num_epochs(3)
            .ddp({"policy": policy, "ranks": 1})
            .run_dir(run)
            .run()
        )
    after = verify_run(run.path)
    assert after.proven, after
    assert [metrics.epoch for metrics in trained.poll_metrics()] == [0, 1, 2]
    assert trained.world_size == 1


def train_and_break_off(group: Group, policy: str, root: Path) -> None:
    """Train until a checkpoint was written within the second epoch; then fail."""
    settings: dict[str, Any] = {"checkpoint_steps": 20, "deterministic": True}
    if group.leads:
        settings["run_dir"] = RunDirectory.create(root)

    def loss(net: torch.nn.Module, batch: Batch, _: int, step: int) -> torch.Tensor:
        if step > 50:
            raise RuntimeError("enough")
        return net(batch[0]).square().mean()

    # Whoever has not come so far loses its peer instead.
    with pytest.raises((RuntimeError, DistributedError)):
        train(
            group,
            n=1003,
            batch_size=16,
            epochs=3,
            policy=policy,
            ms=(2.0, 2.0),
            loss=loss,
            settings={"anchor": 5, "max_anchor": 5},
            builder=settings,
        )


@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_what_one_process_left_of_a_training_is_trained_by_two(
    ranks: Ranks, policy: str, tmp_path: Path
) -> None:
    with RunDirectory.create(tmp_path) as run, pytest.raises(RuntimeError, match="enough"):
        train_alone_and_break_off(run)
    two = ranks(2, train_on, policy, tmp_path, run.path)
    (first, second) = sorted(tmp_path.iterdir())
    found = verify_run(second)
    assert found.proven, found
    assert "were trained by one process" in " ".join(found.notes)
    trained = [number for outcome in two for number in outcome.samples]
    # An epoch has 26 batches, and the newest checkpoint is of step 32.
    assert len(trained) == 3 * 203 - (203 + 6 * 8)
    assert first == run.path


def train_alone_and_break_off(run: RunDirectory) -> None:
    steps = []

    def loss(net: torch.nn.Module, batch: Batch) -> torch.Tensor:
        steps.append(1)
        if len(steps) > 34:
            raise RuntimeError("enough")
        return net(batch[0]).square().mean()

    (
        Trainer.builder(linear, sgd, loss)
        .dataset(Numbers(203))
        .batch_size(8)
        .num_epochs(3)
        .engine("eager")
        .checkpoint_steps(16)
        .ranks(1)
        .run_dir(run)
        .run()
    )


def train_on(group: Group, policy: str, root: Path, source: Path) -> Outcome:
    builder: dict[str, Any] = {}
    if group.leads:
        builder["run_dir"] = RunDirectory.create(root, resume=source)
    return train(group, n=203, epochs=3, policy=policy, builder=builder)


def test_shared_samples_of_a_queue_with_holes_are_trained_once(ranks: Ranks) -> None:
    outcomes = ranks(2, train_a_queue_with_holes)
    together = sorted(number for outcome in outcomes for number in outcome.samples)
    assert together == sorted(outcomes[0].expected)


def train_a_queue_with_holes(group: Group) -> Any:
    from flodl.train import loop

    genuine = loop.feed_of
    queue = ((5, 8), (11, 25))

    def with_holes(*given: Any) -> Any:
        from dataclasses import replace

        feed = genuine(*given)
        feed.schedule = replace(feed.schedule, queue=queue, next_epoch=1, own=((), ()))
        return feed

    loop.feed_of = with_holes
    try:
        ratios = {"partition_ratios": (0.7, 0.3)}
        outcome: Any = train(group, epochs=1, policy="sync", settings=ratios)
    finally:
        loop.feed_of = genuine
    loader = DataLoader(Numbers(200), 8)
    numbers = [*range(5, 8), *range(11, 25)]
    outcome.expected = [row for number in numbers for row in loader.rows(0, number).tolist()]
    return outcome
