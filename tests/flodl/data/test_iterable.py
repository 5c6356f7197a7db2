"""Data that can only be iterated: in a loader, and in a Trainer on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch, DataLoader, IterableLoader
from flodl.errors import CheckpointError, DataError
from flodl.train import RunDirectory, TrainerBuilder
from tests.flodl.data.sources import Numbers
from tests.rows import each_row


class Stream(torch.utils.data.IterableDataset[Any]):
    """An IterableDataset of torch."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor([float(i)]), torch.tensor([2.0 * i])) for i in range(self.n))


class Streamed:
    """What a streamed data set of the ``datasets`` library does."""

    def __init__(self, n: int) -> None:
        self.n, self.epochs = n, list[int]()

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        first = self.epochs[-1]
        return ({"x": [float(first + i)], "y": 2 * i} for i in range(self.n))


def samples(n: int) -> Iterator[Any]:
    """A generator function, once its argument is bound."""
    for i in range(n):
        yield torch.tensor([float(i)]), torch.tensor([2.0 * i])


def values(loader: IterableLoader, epoch: int = 0) -> list[list[float]]:
    return [batch[0].flatten().tolist() for batch in loader.epoch(epoch)]


@each_row("source", [Stream(7), partial(samples, 7), lambda: samples(7), lambda: list(samples(7))])
def test_samples_become_batches_in_their_order(source: object) -> None:
    for epoch in range(2):
        loader = IterableLoader(source, 3, drop_last=False)
        assert values(loader, epoch) == [[0, 1, 2], [3, 4, 5], [6]]
    assert values(IterableLoader(source, 3)) == [[0, 1, 2], [3, 4, 5]]
    joined = IterableLoader(source, 3, drop_last=False, join_remainder=True)
    assert values(joined) == values(joined, 1) == [[0, 1, 2], [3, 4, 5, 6]]
    assert loader.num_batches is None
    assert loader.names == ("0", "1")


@each_row(
    ("n", "size", "expected"),
    [(1, 3, [1]), (2, 3, [2]), (4, 3, [4]), (5, 3, [3, 2]), (6, 3, [3, 3]), (3, 1, [1, 1, 1])],
)
def test_a_single_sample_joins_as_it_does_for_samples_with_numbers(
    n: int, size: int, expected: list[int]
) -> None:
    loader = IterableLoader(partial(samples, n), size, drop_last=False, join_remainder=True)
    assert [batch.batch_size for batch in loader.epoch(0)] == expected
    known = DataLoader(Numbers(n), size, drop_last=False, join_remainder=True)
    assert [batch.batch_size for batch in known.epoch(0)] == expected


def test_a_streamed_data_set_is_told_each_epoch_and_names_its_fields() -> None:
    data = Streamed(4)
    loader = IterableLoader(data, 2)
    assert loader.names is None
    batches = list(loader.epoch(3))
    assert [batch["x"].tolist() for batch in batches] == [[[3], [4]], [[5], [6]]]
    assert [batch["y"].tolist() for batch in batches] == [[0, 2], [4, 6]]
    assert dict(batches[0])["y"].tolist() == [0, 2]
    list(loader.epoch(4))
    assert data.epochs == [3, 4]


def test_a_state_continues_with_the_epoch_after_it() -> None:
    def following(loader: IterableLoader) -> list[list[float]]:
        return [batch["x"].flatten().tolist() for batch in loader]

    first, used, fresh = (IterableLoader(Streamed(4), 2) for _ in range(3))
    used.load_state_dict(first.state_dict())
    assert following(used) == following(first) == [[0, 1], [2, 3]]
    assert following(first) == [[1, 2], [3, 4]]
    for again in (used, fresh):
        again.load_state_dict(first.state_dict())
        assert following(again) == [[2, 3], [4, 5]]


def test_the_batches_of_a_loader_of_torch_are_taken_as_they_are() -> None:
    drawn: list[int] = []

    class Told(torch.utils.data.Sampler[int]):
        def set_epoch(self, epoch: int) -> None:
            drawn.append(epoch)

        def __iter__(self) -> Iterator[int]:
            return iter([4, 2, 0, 1, 3])

        def __len__(self) -> int:
            return 5

    def collate(rows: list[int]) -> dict[str, Tensor]:
        return {"n": torch.tensor(rows), "mask": torch.ones(len(rows), max(rows))}

    made = torch.utils.data.DataLoader(
        range(5),  # type: ignore[arg-type]
        batch_size=2,
        sampler=Told(),
        collate_fn=collate,
    )
    loader = IterableLoader(made)
    assert (loader.batch_size, loader.num_batches) == (2, 3)
    batches = list(loader.epoch(1))
    assert [batch["n"].tolist() for batch in batches] == [[4, 2], [0, 1], [3]]
    assert [list(batch["mask"].shape) for batch in batches] == [[2, 4], [2, 1], [1, 3]]
    assert drawn == [1]

    dropping = torch.utils.data.DataLoader(Numbers(5), batch_size=2, drop_last=True)  # type: ignore[arg-type]
    assert values(IterableLoader(dropping)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match=r"drop_last=True: the DataLoader decides"):
        IterableLoader(dropping, drop_last=True)


