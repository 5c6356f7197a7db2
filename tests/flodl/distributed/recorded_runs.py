"""Run directories with a record of samples, as ranks of unequal speed leave them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flodl.data.sampler import RandomSampler, SequentialSampler
from flodl.ranks.sample_ledger import LedgerFacts, SampleLedger, SampleRecorder
from flodl.train.run.loop_state import Position
from flodl.train.run.part_states import Parts
from flodl.train.run.training_state import TrainingState

DEFAULT = LedgerFacts(
    samples=1003, batch_size=16, seed=7, sampler="random", drop_last=False, epochs=3
)


@dataclass
class RecordedRun:
    """A folder, and what its record ends with."""

    path: Path
    facts: LedgerFacts
    mark: dict[str, Any]

    @property
    def ledger(self) -> Path:
        return self.path / "samples.ledger"


def windows(batches: int, ranks: int, seed: int) -> Iterator[list[tuple[int, int]]]:
    """Cut an epoch into windows of one lease per rank: of about 5, 2, 1 … batches."""
    chance = random.Random(seed)
    at = 0
    while at < batches:
        leases = []
        for rank in range(ranks):
            stop = min(batches, at + chance.randint(0, max(1, 5 // (rank + 1))))
            leases.append((at, stop))
            at = stop
        yield leases


def order_of(facts: LedgerFacts, epoch: int) -> torch.Tensor:
    if facts.sampler == "random":
        return RandomSampler(facts.samples, facts.seed).indices(epoch)
    return SequentialSampler(facts.samples).indices(epoch)


def rows_of(facts: LedgerFacts, epoch: int, batch: int) -> torch.Tensor:
    """Sample numbers of a batch; the last one takes what is left."""
    start = batch * facts.batch_size
    stop = start + facts.batch_size if batch < facts.batches - 1 else facts.used
    return order_of(facts, epoch)[start:stop]


def train_epoch(
    ledger: SampleLedger, facts: LedgerFacts, epoch: int, ranks: int, *, stop: int | None = None
) -> None:
    """Record an epoch, or its first ``stop`` windows, appending every few windows."""
    recorders = [SampleRecorder(rank, facts.batch_size) for rank in range(ranks)]
    position = epoch * facts.batches
    for index, leases in enumerate(windows(facts.batches, ranks, facts.seed + epoch)):
        if index == stop:
            break
        for recorder, (first, last) in zip(recorders, leases, strict=True):
            for batch in range(first, last):
                numbers = rows_of(facts, epoch, batch)
                recorder.trained_samples(epoch, batch * facts.batch_size, position, numbers)
        position = epoch * facts.batches + leases[-1][1]
        if index % 7 == 6:
            ledger.append(position, [recorder.take() for recorder in recorders])
    ledger.append(position, [recorder.take() for recorder in recorders])


def write_record(path: Path, **entries: Any) -> None:
    (path / "run.json").write_text(json.dumps({"state": "complete", **entries}))


def write_checkpoint(path: Path, mark: dict[str, Any], epochs: int) -> None:
    """Write a ``last.fdl`` that keeps the mark beside tensors."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    extra = {"distributed": {"ledger": mark, "moments": torch.zeros(3)}}
    state = TrainingState.capture(
        Parts(model=model, optimizer=optimizer, extra=extra), Position(epochs, 0, 0)
    )
    state.write(path / "last.fdl")


def recorded_run(
    path: Path, facts: LedgerFacts = DEFAULT, *, ranks: int = 3, vouched: bool = True
) -> RecordedRun:
    """A complete run."""
    path.mkdir(parents=True, exist_ok=True)
    ledger = SampleLedger(path / "samples.ledger", facts)
    for epoch in range(facts.epochs):
        train_epoch(ledger, facts, epoch, ranks)
    mark = ledger.mark()
    write_record(path, epochs=facts.epochs, **({"ledger": mark} if vouched else {}))
    if vouched:
        write_checkpoint(path, mark, facts.epochs)
    return RecordedRun(path, facts, mark)
