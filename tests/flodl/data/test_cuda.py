"""Loading onto a GPU; what is decided there is tested without one in test_streaming."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flodl.data import DataLoader, TensorDataSet
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
