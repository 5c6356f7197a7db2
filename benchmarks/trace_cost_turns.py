"""Trainings that run in turns in one process, for ``benchmarks.trace_cost``.

All trainings of a network share one model and one optimizer. So their tensors lie at the same place
in memory, which would otherwise make two equal trainings differ by some per cent.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.ten_models_networks import Benchmark
from flodl import Batch, Monitor, RunDirectory, TensorDataSet, Trainer
from flodl.train import parameter_histograms
from flodl.train.builder import TrainerBuilder
from flodl.train.digest_times import DigestTimes
from flodl.train.guards.loop_guard import LoopGuard
from flodl.train.step_trace import StepTrace

WARM_UP = 2
"""Steps of each training before its first turn counts."""

BEFORE, TAKEN, AFTER = "before", "taken", "after"
"""The trainings, in the order of their turns: two without anything around one with it."""

Way = Callable[[TrainerBuilder], TrainerBuilder]
"""Further settings of the builder."""


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


@dataclass(slots=True)
class RareWork:
    """Times of work that is done after few steps.

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
        """Time this work inside the block, in all threads together."""
        pieces: tuple[tuple[Any, str, str, bool], ...] = (
            (StepTrace, "_tell_digests", "digests", False),
            (StepTrace, "_tell_samples", "digests", True),
            (StepTrace, "_tell_losses", "losses", True),
            (LoopGuard, "keep", "snapshots", True),
            (parameter_histograms, "histogram_of", "histograms", False),
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
    """

    steps: int
    seconds: list[tuple[float, float, float, float]]
    rare: dict[str, list[float]]


class Case:
    """A network with its data.

    Args:
        benchmark: The network.
        seconds: Time of all trainings together, about.
        least: Least number of turns of a training.
        turn: Seconds of a turn, about; it has one step at least.
    """

    def __init__(self, benchmark: Benchmark, seconds: float, least: int, turn: float) -> None:
        self._loss = benchmark.loss
        self._pairs = benchmark.data(4)
        self._model = benchmark.build()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=benchmark.lr)
        step = min(self._plain_step(number) for number in range(3))
        self._of_turn = max(1, round(turn / step))
        self._turns = max(least, round(seconds / (3 * step * self._of_turn)))

    @property
    def steps(self) -> int:
        """Steps that count of each training."""
        return self._of_turn * self._turns

    def _plain_step(self, number: int) -> float:
        began = time.perf_counter()
        self._loss(self._model, self._pairs[number]).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - began

    def measure(self, way: Way) -> Turns:
        """Train in turns; ``way`` makes the settings of the training between the other two."""

        def without(builder: TrainerBuilder) -> TrainerBuilder:
            return builder.trace(False)

        ways: Mapping[str, Way] = {BEFORE: without, TAKEN: way, AFTER: without}
        batches = [self._pairs[at % 4] for at in range(WARM_UP + self.steps + 1)]
        data = TensorDataSet(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
        baton, rare = Baton(list(ways)), RareWork()
        found = {name: list[tuple[float, float]]() for name in ways}
        with rare.watched(), ThreadPoolExecutor(len(ways)) as pool:
            running = [
                pool.submit(self._train, name, one, data, baton, rare, found[name])
                for name, one in ways.items()
            ]
            for one in running:
                one.result()
        seconds = [
            (before, taken, after, extra)
            for (before, _), (taken, extra), (after, _) in zip(*found.values(), strict=True)
        ]
        return Turns(self._of_turn, seconds, rare.found)

    def _train(
        self,
        name: str,
        settle: Way,
        data: TensorDataSet,
        baton: Baton,
        rare: RareWork,
        turns: list[tuple[float, float]],
    ) -> None:
        loss, clock, of_turn = self._loss, time.perf_counter, self._of_turn
        done, began, known = -WARM_UP, 0.0, 0.0

        def step(model: nn.Module, batch: Batch) -> Tensor:
            nonlocal done, began, known
            if done >= 0 and done % of_turn == 0:
                if done:
                    turns.append((clock() - began, rare.total - known))
                baton.hand_on(name)
                baton.wait(name)
                rare.counts, known = name == TAKEN and done < self.steps, rare.total
                began = clock()
            done += 1
            return loss(model, batch)

        builder = (
            Trainer.builder(lambda _: self._model, lambda _: self._optimizer, step)
            .dataset(data)
            .batch_size(len(self._pairs[0][0]))
            .num_epochs(1)
            .engine("eager")
            .device("cpu")
            .progress(False)
            .checkpoint_every(1 << 30)
        )
        baton.wait(name)
        try:
            with tempfile.TemporaryDirectory() as root, RunDirectory.create(root) as run:
                settle(builder).run_dir(run).run()
        finally:
            baton.hand_on(name, leaving=True)
