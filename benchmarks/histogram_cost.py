"""What histograms of weights and gradients cost: steps with them against steps without them.

    python benchmarks/histogram_cost.py [--every 100] [--rounds 7]

A multilayer perceptron of 4 million parameters trains on one batch of 128. Blocks of `every` steps
with one record of all weights and gradients alternate with blocks without one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
from torch import nn

from flodl.monitor import MediaFolderSink, Monitor
from flodl.train.parameter_histograms import ParameterHistograms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(128, 1024)
    monitor = Monitor(1, terminal=False)

    def step(watch: ParameterHistograms | None, at: int) -> None:
        loss = model(batch).square().mean()
        loss.backward()
        if watch is not None:
            watch(at)
        optimizer.step()
        optimizer.zero_grad()

    with tempfile.TemporaryDirectory() as folder:
        monitor.add_sink(MediaFolderSink(folder))
        watch = ParameterHistograms(model, monitor, options.every)
        plain: list[float] = []
        watched: list[float] = []
        records: list[float] = []
        for turn in range(-1, options.rounds):
            for times, used in ((plain, None), (watched, watch)):
                started = time.perf_counter()
                for at in range(options.every):
                    # The first step of a training is recorded besides; here every block has one.
                    step(used, (turn + 2) * options.every + at)
                if turn >= 0:
                    times.append((time.perf_counter() - started) / options.every)
            loss = model(batch).square().mean()
            loss.backward()
            started = time.perf_counter()
            watch((turn + 2) * options.every - 1)
            records.append(time.perf_counter() - started)
            optimizer.zero_grad()
        monitor.finish()
    parameters = sum(one.numel() for one in model.parameters())
    base = statistics.median(plain)
    record = statistics.median(records)
    print(f"{parameters / 1e6:.1f} M parameters, {torch.get_num_threads()} threads")
    print(f"step {base * 1e3:.2f} ms, with a record every {options.every} steps "
          f"{statistics.median(watched) * 1e3:.2f} ms")  # fmt: skip
    print(f"one record {record * 1e3:.1f} ms: {record / base / options.every:.2%} of the step time")


if __name__ == "__main__":
    main()
