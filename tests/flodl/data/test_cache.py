"""``cache``: samples come from the data set once, then from memory, as far as there is room."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch, BatchDataSet, DataLoader, Sampler, TensorDataSet
from flodl.data.budget import HostMemory, host_memory
from flodl.data.cache import SampleStore
from flodl.errors import DataError
from tests.flodl.data.sources import Noisy, Numbers, Recorded, orders
from tests.rows import each_row

WAYS: list[dict[str, Any]] = [{}, {"prefetch": 2}, {"workers": 1}]

SAMPLE = 8
"""Bytes of a sample of ``Numbers``."""


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_cached_epochs_are_those_of_the_data_set(way: dict[str, Any]) -> None:
    for room in (True, 9 * SAMPLE, SAMPLE):
        cached = DataLoader(Numbers(23), 4, drop_last=False, join_remainder=True, cache=room, **way)
        plain = DataLoader(Numbers(23), 4, drop_last=False, join_remainder=True)
        for epoch in range(3):
            assert orders(cached, epoch) == orders(plain, epoch)
            assert orders(cached, epoch, 2) == orders(plain, epoch)[2:]
        cached.close()


def test_it_fills_while_the_first_epoch_is_read_and_then_reads_nothing() -> None:
    data = Recorded(20)
    loader = DataLoader(data, 4, cache=True)
    assert data.read == []
    assert not loader.is_resident
    assert loader.cached_samples == 0
    next(loader.epoch(0))
    assert len(data.read) == loader.cached_samples == 4
    orders(loader, 0)
    assert Counter(data.read) == dict.fromkeys(range(20), 1), "what an epoch left was kept"
    for epoch in range(1, 4):
        orders(loader, epoch)
    assert len(data.read) == 20
    assert loader.is_resident


def test_what_does_not_fit_is_read_in_each_epoch() -> None:
    data = Recorded(20)
    loader = DataLoader(data, 4, cache=8 * SAMPLE)
    for _ in range(3):
        orders(loader, 0)
    counts = Counter(data.read)
    assert sorted(counts.values()) == [1] * 8 + [3] * 12
    assert loader.cached_samples == 8
    kept = {sample for batch in orders(loader, 0)[:2] for sample in batch}
    assert {sample for sample, count in counts.items() if count == 1} == kept


def test_a_cached_sample_keeps_what_its_transform_drew() -> None:
    loader = DataLoader(Noisy(8), 4, cache=True)

    def drawn(epoch: int) -> dict[int, float]:
        found: dict[int, float] = {}
        for batch in loader.epoch(epoch):
            found |= dict(zip(batch[0].tolist(), batch[1].tolist(), strict=True))
        return found

    assert drawn(0) == drawn(1) == drawn(2)


def test_parts_of_an_epoch_are_read_once_however_they_are_delivered() -> None:
    data = Recorded(24)
    loader = DataLoader(data, 4, cache=True)
    parts = [loader.deliver(0, 3, 6), loader.deliver_some(0, [1, 2]), loader.deliver(0, 0, 1)]
    for part in parts:
        for rows, batch in part:
            assert batch[0].tolist() == rows.tolist()
    batch = loader.deliver_samples(0, 0, 24)
    assert batch[0].tolist() == [sample for rows in orders(loader, 0) for sample in rows]
    assert Counter(data.read) == dict.fromkeys(range(24), 1)


def test_a_sample_that_a_sampler_draws_twice_is_kept_once() -> None:
    class Twice(Sampler):
        def indices(self, epoch: int) -> list[int]:
            return [0, 0, 1, 1, 0, 2] if epoch == 0 else [5, 4, 3, 2, 1, 0]

    data = Recorded(6)
    loader = DataLoader(data, 3, sampler=Twice(), cache=True)
    assert orders(loader, 0) == [[0, 0, 1], [1, 0, 2]]
    assert not loader.is_resident
    assert orders(loader, 1) == [[5, 4, 3], [2, 1, 0]]
    assert sorted(set(data.read)) == [0, 1, 2, 3, 4, 5]
    read = len(data.read)
    assert orders(loader, 1) == [[5, 4, 3], [2, 1, 0]]
    assert len(data.read) == read


def test_writing_into_a_batch_does_not_change_the_cache() -> None:
    loader = DataLoader(Numbers(4), 4, cache=True)
    for _ in range(3):
        batch = next(loader.epoch(0))[0]
        assert sorted(batch.tolist()) == [0, 1, 2, 3]
        batch.zero_()


def test_samples_of_several_shapes_cannot_be_cached() -> None:
    class Padded(BatchDataSet):
        def __len__(self) -> int:
            return 4

        def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
            return [torch.zeros(len(indices), max(indices) + 1)]

    with pytest.raises(DataError, match="a cache keeps samples of one shape"):
        list(DataLoader(Padded(), 2, shuffle=False, cache=True).epoch(0))


def test_an_epoch_that_is_left_leaves_no_thread() -> None:
    loader = DataLoader(Numbers(40), 2, cache=True, prefetch=3)
    for _ in loader.epoch(0):
        break
    loader.close()
    assert "flodl-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_the_processes_of_a_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HostMemory(lambda: 1000).budget() == 500
    assert HostMemory(lambda: 1000, processes=4).budget() == 125
    assert HostMemory(lambda: 1000, processes=4).holds(125)
    assert not HostMemory(lambda: 1000, processes=4).holds(126)
    assert host_memory().processes == 1
    variables = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert host_memory().processes == 4

    data = Recorded(20)
    loader = DataLoader(data, 4, cache=32 * SAMPLE)
    orders(loader, 0)
    orders(loader, 0)
    assert len(data.read) == 20 + 12, "8 of 32 samples are this rank's part"


def test_samples_of_several_dimensions_are_kept_batch_by_batch() -> None:
    images = torch.arange(18.0).view(3, 2, 3)
    store = SampleStore(3, lambda: 1000)
    store.keep(torch.tensor([2, 0]), [images[[2, 0]]])
    store.keep(torch.tensor([1]), [images[[1]]])
    assert torch.equal(store.gather(torch.tensor([1, 2]))[0], images[[1, 2]])
    assert len(store) == 3
    kept = store.whole()
    assert kept is not None
    assert torch.equal(kept[0], images)


def test_the_budget_is_asked_for_when_the_first_sample_is_there() -> None:
    asked: list[int] = []

    def budget() -> int:
        asked.append(1)
        return 2 * SAMPLE

    store = SampleStore(4, budget)
    assert asked == []
    store.keep(torch.tensor([3, 1]), [torch.tensor([30, 10])])
    store.keep(torch.tensor([0]), [torch.tensor([0])])
    assert asked == [1]
    assert store.lacks(torch.arange(4)).tolist() == [True, False, True, False]
    assert store.gather(torch.tensor([1, 3]))[0].tolist() == [10, 30]
    assert len(store) == 2
    assert store.whole() is None


@each_row(
    ("settings", "complaint"),
    [
        ({"cache": -1}, "cache=-1: it must be an integer of at least 1"),
        ({"cache": True, "streaming": True}, "reads samples again in each epoch; leave out one"),
        ({"cache": True, "streaming": False}, "reads all at once; leave out one"),
    ],
)
def test_settings_that_contradict_a_cache_are_refused(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        DataLoader(Numbers(4), 2, **settings)


def test_tensors_are_in_memory_anyway() -> None:
    assert DataLoader(TensorDataSet(torch.arange(4)), 2, cache=True).is_resident


def test_the_builders_know_it() -> None:
    def step(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0].float().unsqueeze(1)) ** 2).mean()

    def reads(most: bool | int | None) -> int:
        data = Recorded(10)
        builder = Trainer.builder(
            lambda _: nn.Linear(1, 1), lambda p: torch.optim.SGD(p, lr=0.01), step
        )
        builder.dataset(data).batch_size(4).num_epochs(3).device("cpu").engine("eager")
        if most is not None:
            builder.cache(most)
        builder.run()
        return len(data.read)

    assert reads(None) == 30
    assert reads(True) == 10
    assert reads(4 * SAMPLE) == 10 + 6 + 6
    with pytest.raises(ValueError, match="cache=0: it must be an integer of at least 1"):
        reads(0)

    data = Recorded(8)
    built = DataLoader(data, 2, cache=True)
    orders(built, 0)
    orders(built, 1)
    assert len(data.read) == 8
