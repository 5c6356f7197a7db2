"""What the record of every step costs: a Trainer with ``steps.trace`` against one without it.

The ten models and a tiny perceptron train with the Trainer in a run directory, eager. The
trainings with and without it run in threads of one process, in turns of some steps. The time of a
step contains everything that the Trainer does between two steps.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measure import (
    Bar,
    command_line,
    median_ratio,
    page,
    publish,
    read_options,
    table,
)
from benchmarks.ten_models_networks import Benchmark, mean_squared, networks, rows
from fdl.run_directory.trace_file import read_trace
from flodl import Batch, RunDirectory, TensorDataSet, Trainer
from flodl.train.builder import TrainerBuilder
from flodl.train.digest_times import DigestTimes

SHARE = Bar(1.0)
"""Percent of a step that the trace may take."""
TINY = Bar(5.0)
"""Microseconds that it may add to a step of the tiny perceptron."""

EVERY = 100
"""Steps between two records of histograms."""

WARM_UP = 3
"""Steps of each training before its first turn counts."""

PLAIN, AGAIN, TRACED = "without", "nothing", "trace"

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


class TurnClock(threading.local):
    """Seconds of a thread without those in which it waited for its turn."""

    waited = 0.0

    def __call__(self) -> float:
        """The seconds, from an arbitrary moment on."""
        return time.perf_counter() - self.waited


CLOCK = TurnClock()


class Baton:
    """Lets several trainings run in turns, each in a thread of its own.

    Args:
        names: The trainings, in the order of their turns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._order = list(names)
        self._turn = threading.Condition()
        self._holder = self._order[0]

    def wait(self, name: str) -> None:
        """Wait for the turn of a training; its clock stands still."""
        began = time.perf_counter()
        with self._turn:
            self._turn.wait_for(lambda: self._holder == name)
        CLOCK.waited += time.perf_counter() - began

    def hand_on(self, name: str, *, leaving: bool = False) -> None:
        """Give the turn to the next training.

        Args:
            name: The training that has it.
            leaving: It gets no more turns.
        """
        with self._turn:
            place = self._order.index(name)
            if leaving:
                self._order.remove(name)
            else:
                place += 1
            if self._order:
                self._holder = self._order[place % len(self._order)]
            self._turn.notify_all()


class Case:
    """A network with its data.

    Args:
        benchmark: The network.
        seconds: Time of each training, about.
        least: Least number of turns of a training.
        turn: Seconds of a turn, about; it has one step at least.
    """

    def __init__(self, benchmark: Benchmark, seconds: float, least: int, turn: float) -> None:
        self._benchmark = benchmark
        self._size = len(benchmark.data(1)[0][0])
        self.digests: list[int] = []
        self._prepare(of_turn=1, turns=3)
        step = min(self.train({PLAIN: lambda builder: builder.trace(False)})[PLAIN])
        of_turn = max(1, round(turn / step))
        self._prepare(of_turn, max(least, round(seconds / (step * of_turn))))

    def _prepare(self, of_turn: int, turns: int) -> None:
        self._of_turn = of_turn
        self._data = self._repeated(WARM_UP + of_turn * (turns + 1))

    def _repeated(self, batches: int) -> TensorDataSet:
        pairs = self._benchmark.data(4)
        pairs = [pairs[number % 4] for number in range(batches)]
        return TensorDataSet(*(torch.cat(parts) for parts in zip(*pairs, strict=True)))

    def measure(self, ways: Mapping[str, Way], rounds: int) -> dict[str, list[float]]:
        """Train in all ways, several times; each way comes first as often as any other.

        Returns:
            The seconds of a step in each turn of each way.
        """
        names, found = list(ways), {name: list[float]() for name in ways}
        for number in range(rounds):
            first = number % len(names)
            order = {name: ways[name] for name in [*names[first:], *names[:first]]}
            for name, turns in self.train(order).items():
                found[name] += turns
        return found

    def train(self, ways: Mapping[str, Way]) -> dict[str, list[float]]:
        """Train in all ways once; returns the seconds of a step in each turn of each way."""
        baton, found = Baton(list(ways)), {name: list[float]() for name in ways}
        with ThreadPoolExecutor(len(ways)) as pool:
            running = [
                pool.submit(self._train, name, way, baton, found[name])
                for name, way in ways.items()
            ]
            for one in running:
                one.result()
        return found

    def _train(self, name: str, settle: Way, baton: Baton, turns: list[float]) -> None:
        loss, clock, of_turn = self._benchmark.loss, time.perf_counter, self._of_turn
        done, began = -WARM_UP, 0.0

        def step(model: nn.Module, batch: Batch) -> Tensor:
            nonlocal done, began
            if done >= 0 and done % of_turn == 0:
                if done:
                    turns.append((clock() - began) / of_turn)
                baton.hand_on(name)
                baton.wait(name)
                began = clock()
            done += 1
            return loss(model, batch)

        builder = (
            Trainer.builder(
                lambda device: self._benchmark.build().to(device),
                lambda parameters: torch.optim.Adam(parameters, lr=self._benchmark.lr),
                step,
            )
            .dataset(self._data)
            .batch_size(self._size)
            .num_epochs(1)
            .engine("eager")
            .device("cpu")
            .progress(False)
            .checkpoint_every(1 << 30)
        )
        baton.wait(name)
        try:
            with tempfile.TemporaryDirectory() as root:
                with RunDirectory.create(root) as run:
                    settle(builder).run_dir(run).run()
                if (run.path / "steps.trace").is_file():
                    self.digests.append(len(read_trace(Path(run.path)).weights))
        finally:
            baton.hand_on(name, leaving=True)


