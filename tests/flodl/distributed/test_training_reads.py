"""Which rank reads which samples: what it trains, once, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Batch, Trainer
from flodl.ranks.group import Group
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import linear, plan_of, sgd

SAMPLES, EPOCHS = 203, 3


class Drawing:
    """Samples with a random transform; remembers what was read and drawn."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.drawn: list[float] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        value = torch.rand(3)
        self.drawn.append(value[0].item())
        return value, torch.tensor(index)


def train(group: Group, policy: str, cache: bool | int) -> tuple[list[int], list[int], list[float]]:
    """What a rank has read, trained and drawn."""
    data, trained, first = Drawing(), list[int](), list[int]()

    def step(net: nn.Module, batch: Batch) -> Tensor:
        first.append(len(data.read))
        trained.extend(batch[1].tolist())
        return net(batch[0]).square().mean()

    described = (
        Trainer.builder(linear, sgd, step)
        .dataset(data)
        .batch_size(8)
        .num_epochs(EPOCHS)
        .engine("eager")
        .progress(False)
        .cache(cache)
        .ddp({"policy": policy, "simulate_ms": (2.0, 4.0)[-group.world_size :]})
    )
    carry_out(plan_of(described), group)
    assert not first or first[0] <= 9, "nothing is read before the first batch"
    return data.read, trained, data.drawn


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_each_sample_is_read_once_per_epoch_over_all_ranks(ranks: Ranks, policy: str) -> None:
    found: list[Any] = ranks(2, train, policy, False)
    read: Counter[int] = Counter()
    for samples, trained, _ in found:
        assert samples == trained, "a rank reads what it trains, when it trains it"
        assert samples
        read.update(samples)
    assert read == dict.fromkeys(range(SAMPLES), EPOCHS)
    drawn = [value for _, _, values in found for value in values]
    assert len(set(drawn)) == SAMPLES * EPOCHS


def test_each_rank_keeps_what_it_has_read(ranks: Ranks) -> None:
    found: list[Any] = ranks(2, train, "cadence", True)
    for samples, trained, _ in found:
        assert sorted(samples) == sorted(set(trained)), "read once by this rank, however often used"
    trained_in_all: Counter[int] = Counter(n for _, trained, _ in found for n in trained)
    assert trained_in_all == dict.fromkeys(range(SAMPLES), EPOCHS)
