"""Parts of an epoch for several consumers, and a remainder that joins the batch before it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from flodl.data import Batch, DataLoader, Sampler, TensorDataSet
from flodl.errors import DataError, StateError
from tests.flodl.data.sources import Noisy, Numbers, Recorded, Whole, orders
from tests.rows import each_row

MODES: list[dict[str, Any]] = [
    {},
    {"streaming": True},
    {"streaming": True, "prefetch": 0},
    {"streaming": True, "prefetch": 3},
]


def numbers(delivery: Iterator[tuple[Tensor, Batch]]) -> list[list[int]]:
    """The samples of each batch; the rows beside them must say the same."""
    found = []
    for rows, batch in delivery:
        assert (rows.dtype, rows.device.type) == (torch.int64, "cpu")
        assert batch[0].tolist() == rows.tolist()
        found.append(rows.tolist())
    return found


@st.composite
def partitions(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """A loader's shape, and its epoch cut into parts that are asked for in some order."""
    shape = {
        "n": draw(st.integers(1, 40)),
        "batch_size": draw(st.integers(1, 9)),
        "drop_last": draw(st.booleans()),
        "join_remainder": draw(st.booleans()),
    }
    full, rest = divmod(shape["n"], shape["batch_size"])
    joins = shape["join_remainder"] and rest == 1 and full > 0
    batches = full + int(rest > 0 and not shape["drop_last"] and not joins)
    cuts = sorted({0, batches, *draw(st.lists(st.integers(0, batches), max_size=6))})
    return shape, draw(st.permutations(list(pairwise(cuts))))


@pytest.mark.filterwarnings("ignore:batch_size=.* is larger than the data set")
@settings(max_examples=150, derandomize=True)
@given(partition=partitions(), mode=st.sampled_from(MODES), epoch=st.integers(0, 3))
def test_every_partition_of_an_epoch_is_the_epoch(
    partition: tuple[dict[str, Any], list[tuple[int, int]]], mode: dict[str, Any], epoch: int
) -> None:
    shape, parts = partition
    n = shape.pop("n")
    loader = DataLoader(Whole(n), shape.pop("batch_size"), **shape, **mode)
    whole = orders(loader, epoch)
    assert len(whole) == loader.num_batches
    state = loader.state_dict()
    delivered = {part: numbers(loader.deliver(epoch, *part)) for part in parts}
    assert [batch for part in sorted(delivered) for batch in delivered[part]] == whole
    assert [loader.rows(epoch, i).tolist() for i in range(len(whole))] == whole
    assert loader.state_dict() == state
    loader.close()


def test_worker_processes_draw_for_each_batch_what_the_whole_epoch_draws() -> None:
    def values(batches: Iterator[Batch]) -> list[list[float]]:
        return [list(batch[0].tolist()) for batch in batches]

    class Both(Noisy):
        def get(self, index: int) -> list[Tensor]:
            number, noise = super().get(index)
            return [torch.stack([number.to(torch.float32), noise])]

    loader = DataLoader(Both(11), 2, drop_last=False, join_remainder=True, workers=1)
    whole = values(loader.epoch(3))
    parts = {
        part: values(batch for _, batch in loader.deliver(3, *part)) for part in [(3, 5), (0, 3)]
    }
    assert parts[0, 3] + parts[3, 5] == whole
    part = loader.deliver_samples(3, 2, 5)[0]
    assert part[:, 0].tolist() == [row[0] for batch in whole for row in batch][2:5]
    assert torch.equal(part, loader.deliver_samples(3, 2, 5)[0])
    # Samples draw other numbers than whole batches, in this epoch and in the next.
    drawn = [loader.deliver_samples(3, 0, 2)[0][:, 1].tolist()]
    for epoch in (3, 4):
        drawn += [batch[0][:, 1].tolist() for _, batch in loader.deliver(epoch, 0, 1)]
    assert len(drawn) == 3
    assert all(drawn.count(one) == 1 for one in drawn)
    loader.close()


def test_a_delivery_reads_nothing_behind_it() -> None:
    data = Recorded(40)
    loader = DataLoader(data, 2, streaming=True, prefetch=8)
    data.read.clear()
    part = numbers(loader.deliver(0, 5, 8))
    assert data.read == [sample for batch in part for sample in batch]
    loader.close()


def test_a_delivery_that_is_closed_reads_no_more_and_leaves_the_loader_usable() -> None:
    data = Recorded(40)
    loader = DataLoader(data, 2, streaming=True, prefetch=1)
    data.read.clear()
    delivery = loader.deliver(0, 0, 20)
    next(delivery)
    delivery.close()  # type: ignore[attr-defined]
    after = numbers(loader.deliver(0, 18, 20))
    # At most what was in the making when it was closed came in between.
    assert data.read[-4:] == [sample for batch in after for sample in batch]
    assert len(data.read) <= 2 * 4 + 4
    loader.close()


def test_several_deliveries_run_side_by_side() -> None:
    loader = DataLoader(Whole(24), 2, streaming=True)
    whole = orders(loader, 0)
    pairs = zip(loader.deliver(0, 0, 6), loader.deliver(0, 6, 12), strict=True)
    sides = [(first[0].tolist(), second[0].tolist()) for first, second in pairs]
    assert [first for first, _ in sides] + [second for _, second in sides] == whole
    loader.close()


def test_a_closed_loader_says_so_in_the_middle_of_a_delivery() -> None:
    loader = DataLoader(Whole(40), 2, streaming=True, prefetch=1)
    delivery = loader.deliver(0, 0, 20)
    next(delivery)
    loader.close()
    with pytest.raises(StateError, match="the loader was closed in the middle of this epoch"):
        list(delivery)


