"""The forms in which data sets give their samples: mappings, arrays, and exceptions."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from flodl.data import BatchDataSet, DataLoader, DataSet
from flodl.errors import DataError

WAYS = [{}, {"streaming": True}, {"streaming": True, "prefetch": 0}, {"workers": 1}]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    # The frames of an exception hold the loader whose data set raised it.
    gc.collect()
    assert "flodl-prefetch" not in {thread.name for thread in threading.enumerate()}


class Samples(DataSet):
    """A list of samples."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, index: int) -> Any:
        sample = self.samples[index]
        if isinstance(sample, Exception):
            raise sample
        return sample


class Batches(BatchDataSet):
    """Batches whose mapping lists its keys in another order each time."""

    def __len__(self) -> int:
        return 6

    def get_batch(self, indices: Sequence[int]) -> Any:
        if 5 in indices:
            raise OSError("cannot decode")
        rows = torch.tensor(indices)
        batch = {"x": rows, "y": rows * 10}
        return batch if 0 in indices else dict(reversed(batch.items()))


def swapped() -> list[Mapping[str, int]]:
    return [{"x": 1, "y": 10}, {"y": 20, "x": 2}, {"x": 3, "y": 30}]


@pytest.mark.parametrize("way", WAYS)
def test_keys_belong_to_their_values_in_whatever_order_a_sample_lists_them(
    way: dict[str, Any],
) -> None:
    loader = DataLoader(Samples(*swapped()), 3, shuffle=False, **way)
    (batch,) = loader.epoch(0)
    assert loader.names == ("x", "y")
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([1, 2, 3], [10, 20, 30])

    batches = DataLoader(Batches(), 2, shuffle=False, **way)
    epoch = batches.epoch(0)
    for first in (0, 2):
        batch = next(epoch)
        assert batch.names == batches.names == ("x", "y")
        assert batch["x"].tolist() == [first, first + 1]
        assert batch["y"].tolist() == [first * 10, first * 10 + 10]


def test_names_that_are_the_keys_decide_the_order_and_others_rename() -> None:
    def only(names: Sequence[str]) -> dict[str, list[int]]:
        (batch,) = DataLoader(Samples(*swapped()), 3, shuffle=False, names=names)
        return {name: batch[name].tolist() for name in batch.names}

    assert list(only(["y", "x"]).items()) == [("y", [10, 20, 30]), ("x", [1, 2, 3])]
    assert list(only(["a", "b"]).items()) == [("a", [1, 2, 3]), ("b", [10, 20, 30])]


def test_a_sample_with_other_keys_is_refused() -> None:
    with pytest.raises(DataError, match="sample 1 has the keys 'x', 'z', the first one had 'x'"):
        next(DataLoader(Samples({"x": 1, "y": 2}, {"x": 1, "z": 2}), 2, shuffle=False).epoch(0))


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0)[::-2], np.arange(6.0)[::2].astype(">f8"), np.broadcast_to(np.float64(4), 3)],
)
def test_arrays_that_torch_cannot_share_are_copied(array: np.ndarray[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (batch,) = DataLoader(Samples(array, array), 2)
    assert batch[0].dtype == torch.float64
    assert batch[0].tolist() == [array.tolist()] * 2


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_tells_which_sample_was_read(way: dict[str, Any]) -> None:
    def epoch(data: object) -> None:
        for _ in DataLoader(data, 2, shuffle=False, **way):
            pass

    with pytest.raises(OSError, match="cannot decode") as caught:
        epoch(Samples(1, 2, 3, OSError("cannot decode")))
    assert caught.value.__notes__[0] == "while Samples read sample 3"
    with pytest.raises(OSError, match="cannot decode") as caught:
        epoch(Batches())
    assert caught.value.__notes__[0] == "while Batches.get_batch read the samples 4, 5"
