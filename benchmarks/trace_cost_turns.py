"""Trainings that run in turns, for ``benchmarks.trace_cost``.

Each runs in a process of its own, as a user's training does. In threads of one process, each
training had OpenMP threads of its own, and steps took longer. The processes share the parameters
of the model.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing.synchronize
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.multiprocessing
from torch import Tensor, nn

from benchmarks.ten_models_networks import Benchmark, mean_squared, networks, rows
from flodl import Batch, Monitor, RunDirectory, TensorDataSet, Trainer
from flodl.train.builder import TrainerBuilder
from flodl.train.observers.digests import DigestTimes
from flodl.train.observers.guards.loss_guard import LossGuard
from flodl.train.observers.step_trace import StepTrace
from flodl.train.step import step_values

WARM_UP = 2
"""Steps of each training before its first turn counts."""

BEFORE, TAKEN, AFTER = WAYS = ("before", "taken", "after")
"""The trainings, in the order of their turns: two without anything around one with it."""

TINY_NAME = "tiny_mlp"

PATIENCE = 600.0
"""Seconds after which a process does not wait for its turn any more."""


def tiny() -> Benchmark:
    """A perceptron whose step takes a tenth of a millisecond."""
    return Benchmark(
        name=TINY_NAME,
        network=lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)),
        draw=rows(4, 16),
        loss=mean_squared,
    )


class TurnClock:
    """Seconds of a process without those in which it waited for its turn."""

    waited = 0.0

    def __call__(self) -> float:
        """The seconds, from an arbitrary moment on."""
        return time.perf_counter() - self.waited


CLOCK = TurnClock()


class Ring:
    """Lets processes run in turns, always in the same order."""

    def __init__(self) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._turns: dict[str, multiprocessing.synchronize.Semaphore] = {
            name: context.Semaphore(int(not place)) for place, name in enumerate(WAYS)
        }

    def wait(self, name: str) -> None:
        """Wait for the turn of a training; its clock stands still.

        Raises:
            TimeoutError: Another process does not hand on its turn.
        """
        began = time.perf_counter()
        if not self._turns[name].acquire(timeout=PATIENCE):
            raise TimeoutError(f"no turn within {PATIENCE:.0f} s")
        CLOCK.waited += time.perf_counter() - began

    def hand_on(self, name: str) -> None:
        """Give the turn of a training to the next one."""
        self._turns[WAYS[(WAYS.index(name) + 1) % len(WAYS)]].release()


@dataclass(slots=True)
class RareWork:
    """Times of work that is done after few steps, by kind.

    Attributes:
        found: Kind -> seconds of each time.
        counts: Whether times are kept now.
        total: Seconds of all times that were kept.
    """

    found: dict[str, list[float]] = field(
        default_factory=lambda: {"digests": [], "snapshots": [], "histograms": [], "losses": []}
    )
    counts: bool = False
    total: float = 0.0
    _open: float = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time this work inside the block."""
        pieces: tuple[tuple[Any, str, str, bool], ...] = (
            (StepTrace, "_tell_digests", "digests", False),
            (StepTrace, "_tell_samples", "digests", True),
            (StepTrace, "take_losses", "losses", True),
            (LossGuard, "keep", "snapshots", True),
            (step_values, "histograms_of", "histograms", False),
            (Monitor, "record_histograms", "histograms", True),
        )
        with ExitStack() as stack:
            for owner, name, kind, closes in pieces:
                timed = self._timed(getattr(owner, name), kind, closes=closes)
                stack.enter_context(patch.object(owner, name, timed))
            stack.enter_context(patch.object(DigestTimes.__init__, "__defaults__", (CLOCK,)))
            yield

    def _timed(self, call: Callable[..., Any], kind: str, *, closes: bool) -> Callable[..., Any]:
        """A function that is timed; with ``closes``, it is the last part of one time."""

        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                if self.counts:
                    self._open += time.perf_counter() - began
                    if closes:
                        self.found[kind].append(self._open)
                        self.total += self._open
                        self._open = 0.0

        return timed


@dataclass(frozen=True, slots=True)
class Turns:
    """What the turns of one call took.

    Attributes:
        steps: Steps of a turn.
        seconds: Seconds of each turn before, with everything, and after; and the seconds of rare
            work in the second one.
        rare: Kind -> seconds of each time.
        threads: Seconds of a processor that the threads of the monitor took more with everything
            than without.
    """

    steps: int
    seconds: list[tuple[float, float, float, float]]
    rare: dict[str, list[float]]
    threads: float


