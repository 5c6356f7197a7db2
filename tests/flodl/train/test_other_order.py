"""A resume inside an epoch whose samples would come in another order is refused before a step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import DataLoader, RunDirectory, Sampler, Trainer
from flodl.data import TensorDataSet
from flodl.data.order import order_digest
from flodl.errors import CheckpointError, DataError
from flodl.train import TrainerBuilder
from tests.flodl.data.sources import Numbers


class Weighted(Sampler):
    """Draws samples with weights; the same ones for the same epoch."""

    def __init__(self, weight: float) -> None:
        self.weights = torch.ones(32)
        self.weights[0] = weight

    def indices(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(epoch)
        return torch.multinomial(self.weights, 32, replacement=True, generator=generator)


class Own(Sampler):
    """An order of its own seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def indices(self, epoch: int) -> list[int]:
        return random.Random(f"{self.seed}/{epoch}").sample(range(32), 32)


class CutError(Exception):
    """The power is off."""


def training(run: RunDirectory, cut: int | None, **loader: Any) -> TrainerBuilder:
    """Two epochs of eight batches; it ends in the middle of step ``cut``."""
    steps: list[int] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        steps.append(1)
        if len(steps) == cut:
            raise CutError
        return (model(batch[0]) ** 2).mean()

    samples = TensorDataSet(torch.arange(32.0).unsqueeze(1))
    builder = Trainer.builder(lambda _: nn.Linear(1, 1), lambda p: torch.optim.SGD(p, 1e-3), step)
    builder.dataset(samples).batch_size(4).num_epochs(2).device("cpu").checkpoint_steps(3)
    return builder.loader_options(**loader).run_dir(run)


def stopped(root: Path, cut: int, **loader: Any) -> Path:
    """Return a checkpoint; of step 3 if it is cut at 5, of the end of an epoch if at 9."""
    run = RunDirectory.create(root)
    with run, pytest.raises(CutError):
        training(run, cut, **loader).run()
    return run.last_checkpoint


def folders(root: Path) -> list[str]:
    return sorted(one.name for one in root.iterdir())


def refusal(root: Path, source: Path, **loader: Any) -> str:
    """Return the message of a refused resume, which trains no step and leaves no run behind."""
    before = folders(root)
    run = RunDirectory.create(root, resume=source)
    with pytest.raises(CheckpointError) as refused, run:
        training(run, 1, **loader).run()
    assert folders(root) == before
    return str(refused.value)


ORDERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "not shuffled": (
        {},
        {"shuffle": False},
        "were trained with shuffle=True, and now it has shuffle=False",
    ),
    "shuffled": (
        {"shuffle": False},
        {},
        "were trained with shuffle=False, and now it has shuffle=True",
    ),
    "a sampler": (
        {},
        {"sampler": Own(1)},
        "were trained with shuffle=True, and now it has the sampler Own",
    ),
    "the seed of a sampler": (
        {"sampler": Own(1)},
        {"sampler": Own(2)},
        "were trained with another order of the sampler Own",
    ),
    "its weights": (
        {"sampler": Weighted(1.0)},
        {"sampler": Weighted(9.0)},
        "were trained with another order of the sampler Weighted",
    ),
    "drop_last": ({}, {"drop_last": True, "join_remainder": False}, "drop_last was False and is"),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_another_order_inside_an_epoch_is_refused(kind: str, tmp_path: Path) -> None:
    before, now, told = ORDERS[kind]
    said = refusal(tmp_path, stopped(tmp_path, 5, **before), **now)
    assert told in said
    if kind != "drop_last":
        assert "3 batches of epoch 0 (counted from 0)" in said
        assert "or begin a new run without resume" in said


def test_the_same_order_goes_on(tmp_path: Path) -> None:
    for loader in ({}, {"shuffle": False}, {"sampler": Weighted(3.0)}):
        source = stopped(tmp_path, 5, **loader)
        training(RunDirectory.create(tmp_path, resume=source), None, **loader).run()


def test_at_the_end_of_an_epoch_another_order_is_only_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = stopped(tmp_path, 9)
    training(RunDirectory.create(tmp_path, resume=source), None, shuffle=False).run()
    assert "in the order 'random'; from now on it is 'sequential'" in capfd.readouterr().err


def test_a_loader_of_ones_own_refuses_it_too() -> None:
    loader = DataLoader(Numbers(10), 2)
    next(loader.epoch(0))
    other = DataLoader(Numbers(10), 2, shuffle=False, seed=7)
    untouched = other.state_dict()
    with pytest.raises(DataError, match=r"1 batches of epoch 0.*start the epoch again without"):
        other.load_state_dict(loader.state_dict())
    assert other.state_dict() == untouched


def test_the_digest_of_a_long_order_reads_pieces_of_it() -> None:
    long = torch.randperm((1 << 20) + 7)
    assert order_digest(long) == order_digest(long.clone())
    for place in (0, -1):
        other = long.clone()
        other[place] += 1
        assert order_digest(other) != order_digest(long)
    assert order_digest(long[:-1]) != order_digest(long)
