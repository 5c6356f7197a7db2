"""A cache keeps what random transforms drew; a resume reads the same samples again."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flodl import BatchDataSet, Callback, DataLoader, RunDirectory, Trainer
from flodl.checkpoint import checkpoint_metadata
from tests.rows import sampled

SAMPLES = 24
FOUR = 8 * 4 * 4
"""Bytes of eight samples."""


def noise() -> float:
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


class Noisy:
    """Samples with noise from all three generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index / SAMPLES, noise(), 0.0, 1.0])


class NoisyBatches(BatchDataSet):
    """The same, read many at once."""

    def __len__(self) -> int:
        return SAMPLES

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        rows = [torch.tensor([index / SAMPLES, noise(), 0.0, 1.0]) for index in indices]
        return [torch.stack(rows)]


class Keep(Callback):
    """Keeps the checkpoint of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_checkpoint(self, run: Any, path: Path) -> None:
        if run.global_step != self.step:
            return
        while not path.is_file() or steps(path) != self.step:
            time.sleep(0.001)  # another thread replaces it, now or before this call
        shutil.copy(path, path.with_name("kept.fdl"))


def steps(path: Path) -> int:
    """The steps that were trained before a checkpoint."""
    told = checkpoint_metadata(path)
    return int(told["epoch"]) * (SAMPLES // 4) + int(told["step"])


def weights(root: Path, data: Any, resume: Path | None = None, **loader: Any) -> list[Tensor]:
    """Train three epochs of six batches; keep the checkpoint of step 8; return the weights."""

    def step(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) ** 2).mean()

    builder = Trainer.builder(
        lambda _: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 1)),
        lambda p: torch.optim.AdamW(p, 1e-2),
        step,
    )
    builder.dataset(data).batch_size(4).num_epochs(3).device("cpu").engine("eager")
    builder.checkpoint_steps(8).callbacks(Keep(8)).progress(False)
    builder.cache(loader.pop("cache", True)).loader_options(**loader)
    trained = builder.run_dir(RunDirectory.create(root, resume=resume)).run()
    return [parameter.detach().clone() for parameter in trained.model.parameters()]


@pytest.mark.parametrize(
    ("data", "loader"),
    sampled(
        (Noisy(), NoisyBatches()),
        ({}, {"cache": FOUR}, {"workers": 2, "cache": FOUR}, {"workers": 2}),
    ),
    ids=lambda value: str(value) if isinstance(value, dict) else type(value).__name__,
)
def test_a_resume_inside_an_epoch_is_exact(
    loader: dict[str, Any], data: Any, tmp_path: Path
) -> None:
    whole = weights(tmp_path / "whole", data, **loader)
    (run,) = (tmp_path / "whole").iterdir()
    resumed = weights(tmp_path / "resumed", data, run / "kept.fdl", **loader)
    assert all(map(torch.equal, whole, resumed))


def rows(loader: DataLoader, epoch: int) -> dict[float, float]:
    found = {float(row[0]): float(row[1]) for batch in loader.epoch(epoch) for row in batch[0]}
    loader.close()
    return found


@pytest.mark.parametrize("data", [Noisy(), NoisyBatches()], ids=["samples", "batches"])
def test_each_sample_draws_from_its_own_seed(data: Any) -> None:
    first = rows(DataLoader(data, 4, seed=3, cache=True), 0)
    assert len(set(first.values())) == SAMPLES
    for other in ({}, {"cache": FOUR}, {"workers": 2}):
        assert rows(DataLoader(data, 5, seed=3, **({"cache": True} | other)), 4).items() <= (
            first.items()
        )
    assert not rows(DataLoader(data, 4, seed=4, cache=True), 0).items() & first.items()


def test_reading_into_a_cache_leaves_the_generators_of_the_program_alone() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = noise()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    rows(DataLoader(Noisy(), 4, cache=True), 0)
    assert noise() == expected
