"""The training of a new project, written by hand with PyTorch alone: ``benchmarks.start`` times it.

Same data, split, network, optimizer, batches and evaluation as ``fdl train`` in a project made by
``fdl init``. It prints the losses and saves a checkpoint to continue from.

    python benchmarks/start_by_hand.py FOLDER CHECKPOINT [EPOCHS]

FOLDER holds the files of the digits, as :mod:`flodl.data` packs them.
"""

import gzip
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    """Adds the output of a module to its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute ``x + inner(x)``."""
        return x + self.inner(x)  # type: ignore[no-any-return]


def network() -> nn.Module:
    """Images [B, 1, 8, 8] in, logits [B, 10] out."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Residual(nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def digits(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """The samples for training and for evaluation."""
    pixels = gzip.decompress((folder / "images.idx3-ubyte.gz").read_bytes())[16:]
    classes = gzip.decompress((folder / "labels.idx1-ubyte.gz").read_bytes())[8:]
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(-1, 1, 8, 8) / 16
    labels = torch.frombuffer(bytearray(classes), dtype=torch.uint8).long()
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[torch.arange(len(labels) // 5) * 1111 % len(labels)] = True
    return (
        TensorDataset(images[~held_out], labels[~held_out]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def main() -> None:
    """Train, evaluate after every epoch, save."""
    folder, checkpoint = Path(sys.argv[1]), Path(sys.argv[2])
    epochs = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    torch.manual_seed(42)
    train, test = digits(folder)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = DataLoader(train, batch_size=32, shuffle=True)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for images, labels in batches:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
        model.eval()
        with torch.no_grad():
            images, labels = test.tensors
            logits = model(images)
            accuracy = (logits.argmax(dim=1) == labels).float().mean().item()
            value = cross_entropy(logits, labels).item()
        print(f"epoch {epoch + 1}  loss={total / len(train):.4f}  val_loss={value:.4f}")
        state = {
            "epoch": epoch + 1,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": torch.get_rng_state(),
        }
        torch.save(state, checkpoint)
    print(f"accuracy {accuracy:.1%} on held-out digits")


if __name__ == "__main__":
    main()