@each_row("mode", MODES, ids=str)
def test_samples_of_an_epoch_make_a_batch_of_their_own(mode: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(11), 3, drop_last=False, **mode)
    order = [sample for batch in orders(loader, 2) for sample in batch]
    assert loader.deliver_samples(2, 4, 11)[0].tolist() == order[4:11]
    assert loader.deliver_samples(2, 0, 1).batch_size == 1
    loader.close()


def test_parts_outside_of_an_epoch_are_refused() -> None:
    loader = DataLoader(Numbers(10), 3)
    with pytest.raises(ValueError, match="batches 2 to 4 are outside of an epoch of 3 batches"):
        loader.deliver(0, 2, 4)
    with pytest.raises(ValueError, match="batches 3 to 4 are outside"):
        loader.rows(0, 3)
    with pytest.raises(ValueError, match="samples 8 to 10 are outside of an epoch of 9 samples"):
        loader.deliver_samples(0, 8, 10)
    with pytest.raises(ValueError, match="samples 4 to 4 is an empty range"):
        loader.deliver_samples(0, 4, 4)
    assert list(loader.deliver(0, 2, 2)) == []


def test_the_order_of_an_epoch_is_asked_for_once() -> None:
    class Counted(Sampler):
        asked: list[int] = []  # noqa: RUF012 - one sampler

        def indices(self, epoch: int) -> list[int]:
            self.asked.append(epoch)
            return list(range(6))

    sampler = Counted()
    loader = DataLoader(Numbers(6), 2, sampler=sampler)
    for epoch in (0, 1, 0, 1):
        for number in range(3):
            list(loader.deliver(epoch, number, number + 1))
            loader.rows(epoch, number)
    assert sampler.asked == [0, 1]
    # Two orders are kept. The one that was used last stays when another is added.
    for epoch in (0, 2, 0):
        loader.rows(epoch, 0)
    assert sampler.asked == [0, 1, 2]


def test_a_restored_seed_decides_the_order_of_deliveries_too() -> None:
    loader, other = DataLoader(Numbers(30), 3, seed=1), DataLoader(Numbers(30), 3, seed=2)
    loader.rows(0, 0)
    loader.load_state_dict(other.state_dict())
    assert numbers(loader.deliver(0, 0, 10)) == orders(other, 0)


def test_a_last_batch_of_one_sample_joins_the_one_before_it() -> None:
    def sizes(n: int, batch_size: int, **options: Any) -> list[int]:
        loader = DataLoader(Numbers(n), batch_size, join_remainder=True, **options)
        found = [batch.batch_size for batch in loader.epoch(0)]
        assert len(found) == loader.num_batches
        counted = [loader.samples_in(batches) for batches in range(len(found) + 1)]
        assert counted == list(accumulate(found, initial=0))
        return found

    assert sizes(10, 3, drop_last=False) == [3, 3, 4]
    assert sizes(11, 3, drop_last=False) == [3, 3, 3, 2]
    assert sizes(9, 3, drop_last=False) == [3, 3, 3]
    assert sizes(1, 3, drop_last=False) == [1]
    assert sizes(3, 1, drop_last=False) == [1, 1, 1]
    assert sizes(10, 3, drop_last=True) == [3, 3, 3]


def test_a_joined_remainder_belongs_to_the_state() -> None:
    def make(join: bool) -> DataLoader:
        return DataLoader(Numbers(10), 3, drop_last=False, join_remainder=join)

    loader = make(True)
    batches = loader.epoch(0)
    next(batches)
    state = loader.state_dict()
    resumed = make(True)
    resumed.load_state_dict(state)
    assert [batch.batch_size for batch in resumed.epoch(0)] == [3, 4]
    with pytest.raises(DataError, match="saved with join_remainder=True and this loader has join"):
        make(False).load_state_dict(state)
    with pytest.raises(DataError, match="saved with join_remainder=False and this loader has"):
        make(True).load_state_dict(make(False).state_dict())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_short_deliveries_of_a_resident_data_set_never_wait_for_the_gpu() -> None:
    loader = DataLoader(Numbers(40), 3, device="cuda", drop_last=False, join_remainder=True)
    loader.rows(0, 0)  # brings the order of the epoch to the device
    torch.cuda.set_sync_debug_mode("error")
    try:
        parts = [list(loader.deliver(0, start, start + 1)) for start in range(13)]
        whole = loader.deliver_samples(0, 0, 40)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    seen = [batch[0] for part in parts for _, batch in part]
    assert torch.equal(torch.cat(seen), whole[0])
    assert [len(batch) for batch in seen] == [3] * 12 + [4]


@each_row("streaming", [False, True])
def test_batches_that_do_not_follow_each_other_are_those_of_the_epoch(streaming: bool) -> None:
    data = torch.arange(33)
    loader = DataLoader(
        TensorDataSet(data), 4, drop_last=False, join_remainder=True, streaming=streaming
    )
    whole = [batch[0].tolist() for batch in loader.epoch(2)]
    some = [(rows.tolist(), batch[0].tolist()) for rows, batch in loader.deliver_some(2, [1, 4, 7])]
    assert some == [(whole[number], whole[number]) for number in (1, 4, 7)]
    assert len(whole[7]) == 5
    with pytest.raises(ValueError, match="ascend"):
        loader.deliver_some(2, [4, 1])
    loader.close()
