"""How often, when and by whom samples are read: as the loader of torch reads them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch import Tensor, nn

from flodl import FlowBuilder, Trainer
from flodl.data import Batch, BatchDataSet, DataLoader, DataSet, Sampler, TensorDataSet
from flodl.errors import DataError
from flodl.train import RunDirectory
from tests.flodl.data.sources import orders
from tests.rows import each_row


class Drawing:
    """A map-style data set with a random transform; knows who read what."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.read: list[int] = []
        self.drawn: list[float] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        self.threads.add(threading.current_thread().name)
        value = torch.rand(1)
        self.drawn.append(value.item())
        return value, torch.tensor([float(index)])


class DrawingTogether(Drawing):
    """Has the hook of torch for many samples at once."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.calls = 0

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        self.calls += 1
        return [super(DrawingTogether, self).__getitem__(index) for index in indices]


class DrawingSamples(DataSet):
    """The same as a DataSet of ours."""

    def __init__(self, n: int) -> None:
        self.inner = Drawing(n)

    def __len__(self) -> int:
        return len(self.inner)

    def get(self, index: int) -> Sequence[Tensor]:
        return self.inner[index]


class DrawingBatches(BatchDataSet):
    """The same as a BatchDataSet of ours."""

    def __init__(self, n: int) -> None:
        self.inner = Drawing(n)

    def __len__(self) -> int:
        return len(self.inner)

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        rows = [self.inner[index] for index in indices]
        return [torch.stack(column) for column in zip(*rows, strict=True)]


def drawing(n: int) -> list[tuple[object, Drawing]]:
    """Data sets of every kind that runs code of the user's, with their records."""
    plain, together = Drawing(n), DrawingTogether(n)
    samples, batches = DrawingSamples(n), DrawingBatches(n)
    subset = Drawing(n)
    return [
        (plain, plain),
        (together, together),
        (samples, samples.inner),
        (batches, batches.inner),
        (torch.utils.data.Subset(subset, range(n)), subset),  # type: ignore[arg-type]
    ]


@each_row("kind", range(5))
def test_each_sample_is_read_once_per_epoch_from_the_first_batch_on(kind: int) -> None:
    data, record = drawing(24)[kind]
    loader = DataLoader(data, 4)
    assert record.read == [], "nothing is read before the first batch"
    for epoch in range(3):
        batches = loader.epoch(epoch)
        assert len(record.read) == 24 * epoch
        seen = [next(batches)]
        assert len(record.read) == 24 * epoch + 4, "one batch, and none ahead"
        seen += batches
        assert Counter(record.read) == dict.fromkeys(range(24), epoch + 1)
        values = torch.cat([batch[0] for batch in seen]).flatten().tolist()
        assert values == record.drawn[24 * epoch :]
    assert len(set(record.drawn)) == 24 * 3, "a new draw per sample and epoch"
    assert record.threads == {threading.current_thread().name}


def test_many_samples_are_read_with_the_hook_that_torch_has_for_it() -> None:
    data = DrawingTogether(24)
    orders(DataLoader(data, 4), 0)
    assert data.calls == 6

    class Short(DrawingTogether):
        def __getitems__(self, indices: list[int]) -> Any:
            return super().__getitems__(indices)[1:]

    with pytest.raises(DataError, match=r"Short.__getitems__ was asked for 4 samples and returned"):
        next(DataLoader(Short(8), 4).epoch(0))


def test_reading_ahead_reads_at_most_its_depth_more_and_nothing_twice() -> None:
    data = Drawing(24)
    loader = DataLoader(data, 4, prefetch=2)
    batches = loader.epoch(0)
    assert data.read == []
    next(batches)
    assert len(data.read) <= 4 * (1 + 2 + 1), "delivered, ready, and one in the making"
    list(batches)
    assert Counter(data.read) == dict.fromkeys(range(24), 1)


class InOrder(Sampler):
    """From the first to the last, however the loader is told to shuffle."""

    def indices(self, epoch: int) -> range:  # noqa: ARG002
        return range(12)


class Everywhere(Drawing):
    """Draws from all three generators."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        value, number = super().__getitem__(index)
        return value + random.random() + float(np.random.rand()), number


def noisy_step(model: nn.Module, batch: Batch) -> Tensor:
    """Draws as well, as dropout does."""
    return (model(batch[0]) - batch[1] * torch.rand(())).square().mean()


def model() -> nn.Module:
    return nn.Linear(1, 1)


def plain_torch(seed: int, epochs: int) -> list[float]:
    """The losses of the loop that torch's documentation shows."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    order = torch.utils.data.SequentialSampler(range(12))
    loader = torch.utils.data.DataLoader(
        Everywhere(12),  # type: ignore[arg-type]
        batch_size=4,
        sampler=order,
        generator=torch.Generator(),
    )
    for _ in range(epochs):
        for values, numbers in loader:
            optimizer.zero_grad()
            loss = noisy_step(network, Batch([values, numbers], ["0", "1"]))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_transforms_draw_between_the_draws_of_the_training_as_in_a_plain_loop() -> None:
    losses: list[float] = []

    def step(network: nn.Module, batch: Batch) -> Tensor:
        loss = noisy_step(network, batch)
        losses.append(loss.item())
        return loss

    (
        Trainer.builder(lambda _: model(), lambda p: torch.optim.SGD(p, lr=0.1), step)
        .dataset(Everywhere(12))
        .batch_size(4)
        .num_epochs(3)
        .seed(5)
        .device("cpu")
        .loader_options(sampler=InOrder())
        .engine("eager")
        .run()
    )
    assert losses == plain_torch(5, 3)


