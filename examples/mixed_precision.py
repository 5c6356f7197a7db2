"""Training in mixed precision: matrix products in half precision, weights in float32.

    python examples/mixed_precision.py

On a GPU in float16, where gradients may vanish and a scaler helps; on a CPU in bfloat16, which has
the range of float32 and needs none. Prints the loss of every epoch, the factor of the scaler where
there is one, and the accuracy. Takes a few seconds on a CPU.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl import DataLoader, FlowBuilder, Graph, digits
from flodl.nn.amp import GradScaler, autocast

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.float16 if DEVICE.type == "cuda" else torch.bfloat16


def build_model() -> Graph:
    """Images [B, 1, 8, 8] in, logits [B, 10] out."""
    return (
        FlowBuilder.from_(nn.Flatten())
        .through(nn.Linear(64, 128))
        .through(nn.GELU())
        .through(nn.Linear(128, 10))
        .label("digits")
        .build()
    )


def train(model: Graph, scaler: GradScaler | None, epochs: int) -> int:
    """Train on the packaged digits; returns how many steps the scaler left out."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(digits("train"), batch_size=32, device=DEVICE)
    left_out = 0
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch in loader:
            with autocast(HALF, device_type=DEVICE.type):
                loss = cross_entropy(model(batch["image"]), batch["label"])
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                # Unscales, clips, and steps only if every gradient is finite.
                left_out += not scaler.step(optimizer, clip_norm=1.0)
                scaler.update()
            optimizer.zero_grad()
            total += float(loss.detach())
        print(f"epoch {epoch}  loss {total / loader.num_batches:.4f}")
    return left_out


@torch.no_grad()
def accuracy(model: Graph) -> float:
    """Share of the held-out digits that the model names correctly, in half precision."""
    images, labels = (tensor.to(DEVICE) for tensor in digits("test").tensors)
    model.eval()
    logits = autocast(HALF, lambda: model(images), device_type=DEVICE.type)
    return float((logits.argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Train and evaluate."""
    torch.manual_seed(0)
    model = build_model().to(DEVICE)
    scaler = GradScaler() if HALF is torch.float16 else None
    left_out = train(model, scaler, epochs=8)
    if scaler is not None:
        print(f"scale factor {scaler.scale_factor():g}, {left_out} steps left out")
    print(f"weights in {next(model.parameters()).dtype}, products in {HALF}")
    print(f"accuracy {accuracy(model):.3f}")


if __name__ == "__main__":
    main()