def test_a_shuffling_loader_of_torch_draws_what_it_draws_in_a_plain_loop() -> None:
    def made() -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(Numbers(9), batch_size=2, shuffle=True)  # type: ignore[arg-type]

    torch.manual_seed(3)
    plain = [[batch[0].tolist() for batch in made()] for _ in range(2)]
    torch.manual_seed(3)
    loader = IterableLoader(made())
    assert [values(loader, epoch) for epoch in range(2)] == plain


def test_what_is_not_such_data_and_malformed_samples_are_refused() -> None:
    with pytest.raises(TypeError, match="Numbers is not data that can only be iterated"):
        IterableLoader(Numbers(4), 2)
    with pytest.raises(ValueError, match="batch_size=None: it must be an integer of at least 1"):
        IterableLoader(Stream(4))
    with pytest.raises(TypeError, match="the function given as a data set returned a int"):
        list(IterableLoader(lambda: 7, 2).epoch(0))
    with pytest.raises(DataError, match="sample 1 of the epoch has 1 tensors and sample 0 of the"):
        list(IterableLoader(lambda: iter([(1, 2), (1,)]), 2).epoch(0))
    with pytest.raises(DataError, match="field 0 of sample 0 of the epoch is a str"):
        list(IterableLoader(lambda: iter(["a", "b"]), 2).epoch(0))
    with pytest.raises(DataError, match=r"start_batch=2 of epoch 1: .*cannot be resumed inside"):
        IterableLoader(Stream(4), 2).epoch(1, 2)


def test_an_iterator_that_was_gone_through_says_so_in_the_second_epoch() -> None:
    once = samples(4)
    loader = IterableLoader(once, 2)
    assert len(values(loader)) == 2
    with pytest.raises(DataError, match=r"generator gave no batch in epoch 1 .*pass a function"):
        values(loader, 1)


def test_batches_are_read_when_they_are_asked_for() -> None:
    read: list[int] = []

    def watched() -> Iterator[int]:
        for i in range(9):
            read.append(i)
            yield i

    epoch = IterableLoader(watched, 2).epoch(0)
    assert read == []
    next(epoch)
    assert read == [0, 1]
    assert epoch.ahead(2) == 2
    assert read == [0, 1, 2, 3, 4, 5]
    assert epoch.ahead(9) == 3, "the incomplete last batch is left out"
    assert len(list(epoch)) == 3
    assert (epoch.batch, epoch.samples) == (4, 8)


# --- Trainer ------------------------------------------------------------------------------------


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch[0] / 10), batch[1] / 10)


def training(data: object, seen: list[list[float]] | None = None) -> TrainerBuilder:
    def step(model: nn.Module, batch: Batch) -> Tensor:
        if seen is not None:
            seen.append(batch[0].flatten().tolist())
        return squared(model, batch)

    builder = Trainer.builder(
        lambda _: nn.Linear(1, 1), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), step
    )
    return builder.dataset(data).num_epochs(2).device("cpu").engine("eager")


@each_row(
    "source",
    [
        Stream(7),
        partial(samples, 7),
        lambda: samples(7),
        torch.utils.data.DataLoader(Stream(7), batch_size=None),
    ],
)
def test_a_trainer_trains_on_them_in_their_order(source: object) -> None:
    seen: list[list[float]] = []
    builder = training(source, seen)
    if isinstance(source, torch.utils.data.DataLoader):
        builder.run()
        assert seen == [[float(i)] for i in range(7)] * 2
        return
    builder.batch_size(3).run()
    assert seen == [[0, 1, 2], [3, 4, 5, 6]] * 2


def plain_loop(loader: Any, accumulate: int = 1) -> list[float]:
    """Weights of a plain loop over the batches of a loader of torch."""
    torch.manual_seed(42)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        batches = [Batch(batch, ["0", "1"]) for batch in loader]
        for at in range(0, len(batches), accumulate):
            group = batches[at : at + accumulate]
            optimizer.zero_grad()
            for batch in group:
                (squared(model, batch) / len(group)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [parameter.item() for parameter in model.parameters()]


class Pairs(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)]), torch.tensor([2.0 * index])


@each_row("accumulate", [1, 3])
@each_row("data", [Pairs(), Stream(10)], ids=["map-style", "iterable"])
def test_a_trainer_over_a_loader_of_torch_is_the_plain_loop(data: Any, accumulate: int) -> None:
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    builder = training(loader)
    trained = builder.accumulate(accumulate).run()
    weights = [parameter.item() for parameter in trained.model.parameters()]
    assert weights == pytest.approx(plain_loop(loader, accumulate), rel=1e-6)


def test_metrics_count_the_samples_that_came() -> None:
    history = training(partial(samples, 7)).batch_size(3).run().poll_metrics()
    assert history
    for metrics in history:
        assert metrics.throughput * metrics.epoch_ms == pytest.approx(7)


