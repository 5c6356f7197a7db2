"""Statistics of memory and hardware, with a CUDA device and without."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable

import psutil
import pytest
import torch

from flodl import memory
from tests.rows import each_row

QUERIES: list[Callable[[], object]] = [
    memory.cuda_memory_info,
    memory.cuda_active_bytes,
    memory.cuda_allocated_bytes,
    memory.cuda_peak_active_bytes,
    memory.cuda_peak_reserved_bytes,
    memory.cuda_utilization,
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
    memory.cuda_empty_cache()
    memory.cuda_reset_peak_stats()
    assert called == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_tensor_on_the_device_is_seen_in_every_number() -> None:
    memory.cuda_empty_cache()
    memory.cuda_reset_peak_stats()
    before = memory.cuda_active_bytes()
    held = torch.empty(1 << 20, device="cuda", dtype=torch.float32)
    size = held.numel() * held.element_size()
    assert memory.cuda_active_bytes() - before == size
    assert memory.cuda_allocated_bytes() >= memory.cuda_active_bytes()
    del held
    assert memory.cuda_active_bytes() == before
    assert memory.cuda_peak_active_bytes() >= before + size
    assert memory.cuda_peak_reserved_bytes() >= memory.cuda_peak_active_bytes()
    memory.cuda_reset_peak_stats()
    assert memory.cuda_peak_active_bytes() == before
    used, total = memory.cuda_memory_info(0)
    assert 0 < used < total
    assert 0 <= memory.cuda_utilization() <= 100


def test_resident_memory_grows_with_what_is_written() -> None:
    memory.malloc_trim()  # a block that another test freed would hide this one
    before = memory.rss_kb()
    block = bytearray(64 << 20)
    block[:: 1 << 12] = b"\1" * len(block[:: 1 << 12])
    assert memory.rss_kb() - before > 32 << 10
    assert memory.rss_kb() < psutil.virtual_memory().total // 1024


def test_trimming_gives_freed_heap_back_where_the_c_library_is_glibc() -> None:
    blocks = [bytearray(1000) for _ in range(100_000)]
    pins = blocks[::100]  # so that the heap between them cannot shrink by itself
    del blocks
    before = memory.rss_kb()
    trimmed = memory.malloc_trim()
    assert trimmed is (platform.libc_ver()[0] == "glibc")
    if trimmed:
        assert before - memory.rss_kb() > 30_000
    assert len(pins) == 1000


def test_live_tensors_are_counted_and_gone_when_deleted() -> None:
    gc.collect()
    before = memory.live_tensor_count()
    held = [torch.zeros(1) for _ in range(5)]
    parameter = torch.nn.Parameter(held[0])
    assert memory.live_tensor_count() == before + 6
    del held, parameter
    assert memory.live_tensor_count() == before


def test_counting_asks_no_object_for_its_class() -> None:
    class Proxy:
        @property
        def __class__(self) -> type:
            raise AssertionError("asked")

    proxy = Proxy()
    assert memory.live_tensor_count() >= 0
    del proxy


def test_the_hardware_in_one_line() -> None:
    line = memory.hardware_summary()
    assert "\n" not in line
    parts = line.split(" | ")
    assert parts[0].endswith(" cores)")
    assert parts[1].endswith(" RAM")
    if torch.cuda.is_available():
        assert torch.cuda.get_device_name(0) in parts[2]
    else:
        assert parts[2:] == ["no CUDA device"]


def test_seed_and_cudnn_search_reach_torch() -> None:
    memory.manual_seed(7)
    first = torch.rand(3)
    memory.manual_seed(7)
    assert torch.equal(torch.rand(3), first)
    before = torch.backends.cudnn.benchmark
    try:
        for enabled in (True, False):
            memory.set_cudnn_benchmark(enabled)
            assert torch.backends.cudnn.benchmark is enabled
    finally:
        torch.backends.cudnn.benchmark = before
