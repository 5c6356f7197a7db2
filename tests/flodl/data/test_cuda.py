"""Loading onto a GPU; what is decided there is tested without one in test_streaming."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flodl.data import DataLoader, TensorDataSet
from flodl.errors import DataError
from tests.flodl.data.sources import Whole, orders

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODES: list[dict[str, Any]] = [
    {},
    {"streaming": True},
    {"streaming": True, "prefetch": 0},
    {"workers": 2},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_batches_on_the_gpu_are_those_of_the_cpu(mode: dict[str, Any]) -> None:
    data = TensorDataSet(torch.arange(1000, dtype=torch.uint8), torch.arange(1000))
    loader = DataLoader(data, 32, device="cuda", **mode)
    for epoch in range(3):
        batches = list(loader.epoch(epoch))
        assert {tensor.device.type for batch in batches for tensor in batch} == {"cuda"}
        assert batches[0][0].dtype == torch.uint8
        assert [b[1].tolist() for b in batches] == [
            b[1].tolist() for b in DataLoader(data, 32).epoch(epoch)
        ]


def test_memory_of_a_batch_is_not_given_away_while_kernels_read_it() -> None:
    rows = torch.randn(512, 1 << 16)
    loader = DataLoader(TensorDataSet(rows), 8, device="cuda", shuffle=False, streaming=True)
    sums = []
    for (batch,) in loader.epoch(0):
        total = batch
        for _ in range(20):
            total = total * 1.0
        sums.append(total.sum(1))
        del batch, total
    assert torch.allclose(torch.cat(sums).cpu(), rows.sum(1), atol=1e-1)


def test_the_depth_follows_from_the_free_memory() -> None:
    loader = DataLoader(Whole(1000), 10, device="cuda", streaming=True)
    orders(loader, 0)
    assert loader.prefetch_depth() == 4
    orders(loader, 1)
    assert loader.prefetch_depth() == 100


def test_a_data_set_larger_than_the_gpu_streams() -> None:
    free, _ = torch.cuda.mem_get_info()
    wide = torch.zeros(1).expand(free // 4 // 1000 * 2)

    class Wide(Whole):
        def get_batch(self, indices: Any) -> Any:
            return [wide.expand(len(indices), -1)]

    assert not DataLoader(Wide(1000), 1, device="cuda").is_resident


def test_what_does_not_fit_is_told_or_streams_after_the_memory_is_given_back() -> None:
    class Huge(Whole):
        def get_batch(self, indices: Any) -> Any:
            return [torch.zeros(1).expand(len(indices), 1 << 30)]

    with pytest.raises(DataError, match=r"on cuda .* and the allowance is .* MiB"):
        DataLoader(Huge(1000), 1, device="cuda", streaming=False)

    class Tight(np.ndarray):
        def __getitem__(self, rows: Any) -> Any:
            if len(rows) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return np.asarray(self)[rows]

    loader = DataLoader(np.arange(10).view(Tight), 2, device="cuda", shuffle=False)
    assert not loader.is_resident
    assert orders(loader, 0) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_small_batches_are_gathered_together_and_own_their_memory() -> None:
    data = TensorDataSet(torch.arange(64_000).view(1000, 64), torch.arange(1000))
    loader = DataLoader(data, 10, device="cuda", streaming=True)
    for epoch in range(2):  # four are read ahead in the first, all in the second
        batches = list(loader.epoch(epoch))
        assert all(
            one.untyped_storage().nbytes() == one.nbytes for batch in batches for one in batch
        )
        assert [b[1].tolist() for b in batches] == orders(DataLoader(Whole(1000), 10), epoch)
        assert all(torch.equal(b[0][:, 0], 64 * b[1]) for b in batches)