def subjects(options: argparse.Namespace) -> dict[str, Way]:
    """The settings of each subject."""
    found: dict[str, Way] = {
        PLAIN: lambda builder: builder.trace(False),
        AGAIN: lambda builder: builder.trace(False),
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
    base = statistics.fmean(plain)
    low, middle_, high = drawn_again(plain, taken)
    percent, extra = 100 * (middle_ - 1), 1e6 * base * (middle_ - 1)
    is_tiny = label == "tiny_mlp"
    bar, figure, unit = (TINY, extra, "µs") if is_tiny else (SHARE, percent, "%")
    digests = f"{statistics.median(case.digests):.0f}" if case.digests else ""
    return [
        label,
        name,
        f"{1e3 * base:.3f}",
        f"{percent:+.2f} ({100 * (low - 1):.2f} … {100 * (high - 1):.2f})",
        f"{100 * (median_ratio(taken, plain) - 1):+.2f}",
        f"{extra:+.2f}",
        str(len(plain)),
        digests,
        "" if name == AGAIN else f"{bar.verdict(figure)} {unit}",
    ]


def drawn_again(plain: Sequence[float], taken: Sequence[float]) -> tuple[float, float, float]:
    """The ratio of two sums, and how far chance moves it.

    What is due after many steps is in few turns. So a median of the ratios would leave it out.

    Args:
        plain: Seconds of the turns of one training.
        taken: Seconds of the turns beside them.

    Returns:
        The ratio between the low and the high end of the middle 80 % of the ratios when as many
        pairs of turns are drawn again, 2000 times.
    """
    draw, pairs = random.Random(0), list(zip(plain, taken, strict=True))
    found = []
    for _ in range(2000):
        some = draw.choices(pairs, k=len(pairs))
        found.append(sum(mine for _, mine in some) / sum(base for base, _ in some))
    parts = statistics.quantiles(found, n=10)
    return parts[0], sum(taken) / sum(plain), parts[-1]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("trace_cost", __doc__, rounds=4)
    parser.add_argument("--seconds", type=float, default=2, help="of each training, about")
    parser.add_argument("--least", type=int, default=3, help="turns of a training, at least")
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of a turn, about")
    parser.add_argument("--models", nargs="+", default=[*networks(small=True), "tiny_mlp"])
    parser.add_argument("--histograms", action="store_true", help="also measure histograms")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="CALL", help="further calls of the builder"
    )
    quick = {"rounds": 1, "least": 2, "seconds": 0.01, "turn": 0.001, "models": ["mlp", "tiny_mlp"]}
    options = read_options(parser, argv, **quick)
    known = {**networks(small=options.quick), "tiny_mlp": tiny()}
    ways = subjects(options)
    table_rows = []
    DigestTimes.__init__.__defaults__ = (CLOCK,)
    for label in options.models:
        with contextlib.redirect_stdout(io.StringIO()):
            case = Case(known[label], options.seconds, options.least, options.turn)
            case.digests.clear()
            times = case.measure(ways, options.rounds)
        table_rows += [row_of(case, name, label, times) for name in ways if name != PLAIN]
        print(*table_rows[1 - len(ways) :], sep="\n", file=sys.stderr)
    text = page(
        options,
        "Cost of the step trace",
        f"The trainings of a row run in one process, in turns of {1e3 * options.turn:g} ms or one "
        f"step, {options.rounds} times from the beginning. Each takes about {options.seconds:g} s "
        f"and has {options.least} turns at least. Eager engine, Adam, float32.",
        table(
            [
                "model",
                "with",
                "ms per step without",
                "% more (middle 80 %)",
                "median turn, % more",
                "µs more",
                "turns",
                "digests",
                "bar",
            ],
            table_rows,
        ),
        "*% more* compares the sums of all turns, because digests, snapshots and histograms are "
        "in few of them. The middle 80 % is of that ratio when the turns are drawn again. The "
        "median leaves out what is in few turns. Rows with *nothing* compare two trainings that "
        "are alike. They show how far two such figures differ without a cause, mostly because "
        "the tensors of a training lie elsewhere in memory.\n\nDigests of the weights are taken "
        "after multiples of a power of two that the training chooses. They take at most 0.5 % of "
        "its steps. What is done before the first step and after the last one is not in the time "
        "of a step.",
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
