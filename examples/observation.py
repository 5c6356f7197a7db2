"""Watch a training from inside: tagged activations, metrics of parts, trends, a page to look at.

    python examples/observation.py [FOLDER]

A network with two parallel branches learns to separate two interleaved spirals. Prints a line every
tenth epoch, and the trends at the end; writes `curves.html`, `curves.csv`, `training.log`
and `network.svg` into FOLDER (default: `runs/observation`).
"""

import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl import FlowBuilder, Graph, MergeOp, Reduce

EPOCHS = 60


def spirals(points: int) -> tuple[Tensor, Tensor]:
    """Points [2·points, 2] on two spirals, and which of them [2·points]."""
    turns = torch.linspace(0.25, 1, points)
    arms = []
    for arm in (0, 1):
        angle = 2 * math.pi * turns + arm * math.pi
        arms.append(torch.stack([turns * angle.cos(), turns * angle.sin()], dim=1))
    labels = torch.arange(2).repeat_interleave(points)
    return torch.cat(arms), labels


def build_model() -> Graph:
    """Points [N, 2] in, logits [N, 2] out; the encoder is a graph of its own."""
    encoder = (
        FlowBuilder.from_(nn.Linear(2, 32))
        .through(nn.Tanh())
        .tag("hidden")
        .through(nn.Linear(32, 32))
        .through(nn.Tanh())
        .label("encoder")
        .build()
    )
    return (
        FlowBuilder.from_(encoder)
        .split([nn.Sequential(nn.Linear(32, 16), nn.ReLU()), nn.Linear(32, 16)])
        .tag_group("branches")  # names the branches branches_0 and branches_1
        .merge(MergeOp.MEAN)
        .through(nn.Linear(16, 2))
        .tag("logits")
        .build()
    )


def train(model: Graph, points: Tensor, labels: Tensor) -> None:
    """Train on all points at once, and take notes."""
    model.set_optimizer(lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    for epoch in range(1, EPOCHS + 1):
        logits = model(points)
        loss = cross_entropy(logits, labels)
        loss.backward()
        # A value of one's own, the size of every branch, and something about a part of the model.
        model.record("loss", loss)
        model.collect_with(["branches"], Reduce.NORM)
        hidden = model.tagged("encoder.hidden")
        if hidden is not None:
            model.record_at("encoder.saturated", (hidden.abs() > 0.9).float().mean())
        model.step()
        model.end_epoch()  # one point per metric, here and in the encoder
        if epoch % 10 == 0:
            metrics = "  ".join(f"{name}={value:.3f}" for name, value in model.latest_metrics())
            print(f"epoch {epoch:2}  {metrics}")


def main(folder: Path) -> None:
    """Train, ask the trends, write the files."""
    torch.manual_seed(0)
    points, labels = spirals(200)
    model = build_model()
    train(model, points, labels)

    loss = model.trend("loss")
    print(
        f"loss: {loss.values[0]:.3f} at first, {loss.latest():.3f} at last, {loss.min():.3f} best"
    )
    print(f"still improving over the last 20 epochs: {loss.improving(20)}")
    print(f"both branches have settled: {model.trends('branches').all_converged(10, 1e-3)}")

    folder.mkdir(parents=True, exist_ok=True)
    model.plot_html(folder / "curves.html")
    model.export_trends(folder / "curves.csv")
    model.write_log(folder / "training.log", EPOCHS)
    model.svg(folder / "network.svg")
    print(f"written: {', '.join(sorted(path.name for path in folder.iterdir()))}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/observation"))
