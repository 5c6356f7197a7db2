"""Acceptance cases of data loading and of the live page, with the numbers they promise."""

from __future__ import annotations

import gc
import gzip
import http.client
import json
import struct
import threading
import time
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from flodl.data.budget import DeviceMemory, prefetch_depth, vram_budget
from flodl.data.cifar import Cifar10
from flodl.data.dataset import TensorDataSet
from flodl.data.loader import DataLoader
from flodl.data.mnist import Mnist
from flodl.data.sampler import Sampler
from flodl.data.shakespeare import Shakespeare
from flodl.errors import DataError
from flodl.monitor.monitor import Monitor

GIB = 1024**3


class EventStream:
    """A browser's view of ``/events``: kind, id and data of every event."""

    def __init__(self, url: str, last_id: str | None = None) -> None:
        parts = urlsplit(url)
        self.ids: list[str] = []
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        path = parts.path.rstrip("/") + "/events" + (f"?{parts.query}" if parts.query else "")
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        self.connection.request("GET", path, headers=headers)
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        assert self.response.headers.get_content_type() == "text/event-stream"

    def until(self, last: str, count: int = 1) -> list[tuple[str, object]]:
        """Epochs and the end, up to the `count`-th event of kind `last`."""
        seen: list[tuple[str, object]] = []
        fields: dict[str, str] = {}
        while sum(kind == last for kind, _ in seen) < count:
            line = self.response.readline().decode().rstrip("\r\n")
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
                continue
            if fields.get("event") == "epoch":
                seen.append(("epoch", json.loads(fields["data"])["epoch"]))
                self.ids.append(fields["id"])
            elif fields.get("event") == "complete":
                seen.append(("complete", None))
            fields = {}
        return seen

    def close(self) -> None:
        self.connection.close()


@pytest.mark.case("runtime", 45)
def test_whoever_connects_whenever_sees_every_epoch_once():
    monitor = Monitor(5, terminal=False)
    url = monitor.serve(0)
    try:
        for epoch in range(3):
            monitor.log(epoch, 0.1, {"loss": 1.0})
        stream = EventStream(url)
        for epoch in range(3, 5):
            monitor.log(epoch, 0.1, {"loss": 1.0})
        assert stream.until("epoch", 5) == [("epoch", number) for number in range(1, 6)]
        again = EventStream(url, last_id=stream.ids[3])
        assert again.until("epoch") == [("epoch", 5)]
        monitor.finish()
        assert stream.until("complete") == [("complete", None)], "and none of the five again"
        assert again.until("complete") == [("complete", None)]
        late = EventStream(url)
        everything = [*(("epoch", number) for number in range(1, 6)), ("complete", None)]
        assert late.until("complete") == everything
        for one in (stream, again, late):
            one.close()
    finally:
        monitor.close()


def numbers(n: int) -> TensorDataSet:
    return TensorDataSet(torch.arange(n))


def drawn(epoch) -> list[list[int]]:
    return [batch[0].tolist() for batch in epoch]


