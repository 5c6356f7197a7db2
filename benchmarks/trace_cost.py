"""What the record of every step costs: a Trainer with ``steps.trace`` against one without it.

The ten models and a tiny perceptron train with the Trainer in a run directory, eager, in turns. The
time of a step is the mean over the steps inside of the epochs. It contains everything that the
Trainer does between two steps.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from benchmarks.ten_models_networks import Benchmark, mean_squared, networks, rows
from fdl.run_directory.trace_file import read_trace
from flodl import Batch, RunDirectory, TensorDataSet, Trainer
from flodl.train.builder import TrainerBuilder

SHARE = Bar(1.0)
"""Percent of a step that the trace may take."""
TINY = Bar(5.0)
"""Microseconds that it may add to a step of the tiny perceptron."""

EVERY = 100
"""Steps between two records of histograms."""

PLAIN, TRACED = "without", "trace"

Way = Callable[[TrainerBuilder], TrainerBuilder]
"""Further settings of the builder."""


def tiny() -> Benchmark:
    """A perceptron whose step takes a tenth of a millisecond."""
    return Benchmark(
        name="tiny_mlp",
        network=lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)),
        draw=rows(4, 16),
        loss=mean_squared,
    )


class Case:
    """A network with its data.

    Args:
        benchmark: The network.
        batches: Batches of an epoch.
    """

    def __init__(self, benchmark: Benchmark, batches: int) -> None:
        self._benchmark, self._batches = benchmark, batches
        pairs = benchmark.data(batches)
        self._size = len(pairs[0][0])
        self._data = TensorDataSet(*(torch.cat(parts) for parts in zip(*pairs, strict=True)))
        self.epochs = 1
        self.digests: list[int] = []

    def calibrate(self, seconds: float) -> None:
        """Choose the epochs of a training by the time that it may take."""
        step = self.train(lambda builder: builder.trace(False))
        self.epochs = max(1, round(seconds / (step * self._batches)))

    def measure(self, ways: Mapping[str, Way]) -> Callable[[str], float]:
        """What trains one of the ways by its name."""
        return lambda name: self.train(ways[name])

    def train(self, settle: Way) -> float:
        """Train; return the seconds of a step."""
        stamps: list[float] = []
        loss, clock = self._benchmark.loss, time.perf_counter

        def step(model: nn.Module, batch: Batch) -> Tensor:
            stamps.append(clock())
            return loss(model, batch)

        builder = (
            Trainer.builder(
                lambda device: self._benchmark.build().to(device),
                lambda parameters: torch.optim.Adam(parameters, lr=self._benchmark.lr),
                step,
            )
            .dataset(self._data)
            .batch_size(self._size)
            .num_epochs(self.epochs)
            .engine("eager")
            .device("cpu")
            .progress(False)
            .checkpoint_every(1 << 30)
        )
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
            with RunDirectory.create(root) as run:
                settle(builder).run_dir(run).run()
            if (run.path / "steps.trace").is_file():
                self.digests.append(len(read_trace(Path(run.path)).weights))
        last = self._batches - 1
        inside = [
            after - before
            for number, (before, after) in enumerate(pairwise(stamps))
            if number % self._batches != last
        ]
        return statistics.fmean(inside)


def subjects(options: argparse.Namespace) -> dict[str, Way]:
    """The settings of each subject."""
    found: dict[str, Way] = {
        PLAIN: lambda builder: builder.trace(False),
        TRACED: lambda builder: builder,
    }

    def everything(builder: TrainerBuilder) -> TrainerBuilder:
        if options.histograms:
            builder = builder.histograms(every=EVERY)
        for name in options.also:
            builder = getattr(builder, name)()
        return builder

    if options.histograms or options.also:
        found[all_of(options)] = everything
    return found


def all_of(options: argparse.Namespace) -> str:
    """The name of the subject with everything."""
    parts = [TRACED, *(["histograms"] if options.histograms else []), *options.also]
    return " + ".join(parts)


def row_of(case: Case, name: str, label: str, times: dict[str, list[float]]) -> list[str]:
    """One row of the table."""
    plain, taken = times[PLAIN], times[name]
    extra = [1e6 * (mine - theirs) for mine, theirs in zip(taken, plain, strict=True)]
    percent = 100 * (median_ratio(taken, plain) - 1)
    is_tiny = label == "tiny_mlp"
    verdict = TINY.verdict(statistics.median(extra)) if is_tiny else SHARE.verdict(percent)
    digests = f"{statistics.median(case.digests):.0f}" if case.digests else ""
    return [
        label,
        name,
        middle(plain, ".3f", 1e3),
        f"{percent:+.2f} ({spread([100 * (r - 1) for r in ratios(taken, plain)])})",
        f"{statistics.median(extra):+.2f}",
        digests,
        f"{verdict} {'µs' if is_tiny else '%'}",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("trace_cost", __doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each training, about")
    parser.add_argument("--models", nargs="+", default=[*networks(small=True), "tiny_mlp"])
    parser.add_argument("--histograms", action="store_true", help="also measure histograms")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="CALL", help="further calls of the builder"
    )
    options = read_options(parser, argv, rounds=1, seconds=0.01, models=["mlp", "tiny_mlp"])
    known = {**networks(small=options.quick), "tiny_mlp": tiny()}
    ways = subjects(options)
    table_rows = []
    for label in options.models:
        case = Case(known[label], 500 if label == "tiny_mlp" and not options.quick else 4)
        case.calibrate(options.seconds)
        times = in_turns(list(ways), case.measure(ways), options.rounds, warmup=0)
        table_rows += [row_of(case, name, label, times) for name in ways if name != PLAIN]
    text = page(
        options,
        "Cost of the step trace",
        f"{torch.get_num_threads()} threads; {options.rounds} rounds in turns, medians and the "
        f"middle 80 %, trainings of about {options.seconds:g} s. Eager engine, Adam, float32.",
        table(
            [
                "model",
                "with",
                "ms per step without",
                "% more (spread)",
                "µs more",
                "digests",
                "bar",
            ],
            table_rows,
        ),
        "Digests of the weights are taken after multiples of a power of two that the training "
        "chooses. They take at most 0.5 % of its steps. The column counts them in one training. "
        "The digests before the first step and after the last one are not in the time of a step.",
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
