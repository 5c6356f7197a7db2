"""Peaks of CUDA memory, with a CUDA device and without."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from flodl import memory
from tests.rows import each_row

QUERIES: list[Callable[[], object]] = [
    memory.cuda_peak_active_bytes,
    memory.cuda_peak_reserved_bytes,
]


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without CUDA, wherever the test runs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_device")
@each_row("query", QUERIES, ids=lambda query: query.__name__)
@pytest.mark.case("runtime", 77)
def test_without_a_device_a_query_raises_and_names_itself(query: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=rf"{query.__name__}\(\) needs a CUDA device"):
        query()


@pytest.mark.usefixtures("no_device")
@pytest.mark.case("runtime", 77)
def test_without_a_device_letting_go_of_memory_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: called.append(name))
    for available in (False, True):  # a device that nobody has used yet
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        memory.cuda_empty_cache()
        memory.cuda_reset_peak_stats(0)
    assert called == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_tensor_on_the_device_is_seen_in_the_peaks() -> None:
    torch.empty(1, device="cuda")
    gc.collect()  # tensors of earlier tests must not be freed between the two looks
    memory.cuda_empty_cache()
    memory.cuda_reset_peak_stats()
    before = memory.cuda_peak_active_bytes()
    held = torch.empty(1 << 20, device="cuda", dtype=torch.float32)
    size = held.numel() * held.element_size()
    del held
    assert memory.cuda_peak_active_bytes() >= before + size
    assert memory.cuda_peak_reserved_bytes() >= memory.cuda_peak_active_bytes()
    memory.cuda_reset_peak_stats()
    assert memory.cuda_peak_active_bytes() == before


def test_a_seed_reaches_torch() -> None:
    memory.manual_seed(7)
    first = torch.rand(3)
    memory.manual_seed(7)
    assert torch.equal(torch.rand(3), first)
