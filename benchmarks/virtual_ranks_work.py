"""Real models on virtual ranks: what flodl's simulator calls in the order of its clock.

Every rank has its own replica and optimizer and computes each of its batches. Parameters,
gradients and outer steps go through the averages that ranks of a training use, and every batch goes
into the sample ledger that a training writes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import final

from benchmarks.virtual_ranks_group import Meeting, VirtualGroup
from benchmarks.virtual_ranks_tasks import Order, Task, judged_by
from flodl.ranks.averaging.average import ParameterAverager, Round
from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.averaging.outer_optimizer import OuterOptimizer
from flodl.ranks.planning.schedule import Spans, cut, numbers
from flodl.ranks.sample_ledger import LedgerFacts, SampleLedger, SampleRecorder
from flodl.ranks.settings import Backend
from flodl.ranks.simulate import Work
from flodl.train.run.verify import LEDGER, verify_run

LOOKS = 15
"""How often a training is judged on the way."""


@final
class Repeated(Work):
    """A training that was done before, on another clock: nothing is computed again.

    Only for ways whose arithmetic does not depend on the times.

    Args:
        task: What was trained.
        looks: What was seen on the way: time, trained samples, loss and accuracy.

    Attributes:
        looks: The same with the times of this clock.
        averages: Number of averages.
    """

    def __init__(self, task: Task, looks: Sequence[Sequence[float]]) -> None:
        self._batch, self._left, self._trained = task.batch, list(looks), 0
        self.looks: list[tuple[float, int, float, float]] = []
        self.averages = 0

    def train(self, rank: int, number: int) -> None:  # noqa: ARG002
        """Count a local step."""
        self._trained += self._batch

    def gradient(self, rank: int, taken: Spans) -> None:  # noqa: ARG002
        """Count a rank's batch of a shared step."""
        self._trained += self._batch

    def step(self, ms: float) -> None:
        """Note when the gradients were averaged."""
        self.average(ms)

    def average(self, ms: float) -> Sequence[float]:
        """Note when the parameters were averaged."""
        self.averages += 1
        if self._left and self._trained >= self._left[0][1]:
            _, trained, loss, accuracy = self._left.pop(0)
            self.looks.append((ms, int(trained), loss, accuracy))
        return ()


