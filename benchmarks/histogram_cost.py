"""What histograms of weights and gradients cost: steps with them against steps without them.

A multilayer perceptron of 4 million parameters trains on one batch of 128. Blocks of steps with one
record of all weights and gradients alternate with blocks without one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.measure import (
    Bar,
    command_line,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from flodl.monitor import MediaFolderSink, Monitor
from flodl.train.step.step_values import ParameterHistograms

COST = Bar(1.0)
"""Percent of the time of the steps that one record may take."""


class Steps:
    """The training, with and without records.

    Args:
        width: Width of the hidden layer.
        every: Steps per record.
    """

    def __init__(self, width: int, every: int, monitor: Monitor) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, 1024))
        self._optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self._batch = torch.randn(128, 1024)
        self._watch = ParameterHistograms(self.model, monitor, every)
        self._every = every
        self._at = every

    def block(self, *, watched: bool) -> float:
        """Seconds per step over ``every`` steps, of which one is recorded."""
        started = time.perf_counter()
        for _ in range(self._every):
            self._backward()
            if watched:
                self._watch(self._at)
            self._at += 1
            self._optimizer.step()
            self._optimizer.zero_grad()
        return (time.perf_counter() - started) / self._every

    def record(self) -> float:
        """Seconds of one record."""
        self._backward()
        started = time.perf_counter()
        self._watch(self._every * (1 + self._at // self._every) - 1)
        taken = time.perf_counter() - started
        self._optimizer.zero_grad()
        return taken

    def _backward(self) -> None:
        self.model(self._batch).square().mean().backward()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("histogram_cost", __doc__, rounds=7)
    parser.add_argument("--every", type=int, default=100, help="steps per record")
    parser.add_argument("--width", type=int, default=2048, help="width of the hidden layer")
    options = read_options(parser, argv, rounds=1, every=3, width=64)
    monitor = Monitor(1, terminal=False)
    with tempfile.TemporaryDirectory() as folder:
        monitor.add_sink(MediaFolderSink(folder))
        steps = Steps(options.width, options.every, monitor)
        plain, watched, records = list[float](), list[float](), list[float]()
        steps.block(watched=True)
        for _ in range(options.rounds):
            plain.append(steps.block(watched=False))
            watched.append(steps.block(watched=True))
            records.append(steps.record())
        monitor.finish()
    share = 100 * median_ratio(records, plain) / options.every
    rows = [
        ["step without histograms", middle(plain, ".2f", 1e3), spread(plain, ".2f", 1e3), "", ""],
        [
            "step with them",
            middle(watched, ".2f", 1e3),
            spread(watched, ".2f", 1e3),
            f"{median_ratio(watched, plain):.3f} ({spread(ratios(watched, plain), '.3f')})",
            "",
        ],
        [
            "one record",
            middle(records, ".2f", 1e3),
            spread(records, ".2f", 1e3),
            f"{share:.2f} % of {options.every} steps",
            COST.verdict(share),
        ],
    ]
    parameters = sum(one.numel() for one in steps.model.parameters())
    text = page(
        options,
        "Cost of histograms",
        f"{torch.get_num_threads()} threads; {options.rounds} rounds in turns, medians and the "
        f"middle 80 %. A perceptron with {parameters / 1e6:.1f} million parameters, fused AdamW, "
        f"batches of 128, float32. Every {options.every} steps, all weights and gradients are "
        "recorded.",
        table(["", "ms", "spread", "of steps without", "bar"], rows),
        "A record costs the same for every batch size, so its share grows when steps are shorter.",
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
