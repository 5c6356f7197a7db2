"""A small training problem shared by the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch, DataLoader, TensorDataSet
from flodl.train import TrainerBuilder


def line(n: int = 10) -> TensorDataSet:
    """Points of y = 3x - 1."""
    x = torch.linspace(-1, 1, n).unsqueeze(1)
    return TensorDataSet(x, 3 * x - 1, names=("x", "y"))


def network(device: torch.device | str = "cpu") -> nn.Module:
    """Dropout makes the numbers depend on torch's generator, normalisation on the batches."""
    return nn.Sequential(
        nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
    ).to(device)


def sgd(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def loader_as_built(data: TensorDataSet, batch_size: int) -> DataLoader:
    """Cut epochs as a builder does that was told nothing about its loader."""
    return DataLoader(data, batch_size, drop_last=False, join_remainder=True)


def training(train_fn: Any = squared_error, *, n: int = 10, epochs: int = 2) -> TrainerBuilder:
    """A complete training on the CPU; of ten samples, each epoch has batches of 3, 3 and 4."""
    return (
        Trainer.builder(network, sgd, train_fn)
        .dataset(line(n))
        .batch_size(3)
        .num_epochs(epochs)
        .device("cpu")
    )