@final
class Replicas(Work):
    """One replica per rank, trained in the order of the clock.

    Args:
        task: What is trained.
        seeds: The seeds that are trained beside each other.
        ranks: Number of ranks.
        lr: Learning rate of every rank.
        order: Which samples a batch has.
        ratios: Parts of the samples of a shared step; None: a batch for each rank.
        equal: Whether replicas count alike in an average, whatever they have trained.
        outer: Makes the outer optimizer of a rank; None: replicas take the average.

    Attributes:
        looks: Time, trained samples, loss and accuracy of rank 0, on the way; means of the seeds.
        averages: Number of averages.
    """

    def __init__(
        self,
        task: Task,
        seeds: Sequence[int],
        ranks: int,
        lr: float,
        order: Order,
        *,
        ratios: Sequence[float] | None = None,
        equal: bool = False,
        outer: Callable[[], OuterOptimizer] | None = None,
    ) -> None:
        self._task, self._order, self._ratios, self._equal = task, order, ratios, equal
        self._data = task.samples()
        first = task.network(seeds)
        self.models = [deepcopy(first) for _ in range(ranks)]
        self._optimizers = [task.optimizer(model.parameters(), lr) for model in self.models]
        # Buffers, and parameters in memory that ranks share, take further exchanges.
        large = sum(parameter.nbytes for parameter in first.parameters()) > 2**19
        self._meeting = Meeting(ranks, nested=not large and not any(True for _ in first.buffers()))
        groups = [VirtualGroup(self._meeting, rank) for rank in range(ranks)]
        self._steppers = [
            StepAverager(model, group, Backend.NCCL)
            for model, group in zip(self.models, groups, strict=True)
        ]
        self._averagers = [
            ParameterAverager(model, group, Backend.NCCL, outer=outer() if outer else None)
            for model, group in zip(self.models, groups, strict=True)
        ]
        self._rounds: list[Round] = []
        self._samples = [0] * ranks
        self._recorders = [SampleRecorder(rank, task.batch) for rank in range(ranks)]
        self._trained = self._looked = 0
        self._budget = task.epochs * task.batches * task.batch
        self.looks: list[tuple[float, int, float, float]] = []
        self.averages = 0

    def close(self) -> None:
        """End the threads of the ranks."""
        self._meeting.close()

    def train(self, rank: int, number: int) -> None:
        """Take a local step."""
        self._backward(rank, [number], 0, self._task.batch)
        self._optimizers[rank].step()
        self._optimizers[rank].zero_grad()

    def gradient(self, rank: int, taken: Spans) -> None:
        """Compute the gradient of a rank's part of a shared step."""
        own, batch = numbers(taken), self._task.batch
        if self._ratios is None:
            self._backward(rank, own[rank : rank + 1], 0, batch)
            return
        start, stop = cut(len(own) * batch, self._ratios)[rank : rank + 2]
        if start < stop:
            self._backward(rank, own, start, stop)

    def step(self, ms: float) -> None:
        """Average the gradients and let every optimizer step."""
        whole = self._task.batch
        weights = [samples / whole for samples in self._samples]
        self._meeting.together(lambda rank: self._steppers[rank].average(weights[rank]))
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self._averaged(ms)

    def average(self, ms: float) -> list[float]:
        """Average the parameters; return the distances from it."""
        weights = self._weights()
        found = self._meeting.together(lambda rank: self._averagers[rank].average(weights[rank]))
        self._averaged(ms)
        return [each.divergence for each in found]

    def start(self) -> None:
        """Take snapshots of all ranks and start to average them."""
        weights = self._weights()
        self._rounds = [
            averager.start(weight)
            for averager, weight in zip(self._averagers, weights, strict=True)
        ]
        self._samples = [0] * len(self.models)

    def land(self, rank: int, ms: float) -> float:
        """Apply the average of the snapshots to a rank."""
        averaged = self._rounds[rank].apply()
        if rank == 0:
            self.averages += 1
            self._look(ms)
        return averaged.divergence

    def ledger_is_complete(self) -> bool:
        """Whether the sample ledger proves that every sample was trained once in every epoch."""
        task = self._task
        facts = LedgerFacts(
            samples=len(self._data.train[1]), batch_size=task.batch, seed=self._order.seed,
            sampler="random", drop_last=True, epochs=task.epochs,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            ledger = SampleLedger(Path(folder, LEDGER), facts)
            ledger.append(task.epochs * task.batches, [each.take() for each in self._recorders])
            found = verify_run(folder)
            return found.proven and found.complete_epochs == task.epochs

    def _backward(self, rank: int, taken: Sequence[int], start: int, stop: int) -> None:
        """Compute the gradients of some samples of the taken batches."""
        rows = self._order.rows(rank, taken, slice(start, stop))
        inputs, targets = self._data.train
        losses = self._task.loss(self.models[rank](inputs[rows]), targets[rows])
        losses.sum().backward()  # type: ignore[no-untyped-call]
        count = stop - start
        self._samples[rank] += count
        self._trained += count
        if not self._order.by_shards:
            epoch, first = divmod(taken[0], self._task.batches)
            place = first * self._task.batch + start
            self._recorders[rank].trained_samples(epoch, place, taken[0], rows[0])

    def _weights(self) -> list[int]:
        return [int(samples > 0) if self._equal else samples for samples in self._samples]

    def _averaged(self, ms: float) -> None:
        self._samples = [0] * len(self.models)
        self.averages += 1
        self._look(ms)

    def _look(self, ms: float) -> None:
        """Judge rank 0, if enough was trained since the last time."""
        if (self._trained - self._looked) * LOOKS < self._budget:
            return
        self._looked = self._trained
        loss, accuracy = judged_by(self._task, self.models[0], self._data.test, self._order.seeds)
        self.looks.append((ms, self._trained, float(loss.mean()), float(accuracy.mean())))
