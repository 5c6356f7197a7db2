"""A first model: describe it as a flow, train it, save it, load it into a copy.

    python examples/quickstart.py

Prints the loss of every epoch, the accuracy on digits that training never saw, and whether a copy
loaded from the checkpoint answers alike. Takes a few seconds on a CPU.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl import DataLoader, FlowBuilder, Graph, digits


def build_model() -> Graph:
    """Images [B, 1, 8, 8] in, logits [B, 10] out."""
    return (
        FlowBuilder.from_(nn.Flatten())
        .through(nn.Linear(64, 64))
        .through(nn.GELU())
        .tag("features")
        .also(nn.Sequential(nn.Linear(64, 64), nn.GELU()))  # x + f(x)
        .through(nn.Linear(64, 10))
        .label("digits")
        .build()
    )


def train(model: Graph, epochs: int) -> None:
    """Train on the packaged digits and print the loss of every epoch."""
    model.set_optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=3e-3))
    loader = DataLoader(digits("train"), batch_size=32)
    for epoch in range(1, epochs + 1):
        for batch in loader:
            loss = cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            model.record("loss", loss)
            model.step()  # updates the weights and clears the gradients
        model.end_epoch()  # makes one point of the epoch's recorded losses
        print(f"epoch {epoch}  loss {model.trend('loss').latest():.4f}")


@torch.no_grad()
def accuracy(model: Graph) -> float:
    """Share of the held-out digits that the model names correctly."""
    images, labels = digits("test").tensors
    model.eval()
    return float((model(images).argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Train, evaluate, save and load."""
    torch.manual_seed(0)
    model = build_model()
    train(model, epochs=8)
    print(f"accuracy {accuracy(model):.3f}")

    with TemporaryDirectory() as folder:
        path = Path(folder) / "digits.fdl"
        model.save_checkpoint(path)
        copy = build_model()
        copy.load_checkpoint(path)
    images, _ = digits("test").tensors
    print(f"the copy answers alike: {torch.equal(model(images), copy.eval()(images))}")


if __name__ == "__main__":
    main()