@pytest.mark.case("runtime", 64)
@pytest.mark.parametrize("streaming", [False, True])
def test_an_epoch_continues_with_exactly_the_missing_batches(streaming):
    loader = DataLoader(numbers(23), batch_size=4, streaming=streaming)
    whole = drawn(loader.epoch(3))
    assert len(whole) == 5
    assert drawn(loader.epoch(3, start_batch=2)) == whole[2:]
    beginning = iter(loader.epoch(3))
    first = [next(beginning)[0].tolist() for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert first == whole[:2]
    assert (state["epoch"], state["batch"], state["n"]) == (3, 2, 23)
    assert (state["batch_size"], state["drop_last"], state["seed"]) == (4, True, 42)
    resumed = DataLoader(numbers(23), batch_size=4, streaming=streaming)
    resumed.load_state_dict(state)
    assert drawn(resumed.epoch(3)) == whole[2:]
    loader.close()
    resumed.close()


@pytest.mark.case("runtime", 65)
def test_memory_decides_between_resident_and_streaming_and_how_far_ahead():
    roomy = {"free": 15 * GIB, "total": 16 * GIB}
    assert vram_budget(**roomy, usage=0.90) == 14_388_140_441
    memory = DeviceMemory(0.90, lambda: (roomy["free"], roomy["total"]), lambda: 0)
    assert memory.holds(60_000 * 3144)

    tight = {"free": 2 * GIB, "total": 8 * GIB}
    budget = vram_budget(**tight, usage=0.90)
    assert budget == 1_288_490_188
    sample, batch = 602_120, 32
    ahead = {"budget": budget, "reserve": 0, "batch_bytes": batch * sample}
    batches = 100_000 // batch
    assert prefetch_depth(**ahead, num_batches=batches, first_epoch=False) == 66
    assert prefetch_depth(**ahead, num_batches=batches, first_epoch=True) == 4
    memory = DeviceMemory(0.90, lambda: (tight["free"], tight["total"]), lambda: 0)
    assert not memory.holds(100_000 * sample)


class Backwards(Sampler):
    """From the last sample to the first."""

    def __init__(self, n: int) -> None:
        self.n = n

    def indices(self, epoch: int) -> list[int]:  # noqa: ARG002 - every epoch is the same
        return list(range(self.n - 1, -1, -1))

    def __len__(self) -> int:
        return self.n


class TooLarge(np.ndarray):
    """Runs out of memory once: the first time more than the first sample is asked for."""

    failed = 0

    def __getitem__(self, rows):
        if not self.failed and any(int(row) != 0 for row in rows):
            self.failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return np.asarray(self)[rows]


@pytest.mark.case("runtime", 66)
def test_running_out_of_memory_while_building_streams_in_the_same_order():
    dataset = np.arange(10).view(TooLarge)
    loader = DataLoader(dataset, batch_size=2, sampler=Backwards(10))
    assert dataset.failed == 1
    assert loader.prefetch_depth() > 0, "0 would be resident"
    assert drawn(loader.epoch(0)) == [[9, 8], [7, 6], [5, 4], [3, 2], [1, 0]]
    loader.close()


class Broken:
    """A map-style data set whose item 7 fails as long as `broken`."""

    def __init__(self) -> None:
        self.broken = True

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.broken and index == 7:
            raise LookupError("item 7 is gone")
        return torch.tensor(index)


@pytest.mark.case("runtime", 67)
def test_an_error_of_the_data_set_reaches_the_consumer_and_the_next_epoch_works():
    before = set(threading.enumerate())
    dataset = Broken()
    loader = DataLoader(dataset, batch_size=3, shuffle=False, streaming=True)
    broken = iter(loader.epoch(0))
    assert [next(broken)[0].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(LookupError, match="item 7 is gone"):
        next(broken)
    dataset.broken = False
    assert drawn(loader.epoch(1)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    del loader, broken
    gc.collect()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) - before == set()


def idx(magic: int, sizes: list[int], values: bytes) -> bytes:
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + values


@pytest.mark.case("runtime", 68)
def test_idx_files_raw_and_packed():
    images, labels = idx(2051, [2, 3, 3], bytes([128] * 18)), idx(2049, [2], bytes([4, 9]))
    raw = Mnist.parse(images, labels)
    assert raw.images.shape == (2, 1, 3, 3)
    assert raw.images.dtype == torch.float32
    assert raw.images.unique().tolist() == [pytest.approx(0.5019608, abs=1e-6)]
    assert raw.labels.dtype == torch.int64
    assert raw.labels.tolist() == [4, 9]
    packed = Mnist.parse(gzip.compress(images), gzip.compress(labels))
    assert torch.equal(packed.images, raw.images)
    assert torch.equal(packed.labels, raw.labels)
    with pytest.raises(DataError, match="99"):
        Mnist.parse(idx(99, [2, 3, 3], bytes(18)), labels)


@pytest.mark.case("runtime", 69)
def test_cifar_records():
    record = bytes([7]) + bytes([0] * 1024) + bytes([51] * 1024) + bytes([255] * 1024)
    parsed = Cifar10.parse([record])
    assert parsed.labels.tolist() == [7]
    assert parsed.images.shape == (1, 3, 32, 32)
    assert torch.equal(parsed.images[0, 2], torch.ones(32, 32))
    assert torch.equal(parsed.images[0, 0], torch.zeros(32, 32))
    assert parsed.images[0, 1].unique().tolist() == [pytest.approx(0.2)]
    with pytest.raises(DataError):
        Cifar10.parse([bytes(100)])
    with pytest.raises(DataError, match="10"):
        Cifar10.parse([bytes([10]) + record[1:]])


@pytest.mark.case("runtime", 70)
def test_text_becomes_windows_of_characters():
    parsed = Shakespeare.parse("hello world", 4)
    assert parsed.vocab_size == 8
    assert parsed.data.shape == parsed.targets.shape == (2, 4)
    assert parsed.data[0].tolist() == [3, 2, 4, 4]
    assert parsed.targets[0].tolist() == [2, 4, 4, 5]
    assert parsed.decode(parsed.data[0]) == "hell"
    with pytest.raises(DataError):
        Shakespeare.parse("ab", 5)
