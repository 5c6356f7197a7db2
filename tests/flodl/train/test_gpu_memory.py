"""What a training would need on a GPU that is not here."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.data import TensorDataset

from flodl.train.peak_memory import CONTEXT_BYTES, Allocator
from tests.flodl.train.test_rehearsal import (
    rehearsed,
    result as result,
    trainer,
)
from tests.rows import each_row

KIB, MIB = 1 << 10, 1 << 20


@each_row(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_sizes_are_rounded_as_by_the_allocator_of_torch(size, block, segment):
    allocator = Allocator()
    assert allocator.take(size)[1] == block
    assert (allocator.allocated, allocator.reserved) == (block, segment)


def test_freed_blocks_are_merged_and_used_again():
    allocator = Allocator()
    blocks = [allocator.take(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for block in blocks[1:3]:
        allocator.give(*block)
    allocator.take(9 * MIB)
    assert allocator.reserved == 20 * MIB
    for block in (blocks[0], blocks[3]):
        allocator.give(*block)
    allocator.take(6 * MIB)
    assert allocator.reserved == 40 * MIB


def network():
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 1))


def wide():
    """Activations that are large, and soon computed."""
    return nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh(), nn.Linear(256, 1))


def on_gpu(result, monkeypatch, total, batch=256, samples=4096, model=network):
    monkeypatch.setenv("FLODL_REHEARSE_GPU", f"{total} RTX 1")
    data = TensorDataset(torch.randn(samples, 256), torch.randn(samples, 1))
    return rehearsed(trainer(data, model=model(), batch_size=batch), result)["gpu"]


def test_the_parts_of_the_memory_are_those_of_the_model_and_of_adam(result, monkeypatch):
    found = on_gpu(result, monkeypatch, 10**10)
    size = sum(one.nbytes for one in network().parameters())
    assert found["name"] == "RTX 1"
    assert found["gradient_bytes"] == size
    assert found["parameter_bytes"] == pytest.approx(size, rel=0.01)
    assert found["optimizer_bytes"] == pytest.approx(2 * size, rel=0.1)
    assert found["needed_bytes"] == found["reserved_bytes"] + CONTEXT_BYTES
    assert found["fits"]


def test_a_second_opinion_is_that_of_torch(result, monkeypatch):
    found = on_gpu(result, monkeypatch, 10**10, batch=2048)
    model = network()
    adam = torch.optim.Adam(model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, adam)
    with tracker:
        for _ in range(2):
            x, y = torch.randn(2048, 256), torch.randn(2048, 1)
            nn.functional.mse_loss(model(x), y).backward()
            adam.step()
            adam.zero_grad()
            tracker.reset_mod_stats()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    # The allocator's segments come on top.
    assert peak <= found["reserved_bytes"] <= 1.1 * peak + 40 * MIB


def test_what_does_not_fit_names_a_batch_that_does(result, monkeypatch):
    samples = 50_000
    whole = on_gpu(result, monkeypatch, 10**10, samples, samples, wide)["reserved_bytes"]
    result.unlink()
    small = int((CONTEXT_BYTES + 40 * MIB + 0.6 * whole) / 0.9)
    found = on_gpu(result, monkeypatch, small, samples, samples, wide)
    assert not found["fits"]
    assert 0.5 * samples < found["largest_batch_size"] < 0.65 * samples
    result.unlink()
    assert on_gpu(result, monkeypatch, small, found["largest_batch_size"], samples, wide)["fits"]


def test_a_larger_batch_that_is_named_fits(result, monkeypatch):
    samples, total = 50_000, 900_000_000
    found = on_gpu(result, monkeypatch, total, 5_000, samples, wide)
    assert found["fits"]
    assert 5_000 < found["largest_batch_size"] < samples
    result.unlink()
    assert on_gpu(result, monkeypatch, total, found["largest_batch_size"], samples, wide)["fits"]


def test_a_rehearsal_about_no_gpu_has_none(result):
    data = TensorDataset(torch.randn(64, 256), torch.randn(64, 1))
    assert rehearsed(trainer(data, model=network()), result)["gpu"] is None
