"""How near a loop of the user's own comes to the sum of the speeds of unequal ranks.

Ranks are processes of this machine that sleep: a batch takes each of them as long as
``FLODL_SIM_MS`` says, a part of a batch that part of the time. So the exchanges are real and the
computers are not.

python -m benchmarks.setup_mode --output docs/benchmarks/setup_mode.md
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import environment, publish, table
from flodl import DataLoader, LossContext, TensorDataSet, Trainer
from flodl.launch.settings import DdpConfig
from flodl.launch.start_ranks import launch_ranks

MIXES = ((40.0, 100.0), (25.0, 40.0, 100.0), (40.0, 40.0))
SAMPLES = 70
BAR = 0.85
"""What a plain loop has to reach of the sum of the speeds of the first mix."""

WARM_UP = 60
"""Steps until the parts of the ranks have followed their speed twice."""


@dataclass(frozen=True)
class Measured:
    """What a loop came to."""

    batches_per_second: float
    ratios: tuple[float, ...]
    parts: tuple[int, ...]


def network() -> nn.Module:
    """A small perceptron: the exchange is to be seen, not the computation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer."""
    return torch.optim.Adam(parameters)


def plain_loop(steps: int) -> Measured:
    """Batches per second of a loop in which every rank iterates over the same batches."""
    setup = Trainer.setup(network(), None, adam, device="cpu")
    image, label = torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,))
    began = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began = time.perf_counter()
        cross_entropy(setup(image), label).backward()  # type: ignore[no-untyped-call]
        setup.step()
    seconds = time.perf_counter() - began
    return Measured(steps / seconds, setup.chunk_ratios, setup.shard_sizes)


def error(context: LossContext) -> Tensor:
    """The loss of windows."""
    return cross_entropy(context.output, context.batch["label"])


def windows(batches: int) -> Measured:
    """Batches per second of windows, the first of which are not counted."""
    data = TensorDataSet(
        torch.randn(batches * SAMPLES, 64),
        torch.randint(10, (batches * SAMPLES,)),
        names=("image", "label"),
    )
    setup = Trainer.setup_with(network(), None, adam, DdpConfig())
    setup.set_data_loader(DataLoader(data, SAMPLES), "image")
    setup.set_loss_fn(error)
    counts: tuple[int, ...] = ()
    for epoch in range(2):
        began = time.perf_counter()
        for number, window in enumerate(setup.epoch(epoch)):
            counts = window.counts if number == 0 else counts
            setup.step()
    seconds = time.perf_counter() - began
    return Measured(batches / seconds, tuple(c / sum(counts) for c in counts), counts)


def row(name: str, ms: tuple[float, ...], measured: Measured) -> list[str]:
    """A line of the table."""
    ideal = sum(1e3 / one for one in ms)
    return [
        "/".join(f"{one:g}" for one in ms),
        name,
        f"{measured.batches_per_second:.2f}",
        f"{ideal:.2f}",
        f"{measured.batches_per_second / ideal:.3f}",
        " / ".join(f"{ratio:.3f}" for ratio in measured.ratios),
        " / ".join(map(str, measured.parts)),
    ]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows, plain = [], {}
    for ms in MIXES:
        os.environ["FLODL_SIM_MS"] = ",".join(map(str, ms))
        for name, loop in (("plain loop", plain_loop), ("windows", windows)):
            found: Measured = launch_ranks(loop, (options.steps,), len(ms), simulated=True)[0]
            rows.append(row(name, ms, found))
            if loop is plain_loop:
                plain[ms] = found.batches_per_second / sum(1e3 / one for one in ms)
    header = ["ms per batch", "loop", "batches/s", "sum of speeds", "ratio", "parts", "of one step"]
    intro = (
        f"{environment('torch')}; ranks over Gloo on one machine, {options.steps} batches of "
        f"{SAMPLES} samples after a warm-up. A plain loop divides every batch; windows give "
        "whole batches. `python -m benchmarks.setup_mode`"
    )
    reached = plain[MIXES[0]]
    verdict = (
        f"The plain loop reaches {reached:.3f} of the sum of the speeds of 40 and 100 ms; it must "
        f"reach {BAR}: {'PASS' if reached >= BAR else 'MISSED'}. Every step exchanges twice, and "
        "what an exchange costs depends on the machine."
    )
    parts = ["# Your own loop", intro, table(header, rows), verdict]
    publish("\n\n".join(parts), options.output)


if __name__ == "__main__":
    main()
