"""A small network on the packaged digits: the accuracy a newcomer shall see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch, digits
from flodl.train import record_scalar


def network(device: torch.device) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    ).to(device)


def accuracy(model: nn.Module, image: Tensor, label: Tensor) -> Tensor:
    return (model(image).argmax(1) == label).float().mean()


@pytest.mark.slow
def test_the_held_out_fifth_is_read_with_97_percent_accuracy() -> None:
    image, label = digits("test").tensors

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["image"])
        record_scalar("train_accuracy", (logits.argmax(1) == batch["label"]).float().mean())
        return nn.functional.cross_entropy(logits, batch["label"])

    handle = (
        Trainer.builder(network, lambda params: torch.optim.AdamW(params, lr=2e-3), train_fn)
        .dataset(digits("train"))
        .batch_size(32)
        .num_epochs(10)
        .device("cpu")
        .eval_fn(lambda model: {"accuracy": accuracy(model, image, label)})
        .run()
    )
    epochs = handle.poll_metrics()
    assert epochs[-1].scalars["accuracy"] >= 0.97
    assert epochs[-1].scalars["train_accuracy"] >= 0.97
    assert epochs[-1].avg_loss < epochs[0].avg_loss / 5
