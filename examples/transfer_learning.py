"""Reuse a trained trunk: train on the digits 0 to 4, then use the same trunk for 5 to 9.

    python examples/transfer_learning.py

The trunk is a labelled graph inside both models, so that it can be saved, loaded, frozen and thawed
by its name. Prints the accuracy on held-out digits after each stage.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl import DataLoader, FlowBuilder, Graph, TensorDataSet, digits


def build_trunk() -> Graph:
    """Images [B, 1, 8, 8] in, features [B, 128] out."""
    return (
        FlowBuilder.from_(nn.Conv2d(1, 16, 3, padding=1))
        .through(nn.BatchNorm2d(16))
        .through(nn.ReLU())
        .also(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()))
        .through(nn.MaxPool2d(2))
        .through(nn.Conv2d(16, 32, 3, padding=1))
        .through(nn.ReLU())
        .through(nn.MaxPool2d(2))
        .through(nn.Flatten())
        .label("trunk")
        .build()
    )


def first_model() -> Graph:
    """A classifier of five digits: trunk and one layer."""
    return FlowBuilder.from_(build_trunk()).through(nn.Linear(128, 5), name="head").build()


def second_model() -> Graph:
    """Another classifier with the same trunk and a head of another shape."""
    return (
        FlowBuilder.from_(build_trunk())
        .through(nn.Linear(128, 32), name="hidden")
        .through(nn.GELU())
        .through(nn.Linear(32, 5), name="head")
        .build()
    )


def five_digits(split: Literal["train", "test"], first: int) -> TensorDataSet:
    """Images of the digits ``first`` to ``first + 4``, labelled 0 to 4."""
    images, labels = digits(split).tensors
    chosen = (labels >= first) & (labels < first + 5)
    return TensorDataSet(images[chosen], labels[chosen] - first, names=("image", "label"))


def train(model: Graph, data: TensorDataSet, *, epochs: int, lr: float) -> None:
    """Train what is not frozen."""
    model.set_optimizer(lambda _: torch.optim.AdamW(model.trainable_parameters(), lr=lr))
    model.train()
    for _ in range(epochs):
        for batch in DataLoader(data, batch_size=32):
            cross_entropy(model(batch["image"]), batch["label"]).backward()
            model.step()


@torch.no_grad()
def accuracy(model: Graph, data: TensorDataSet) -> float:
    """Share of correct answers."""
    images, labels = data.tensors
    model.eval()
    return float((model(images).argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Train, transfer, train the head, fine-tune everything."""
    torch.manual_seed(0)
    first = first_model()
    train(first, five_digits("train", 0), epochs=5, lr=3e-3)
    print(f"digits 0-4, trained from scratch:  {accuracy(first, five_digits('test', 0)):.3f}")

    second = second_model()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trunk.fdl"
        first.subgraph("trunk").save_checkpoint(path)
        report = second.load_subgraph_checkpoint("trunk", path)
    print(f"loaded into the trunk: {len(report.loaded)} tensors, missing {len(report.missing)}")

    # stats=True also keeps the running averages of BatchNorm as they are.
    second.freeze("trunk", stats=True)
    before = [parameter.clone() for parameter in second.parameters_at("trunk")]
    held_out = five_digits("test", 5)
    print(f"digits 5-9, head untrained:        {accuracy(second, held_out):.3f}")
    train(second, five_digits("train", 5), epochs=5, lr=3e-3)
    print(f"digits 5-9, head on frozen trunk:  {accuracy(second, held_out):.3f}")
    same = map(torch.equal, before, second.parameters_at("trunk"))
    print(f"the trunk is as it was: {all(same)}")

    second.thaw("trunk")
    train(second, five_digits("train", 5), epochs=3, lr=1e-3)
    print(f"digits 5-9, all of it fine-tuned:  {accuracy(second, held_out):.3f}")


if __name__ == "__main__":
    main()