@dataclass(frozen=True, slots=True)
class Task:
    """What every process trains.

    Attributes:
        name: The network.
        small: Whether it has its smallest size.
        of_turn: Steps of a turn.
        turns: Turns of a training.
        histograms: Steps between two records of histograms; None for none.
        also: Further calls of the builder.
    """

    name: str
    small: bool
    of_turn: int
    turns: int
    histograms: int | None
    also: tuple[str, ...]

    @property
    def benchmark(self) -> Benchmark:
        """The network with its data."""
        return benchmark_of(self.name, small=self.small)

    @property
    def steps(self) -> int:
        """Steps that count of each training."""
        return self.of_turn * self.turns

    def settle(self, builder: TrainerBuilder) -> TrainerBuilder:
        """Ask for everything that is measured."""
        if self.histograms is not None:
            builder = builder.histograms(every=self.histograms)
        for name in self.also:
            builder = getattr(builder, name)()
        return builder


def benchmark_of(name: str, *, small: bool) -> Benchmark:
    """A network by name."""
    return tiny() if name == TINY_NAME else networks(small=small)[name]


def seconds_of_step(benchmark: Benchmark) -> float:
    """Seconds of a step of a plain loop, about."""
    model, pairs = benchmark.build(), benchmark.data(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=benchmark.lr)
    times = []
    for pair in pairs:
        began = time.perf_counter()
        benchmark.loss(model, pair).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(task: Task) -> Turns:
    """Train three times in turns.

    Raises:
        RuntimeError: A process ended early.
    """
    parameters = task.benchmark.build().parameters()
    shared = [one.detach().share_memory_() for one in parameters]  # type: ignore[no-untyped-call]
    context, ring = torch.multiprocessing.get_context("spawn"), Ring()
    started = []
    for name in WAYS:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_process, args=(name, task, shared, ring, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    found = {}
    try:
        for name, (process, ours) in zip(WAYS, started, strict=True):
            try:
                found[name] = ours.recv()
            except EOFError:
                process.join()
                raise RuntimeError(f"the training ended with {process.exitcode}") from None
    finally:
        for process, _ in started:
            process.join(0 if len(found) < len(WAYS) else None)
            process.kill()
    (before, _, idle), (taken, rare, busy), (after, *_) = (found[name] for name in WAYS)
    seconds = [
        (one, mine, two, extra)
        for (one, _), (mine, extra), (two, _) in zip(before, taken, after, strict=True)
    ]
    return Turns(task.of_turn, seconds, rare, max(0.0, busy - idle))


def _process(name: str, task: Task, shared: Sequence[Tensor], ring: Ring, pipe: Any) -> None:
    """One training in its own process; it sends its turns, rare work and seconds of threads."""
    rare, turns = RareWork(), list[tuple[float, float]]()
    with rare.watched(), contextlib.redirect_stdout(io.StringIO()):
        threads = _train(name, task, shared, ring, rare, turns)
    pipe.send((turns, rare.found, threads))


def _train(
    name: str,
    task: Task,
    shared: Sequence[Tensor],
    ring: Ring,
    rare: RareWork,
    turns: list[tuple[float, float]],
) -> float:
    """Train; return the seconds that other threads took while turns counted."""
    benchmark, clock, of_turn = task.benchmark, time.perf_counter, task.of_turn
    loss, steps, model = benchmark.loss, task.steps, benchmark.build()
    for own, common in zip(model.parameters(), shared, strict=True):
        own.data = common
    pairs = benchmark.data(4)
    batches = [pairs[at % 4] for at in range(WARM_UP + steps + 1)]
    data = TensorDataSet(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    done, began, known, threads = -WARM_UP, 0.0, 0.0, 0.0

    def step(trained: nn.Module, batch: Batch) -> Tensor:
        nonlocal done, began, known, threads
        if done >= 0 and done % of_turn == 0:
            if done:
                turns.append((clock() - began, rare.total - known))
            if done in (0, steps):
                threads = thread_seconds() - threads
            ring.hand_on(name)
            ring.wait(name)
            rare.counts, known = name == TAKEN and done < steps, rare.total
            began = clock()
        done += 1
        return loss(trained, batch)

    builder = (
        Trainer.builder(
            lambda _: model, lambda found: torch.optim.Adam(found, lr=benchmark.lr), step
        )
        .dataset(data)
        .batch_size(len(pairs[0][0]))
        .num_epochs(1)
        .engine("eager")
        .device("cpu")
        .progress(False)
        .checkpoint_every(1 << 30)
    )
    builder = task.settle(builder) if name == TAKEN else builder.trace(False)
    ring.wait(name)
    try:
        with tempfile.TemporaryDirectory() as root, RunDirectory.create(root) as run:
            builder.run_dir(run).run()
    finally:
        ring.hand_on(name)
    return threads


def thread_seconds() -> float:
    """Seconds of a processor that all Python threads but this one have taken."""
    total = 0
    for one in threading.enumerate():
        if one is not threading.current_thread():
            with suppress(OSError):
                text = Path(f"/proc/self/task/{one.native_id}/schedstat").read_text("ascii")
                total += int(text.split()[0])
    return total / 1e9