def test_a_training_reads_each_sample_once_per_epoch() -> None:
    data = Drawing(10)
    first: list[int] = []

    def step(network: nn.Module, batch: Batch) -> Tensor:
        first.append(len(data.read))
        return noisy_step(network, batch)

    builder = Trainer.builder(lambda _: model(), lambda p: torch.optim.SGD(p, lr=0.1), step)
    builder.dataset(data).batch_size(3).num_epochs(3).device("cpu").engine("eager").run()
    assert first[0] == 3
    assert Counter(data.read) == dict.fromkeys(range(10), 3)
    assert len(set(data.drawn)) == 30


class Scaled(torch.utils.data.TensorDataset):
    """A derived class may read in its own way."""

    def __getitem__(self, index: Any) -> Any:
        return (super().__getitem__(index)[0] * 10,)


class Shifted(TensorDataSet):
    def get_batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:  # type: ignore[misc]
        return tuple(tensor + 1 for tensor in super().get_batch(indices))


@each_row(
    ("data", "resident", "first"),
    [
        (lambda: TensorDataSet(torch.arange(4)), True, [0, 1, 2, 3]),
        (lambda: torch.utils.data.TensorDataset(torch.arange(4)), True, [0, 1, 2, 3]),
        (lambda: np.arange(4), True, [0, 1, 2, 3]),
        (lambda: Scaled(torch.arange(4)), False, [0, 10, 20, 30]),
        (lambda: Shifted(torch.arange(4)), False, [1, 2, 3, 4]),
        (lambda: [0, 1, 2, 3], False, [0, 1, 2, 3]),
    ],
)
def test_only_tensors_and_arrays_stay_in_memory(
    data: Callable[[], object], resident: bool, first: list[int]
) -> None:
    loader = DataLoader(data(), 4, shuffle=False)
    assert loader.is_resident == resident
    assert next(loader.epoch(0))[0].tolist() == first


def test_all_samples_are_read_before_the_first_batch_only_where_it_was_asked_for() -> None:
    data = Drawing(10)
    loader = DataLoader(data, 2, streaming=False)
    assert Counter(data.read) == dict.fromkeys(range(10), 1), "none of them twice"
    orders(loader, 0)
    assert len(data.read) == 10


class StopError(Exception):
    """Ends a training."""


def test_random_transforms_go_on_where_a_training_was_interrupted(tmp_path: Path) -> None:
    def train(folder: Path, *, stop: bool = False, source: Path | None = None) -> Any:
        steps: list[int] = []

        def step(network: nn.Module, batch: Batch) -> Tensor:
            steps.append(1)
            if stop and len(steps) == 7:
                raise StopError
            return noisy_step(network, batch)

        random.seed(1)
        np.random.seed(1)
        builder = Trainer.builder(
            lambda _: model(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5), step
        )
        builder.dataset(Everywhere(12)).batch_size(3).num_epochs(3).device("cpu").engine("eager")
        builder.checkpoint_steps(1).run_dir(RunDirectory.create(folder)).resume(source)
        return [parameter.tolist() for parameter in builder.run().model.parameters()]

    whole = train(tmp_path / "whole")
    with pytest.raises(StopError):
        train(tmp_path / "part", stop=True)
    (last,) = (tmp_path / "part").rglob("last.fdl")
    assert train(tmp_path / "rest", source=last) == whole


class Named(Everywhere):
    """Samples that name their values."""

    def __getitem__(self, index: int) -> Any:
        value, number = super().__getitem__(index)
        return {"x": value, "y": number}


@each_row("graph", [False, True])
def test_a_loop_of_ones_own_reads_nothing_to_learn_the_names(graph: bool) -> None:
    def made() -> Any:
        return FlowBuilder.from_(nn.Linear(1, 1)).build() if graph else nn.Linear(1, 1)

    def loss(context: Any) -> Tensor:
        return nn.functional.mse_loss(context.output, context.batch["y"])

    for name in (None, "x"):
        data = Named(8)
        setup = Trainer.setup(made(), None, lambda p: torch.optim.SGD(p, lr=0.01), device="cpu")
        setup.set_data_loader(DataLoader(data, 4), name)
        setup.set_loss_fn(loss)
        assert data.read == []
        for epoch in range(2):
            for _ in setup.epoch(epoch):
                setup.step()
        assert Counter(data.read) == dict.fromkeys(range(8), 2)
    setup.set_data_loader(DataLoader(Named(8), 4), "z")
    with pytest.raises(KeyError, match="the batch has no 'z'; it has 'x', 'y'"):
        next(setup.epoch(0))
