"""Samples become batches as torch's ``default_collate`` makes them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from flodl.data import DataLoader, IterableLoader
from flodl.errors import DataError
from tests.rows import each_row


class Point(NamedTuple):
    x: Any
    y: Any


class Samples:
    """A map-style data set over a list."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def batch_of(*samples: Any) -> Any:
    (batch,) = DataLoader(Samples(*samples), len(samples), shuffle=False)
    return batch


SCALARS = [
    0.1,
    7,
    -3,
    True,
    np.float16(0.5),
    np.float32(0.1),
    np.float64(0.1),
    np.int8(3),
    np.int32(3),
    np.int64(3),
    np.uint8(3),
    np.bool_(True),
    np.complex64(1j),
    np.complex128(1j),
    torch.tensor(0.1),
    torch.tensor(3, dtype=torch.int16),
]
ARRAYS = [
    np.full((2, 3), 0.1),
    np.full(2, 0.1, dtype=np.float32),
    np.array(0.1),
    np.array(3, dtype=np.int16),
    np.array([True, False]),
    np.array([1, 2], dtype=np.uint16),
    np.array([1j]),
    torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
]


@each_row("value", SCALARS + ARRAYS, ids=lambda v: f"{type(v).__name__}-{v}")
def test_values_have_the_dtype_shape_and_bits_of_torchs_collate(value: Any) -> None:
    wanted = default_collate([value, value])
    for batch in (batch_of(value, value), batch_of((value, 1), (value, 1))):
        assert batch[0].dtype == wanted.dtype
        assert batch[0].shape == wanted.shape
        assert torch.equal(batch[0], wanted)


@each_row(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: {"x": x, "y": y},
        lambda x, y: OrderedDict(x=x, y=y),
        Point,
    ],
)
def test_containers_keep_their_fields_and_names(make: Any) -> None:
    samples = [make(0.1, 1), make(0.2, 2)]
    batch, wanted = batch_of(*samples), default_collate(samples)
    values = list(wanted.values()) if isinstance(wanted, dict) else list(wanted)
    names = list(wanted) if isinstance(wanted, dict) else getattr(wanted, "_fields", ("0", "1"))
    assert batch.names == tuple(names)
    for own, theirs in zip(batch, values, strict=True):
        assert own.dtype == theirs.dtype
        assert torch.equal(own, theirs)


def test_a_list_of_numbers_is_one_tensor_with_the_dtypes_of_torchs_collate() -> None:
    # torch's collate gives one tensor per place of the list; a batch of flodl has one per field.
    samples = [([0.1, 0.2], [1, 2], ((True,), (False,))), ([0.3, 0.4], [3, 4], ((True,), (True,)))]
    batch, wanted = batch_of(*samples), default_collate(samples)
    assert torch.equal(batch[0], torch.stack(wanted[0], 1))
    assert torch.equal(batch[1], torch.stack(wanted[1], 1))
    assert batch[0].dtype == torch.float64
    assert batch[1].dtype == torch.int64
    assert batch[2].dtype == torch.bool
    assert batch_of(([1, 0.1], 2), ([1, 0.1], 2))[0].dtype == torch.float64


def test_numbers_that_torchs_collate_refuses_keep_all_their_digits() -> None:
    assert batch_of(0.1 + 1j, 0.1 + 1j)[0].dtype == torch.complex128


@each_row(
    "value", [None, "text", b"bytes", {"nested": 1}, object(), np.array([object()]), 2**70, [None]]
)
def test_values_that_no_tensor_can_hold_are_refused(value: Any) -> None:
    with pytest.raises(DataError, match=r"field 1 of sample 0"):
        batch_of((1, value), (1, value))


def test_a_batch_of_torchs_loader_is_what_its_collate_function_returned() -> None:
    loader = torch.utils.data.DataLoader(
        Samples(Point(0.1, 1), Point(0.2, 2)), 2, collate_fn=lambda rows: [[r.x for r in rows]]
    )
    assert list(IterableLoader(loader)) == [[[0.1, 0.2]]]
    (named,) = IterableLoader(torch.utils.data.DataLoader(Samples(Point(0.1, 1)), 1))
    assert isinstance(named, Point)
    assert named.x.dtype == torch.float64
