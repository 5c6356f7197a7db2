from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.utils.data
from torch import Tensor

from flodl.data import BatchDataSet, DataLoader, DataSet, TensorDataSet
from flodl.errors import DataError
from tests.rows import each_row


class Squares(DataSet):
    """Sample i is (i, i²)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def get(self, index: int) -> Sequence[Tensor]:
        return torch.tensor([index], dtype=torch.uint8), torch.tensor(index**2)


class SquaresAtOnce(BatchDataSet):
    names = ("number", "square")

    def __len__(self) -> int:
        return 10

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        rows = torch.tensor(indices)
        return rows, rows**2


class Items(torch.utils.data.Dataset[object]):
    """A map-style data set of torch over whatever it is given."""

    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        return self.items[index]


@pytest.mark.case("runtime", 62)
def test_number_and_size_of_batches() -> None:
    data = TensorDataSet(torch.arange(10))
    assert len(list(DataLoader(data, 3).epoch(0))) == DataLoader(data, 3).num_batches == 3

    loader = DataLoader(data, 3, drop_last=False)
    assert loader.num_batches == 4
    assert [b[0].shape[0] for b in loader.epoch(0)] == [3, 3, 3, 1]

    with pytest.warns(UserWarning, match=r"batch_size=20 is larger than the data set \(10"):
        loader = DataLoader(data, 20)
    assert loader.num_batches == 0
    assert list(loader.epoch(0)) == []

    with pytest.raises(ValueError, match="batch_size=0: it must be an integer of at least 1"):
        DataLoader(data, 0)


def test_a_short_data_set_is_one_batch_when_nothing_is_dropped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(TensorDataSet(torch.arange(10)), 20, drop_last=False)
    assert [b.batch_size for b in loader.epoch(0)] == [10]


def test_the_length_of_an_epoch_counts_what_is_still_to_come() -> None:
    batches = DataLoader(Squares(10), 3).epoch(0)
    assert len(batches) == 3
    next(batches)
    assert len(batches) == 2
    assert len(list(batches)) == 2
    assert len(batches) == 0


def test_an_epoch_can_start_in_the_middle() -> None:
    loader = DataLoader(Squares(10), 3, drop_last=False)
    whole = [b[1].tolist() for b in loader.epoch(5)]
    assert [b[1].tolist() for b in loader.epoch(5, start_batch=2)] == whole[2:]
    assert list(loader.epoch(5, start_batch=4)) == []
    for outside in (-1, 5):
        with pytest.raises(ValueError, match=f"start_batch={outside} is outside of an epoch of 4"):
            loader.epoch(5, start_batch=outside)


def test_a_for_loop_over_the_loader_goes_through_successive_epochs() -> None:
    loader = DataLoader(Squares(10), 5)
    loops = [[b[1].tolist() for b in loader] for _ in range(3)]
    assert loops == [[b[1].tolist() for b in loader.epoch(e)] for e in range(3)]
    assert len(loader) == 2


def test_data_sets_of_every_kind_give_the_same_batches() -> None:
    numbers = torch.arange(10)
    sources: list[object] = [
        Squares(10),
        SquaresAtOnce(),
        TensorDataSet(numbers, numbers**2),
        torch.utils.data.TensorDataset(numbers, numbers**2),
        Items(*[(i, i**2) for i in range(10)]),
        [(i, i**2) for i in range(10)],
    ]
    orders = [[b[1].tolist() for b in DataLoader(source, 4, seed=3).epoch(1)] for source in sources]
    assert [len(batch) for batch in orders[0]] == [4, 4]
    assert all(order == orders[0] for order in orders)


def test_fields_keep_dtype_and_shape_and_belong_together() -> None:
    batches = list(DataLoader(Squares(10), 5).epoch(0))
    assert len(batches) == 2
    for batch in batches:
        assert (batch[0].dtype, batch[0].shape) == (torch.uint8, (5, 1))
        assert torch.equal(batch[0].long().squeeze(1) ** 2, batch[1])


def test_writing_into_a_batch_does_not_change_the_data() -> None:
    data = TensorDataSet(torch.ones(4))
    loader = DataLoader(data, 4)
    next(loader.epoch(0))[0].zero_()
    assert next(loader.epoch(0))[0].tolist() == [1, 1, 1, 1]


def test_names_come_from_the_caller_or_the_data_set_or_are_numbers() -> None:
    loader = DataLoader(Squares(4), 1)
    assert loader.names is None, "nothing is read to learn them"
    assert next(loader.epoch(0)).names == loader.names == ("0", "1")
    assert DataLoader(SquaresAtOnce(), 1).names == ("number", "square")
    assert DataLoader(SquaresAtOnce(), 1, names=["x", "y"]).names == ("x", "y")
    samples = Items({"image": torch.zeros(2), "label": 1}, {"image": torch.zeros(2), "label": 0})
    loader = DataLoader(samples, 2, shuffle=False)
    assert next(loader.epoch(0))["label"].tolist() == [1, 0]
    assert loader.names == ("image", "label")


@each_row(
    ("names", "complaint"),
    [(["x"], "has 2 tensors"), ("xy", "one string"), (["x", "x"], "a name of its own")],
)
def test_names_that_do_not_fit_are_refused(names: Sequence[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        next(DataLoader(Squares(4), 1, names=names).epoch(0))


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="Squares\\) is empty"):
        DataLoader(Squares(0), 1)


@each_row("batch_size", [-1, 1.5, True, "4"])
def test_a_batch_size_that_is_no_count_is_refused(batch_size: int) -> None:
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        DataLoader(Squares(4), batch_size)


def test_counts_of_numpy_are_counts() -> None:
    loader = DataLoader(Squares(4), np.int64(2), seed=np.uint8(7))  # type: ignore[arg-type]
    state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert loader.num_batches == 2


@each_row("seed", [None, 1.5, "42", 1 << 63])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed=.*: it must be an integer"):
        DataLoader(Squares(4), 2, seed=seed)


@each_row(
    ("items", "complaint"),
    [
        ([(1, 2), (1, 2), (1,)], "sample 2 has 1 tensors and sample 0 has 2"),
        ([torch.zeros(2), torch.zeros(3)], r"sample 1 is \[3\] torch.float32.*pad or crop"),
        ([torch.zeros(2), torch.zeros(2).long()], r"sample 1 is \[2\] torch.int64"),
        ([object(), object()], "field 0 of sample 0 is a object; return tensors"),
        ([(), ()], "sample 0 has no tensor at all"),
    ],
)
def test_malformed_samples_are_refused(items: list[object], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        next(DataLoader(Items(*items), len(items), shuffle=False).epoch(0))


def test_malformed_batches_are_refused() -> None:
    class Growing(BatchDataSet):
        def __len__(self) -> int:
            return 4

        def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
            return [torch.zeros(len(indices))] * len(indices)

    class Short(Growing):
        def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
            return [torch.zeros(len(indices[:1]))]

    with pytest.raises(DataError, match=r"samples 1 to 3 has 3 tensors, an earlier one had 1"):
        DataLoader(Growing(), 1, streaming=False)
    with pytest.raises(DataError, match=r"samples 3 to 3 has 1 tensors, an earlier one had 3"):
        list(DataLoader(Growing(), 3, shuffle=False, drop_last=False).epoch(0))
    with pytest.raises(DataError, match=r"is \[1\] torch.float32; dimension 0 must have 4 rows"):
        next(DataLoader(Short(), 4, shuffle=False).epoch(0))


def test_tensors_of_different_lengths_are_no_data_set() -> None:
    with pytest.raises(DataError, match=r"one common length in dimension 0, got \[3, 4\]"):
        TensorDataSet(torch.zeros(3), torch.zeros(4))


def test_an_exception_of_the_data_set_reaches_the_caller() -> None:
    class Failing(Squares):
        def get(self, index: int) -> Sequence[Tensor]:
            if index == 7:
                raise OSError("no such picture")
            return super().get(index)

    with pytest.raises(OSError, match="no such picture"):
        list(DataLoader(Failing(10), 2))


@each_row("thing", [{}, 7, {1, 2}])
def test_what_is_no_data_set_is_refused(thing: object) -> None:
    with pytest.raises(TypeError, match=r"is not a data set: derive from flodl.DataSet"):
        DataLoader(thing, 1)


def test_a_dictionary_of_splits_is_refused_with_its_splits() -> None:
    splits = {"train": Squares(4), "test": Squares(2)}
    with pytest.raises(TypeError, match=r"pass one of its members, 'train', 'test'"):
        DataLoader(splits, 1)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device='gpu' is not a device"):
        DataLoader(Squares(4), 1, device="gpu")


def test_what_must_be_resident_and_is_too_large_is_refused_with_both_sizes() -> None:
    class Enormous(BatchDataSet):
        def __len__(self) -> int:
            return 1 + psutil.virtual_memory().total // 2**20

        def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
            return [torch.zeros(len(indices), 2**18)]

    with pytest.raises(
        DataError,
        match=r"needs [\d.]+ GB on cpu .*half of the available memory is [\d.]+ [GMK]B; stream",
    ):
        DataLoader(Enormous(), 1, streaming=False)
    assert not DataLoader(Enormous(), 1).is_resident


def test_our_data_sets_feed_the_loader_of_torch() -> None:
    batches = list(torch.utils.data.DataLoader(Squares(4), batch_size=2))  # type: ignore[arg-type]
    assert [b[1].tolist() for b in batches] == [[0, 1], [4, 9]]
    batches = list(torch.utils.data.DataLoader(SquaresAtOnce(), batch_size=5))  # type: ignore[arg-type]
    assert batches[1][1].tolist() == [25, 36, 49, 64, 81]
