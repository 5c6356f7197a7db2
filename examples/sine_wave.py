"""Fit a sine, and stop when the loss has settled instead of after a fixed number of epochs.

    python examples/sine_wave.py

The model refines its guess in a loop: one block, used four times, with one set of weights. Prints
when and why training stopped, the error, and a few points of the curve.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from flodl import FlowBuilder, Graph, LoopBody, TraceEmit

WIDTH = 32


class Refine(LoopBody):
    """One step of refinement, which also gets the start value; publishes how far it moved."""

    def __init__(self) -> None:
        super().__init__()
        self.update = nn.Linear(WIDTH, WIDTH)

    def step(self, x: Tensor, refs: Mapping[str, Tensor], emit: TraceEmit) -> Tensor:
        """Add the output of the layer to the state [N, WIDTH]."""
        moved = torch.tanh(self.update(x) + refs["start"])
        emit.publish("move", moved.abs().mean())
        return x + moved


def build_model() -> Graph:
    """Angles [N, 1] in, heights [N, 1] out."""
    return (
        FlowBuilder.from_(nn.Linear(1, WIDTH))
        .tag("start")
        .through(nn.Tanh())
        .loop_body(Refine())
        .for_n(4)
        .using("start")
        .through(nn.Linear(WIDTH, 1))
        .build()
    )


def train(model: Graph, angles: Tensor, heights: Tensor, max_epochs: int = 1500) -> str:
    """Train on all points at once until the loss has settled; tells why it ended."""
    model.set_optimizer(lambda parameters: torch.optim.Adam(parameters, lr=3e-3))
    for _ in range(max_epochs):
        loss = mse_loss(model(angles), heights)
        loss.backward()
        model.record("loss", loss)
        model.step()
        model.end_epoch()
        # The last 100 losses vary by less than 0.001 (a variance of 1e-6), and are small.
        losses = model.trend("loss")
        if losses.latest() < 1e-3 and losses.converged(100, 1e-6):
            return "the loss has settled"
    return "there was no time left"


def main() -> None:
    """Train and look at the curve."""
    torch.manual_seed(0)
    angles = torch.linspace(-math.pi, math.pi, 200).unsqueeze(1)
    heights = torch.sin(angles)
    model = build_model()
    reason = train(model, angles, heights)
    print(f"stopped after {model.epoch_count} epochs: {reason}")

    with torch.no_grad():
        error = mse_loss(model(angles), heights).item()
        moves = model.traces("move") or []
        points = torch.tensor([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
        guesses = model(points)
    print(f"mean squared error {error:.5f}")
    print(f"the loop moved {len(moves)} times")
    for x, guess in zip(points.flatten().tolist(), guesses.flatten().tolist(), strict=True):
        print(f"sin({x:+.0f}) = {math.sin(x):+.3f}  model {guess:+.3f}")


if __name__ == "__main__":
    main()