def test_two_batch_sizes_are_refused_with_both() -> None:
    loader = torch.utils.data.DataLoader(Pairs(), batch_size=4)
    with pytest.raises(
        ValueError, match=r"batch_size=8, but the torch DataLoader has batch_size=4"
    ):
        training(loader).batch_size(8).run()
    training(loader).batch_size(4).run()
    with pytest.raises(
        ValueError, match=r"batch_size=8, but the torch DataLoader makes batches of"
    ):
        training(torch.utils.data.DataLoader(Stream(4), batch_size=None)).batch_size(8).run()
    with pytest.raises(ValueError, match=r"needs \.batch_size\(…\) before \.run\(\)"):
        training(Stream(4)).run()


def test_a_generator_with_several_epochs_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        ValueError,
        match=r"is a generator, which can be iterated only once, but num_epochs=2: pass the "
        r"function that makes it and not its result, \.dataset\(samples\)",
    ):
        training(samples(4)).batch_size(2).run()
    seen: list[list[float]] = []
    training(samples(4), seen).batch_size(2).num_epochs(1).run()
    assert seen == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda b: b.cache(), r"\.cache\(\) keeps samples by their numbers, and those of a Stream"),
        (lambda b: b.loader_options(shuffle=True), r"loader_options\(shuffle=…\) needs samples"),
        (lambda b: b.loader_options(workers=2), r"loader_options\(workers=…\) needs samples"),
        (
            lambda b: b.checkpoint_steps(1),
            "checkpoint_steps=1 .*a Stream, and data that can only be iterated cannot be resumed",
        ),
    ],
)
def test_what_needs_samples_with_numbers_is_refused(
    change: Callable[[TrainerBuilder], TrainerBuilder], complaint: str, tmp_path: Path
) -> None:
    builder = training(Stream(4)).batch_size(2).run_dir(RunDirectory.create(tmp_path))
    with pytest.raises(ValueError, match=complaint):
        change(builder).run()


def test_a_loader_of_samples_with_numbers_is_refused_with_its_data_set_as_the_remedy() -> None:
    loader = torch.utils.data.DataLoader(Pairs(), batch_size=2)
    with pytest.raises(ValueError, match=r"\.dataset\(loader\.dataset\)"):
        training(loader).cache().run()


class StopError(Exception):
    """Ends a training."""


def resumable(data: object, folder: Path, epochs: int, *, stop: bool = False) -> Any:
    """A training that keeps checkpoints, and may be interrupted in its second epoch."""
    steps: list[int] = []

    def step(model: nn.Module, batch: Batch) -> Tensor:
        steps.append(1)
        if stop and len(steps) == 4:
            raise StopError
        return squared(model, batch) * torch.rand(())

    builder = Trainer.builder(
        lambda _: nn.Linear(1, 1), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), step
    )
    run = RunDirectory.create(folder)
    return builder.dataset(data).num_epochs(epochs).device("cpu").engine("eager").run_dir(run)


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_resume_at_the_end_of_an_epoch_is_exact(tmp_path: Path, own_generator: bool) -> None:
    def loader() -> torch.utils.data.DataLoader[Any]:
        generator = torch.Generator().manual_seed(9) if own_generator else None
        return torch.utils.data.DataLoader(Pairs(), batch_size=4, shuffle=True, generator=generator)

    whole = resumable(loader(), tmp_path / "whole", 3).run()
    with pytest.raises(StopError):
        resumable(loader(), tmp_path / "part", 3, stop=True).run()
    (last,) = (tmp_path / "part").rglob("last.fdl")
    rest = resumable(loader(), tmp_path / "rest", 3).resume(last).run()
    assert [p.item() for p in rest.model.parameters()] == [
        p.item() for p in whole.model.parameters()
    ]


def test_the_data_of_a_checkpoint_are_not_mistaken_for_others(tmp_path: Path) -> None:
    resumable(Stream(6), tmp_path / "first", 1).batch_size(3).run()
    (last,) = (tmp_path / "first").rglob("last.fdl")
    with pytest.raises(CheckpointError, match="give the Trainer the data it was given before"):
        resumable(Pairs(), tmp_path / "second", 2).batch_size(3).resume(last).run()


def test_ctrl_c_inside_an_epoch_leaves_the_checkpoint_of_the_last_whole_one(
    tmp_path: Path,
) -> None:
    import os
    import signal

    from flodl.checkpoint.training import TrainingFile

    steps: list[int] = []

    def step(model: nn.Module, batch: Batch) -> Tensor:
        steps.append(1)
        if len(steps) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return squared(model, batch)

    builder = Trainer.builder(lambda _: nn.Linear(1, 1), lambda p: torch.optim.SGD(p, 0.05), step)
    builder.dataset(Stream(6)).batch_size(2).num_epochs(3).device("cpu").engine("eager")
    with pytest.raises(KeyboardInterrupt, match=r"stopped after 1 complete epoch and 1 step"):
        builder.run_dir(RunDirectory.create(tmp_path)).run()
    (last,) = tmp_path.rglob("last.fdl")
    assert list(TrainingFile.open(last).value("position")) == [1, 0, 3]
