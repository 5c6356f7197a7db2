from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flodl.data import BatchDataSet, DataLoader, Sampler, TensorDataSet
from flodl.data.budget import DeviceMemory, HostMemory, memory_of, prefetch_depth, vram_budget
from flodl.data.form import BatchForm
from flodl.data.streaming import StreamingFeed
from flodl.data.transfer import CudaTransfer, Sent
from flodl.errors import DataError, StateError
from tests import fork_server
from tests.flodl.data.sources import Failing, Numbers, Recorded, Slow, Whole, collect, orders
from tests.rows import each_row
from tests.waiting import wait_for

GIB = 2**30


def prefetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "flodl-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert prefetchers() == []
    yield
    gc.collect()
    assert prefetchers() == []


@pytest.mark.parametrize("prefetch", [None, 0, 1, 7])
@pytest.mark.parametrize("drop_last", [True, False])
def test_streaming_gives_the_batches_of_a_resident_data_set(
    prefetch: int | None, drop_last: bool
) -> None:
    data = TensorDataSet(torch.arange(20, dtype=torch.uint8), names=["x"])
    resident = DataLoader(data, 3, drop_last=drop_last)
    streaming = DataLoader(data, 3, drop_last=drop_last, streaming=True, prefetch=prefetch)
    assert (resident.is_resident, streaming.is_resident) == (True, False)
    assert len(streaming) == len(resident)
    for epoch in range(3):
        assert orders(streaming, epoch) == orders(resident, epoch)
        assert orders(streaming, epoch, 2) == orders(resident, epoch)[2:]
    batch = next(streaming.epoch(0))
    assert (batch["x"].dtype, batch["x"].device.type) == (torch.uint8, "cpu")


@pytest.mark.case("runtime", 65)
def test_budget_depth_and_residency_follow_from_the_memory_of_the_device() -> None:
    def device(*, total: int, free: int, peak: int = 0) -> DeviceMemory:
        return DeviceMemory(0.90, lambda: (free * GIB, total * GIB), lambda: peak)

    roomy = device(total=16, free=15)
    assert roomy.budget() == 14_388_140_441
    assert roomy.holds(60_000 * 3144)

    tight = device(total=8, free=2)
    assert tight.budget() == 1_288_490_188
    sizes = {"batch_bytes": 602_120 * 32, "num_batches": 3125}
    assert tight.depth(**sizes, first_epoch=False) == 66
    assert tight.depth(**sizes, first_epoch=True) == 4
    assert not tight.holds(602_120 * 100_000)

    # What activations need at their peak is kept free from the second epoch on.
    training = device(total=8, free=2, peak=GIB)
    assert training.depth(**sizes, first_epoch=False) == (1_288_490_188 - GIB) // (602_120 * 32)
    assert training.depth(**sizes, first_epoch=True) == 4


def test_the_budget_is_never_negative_and_the_usage_is_clamped() -> None:
    assert vram_budget(free=0, total=8 * GIB, usage=0.90) == 0
    assert vram_budget(free=GIB, total=GIB, usage=7.0) == int(0.99 * GIB)
    assert vram_budget(free=GIB, total=GIB, usage=0.1) == GIB // 2


def test_the_depth_is_at_least_one_and_at_most_the_epoch() -> None:
    def depth(
        *,
        budget: int,
        reserve: int = 0,
        num_batches: int = 9,
        first: bool = False,
        batch_bytes: int = 10,
    ) -> int:
        return prefetch_depth(
            budget=budget,
            reserve=reserve,
            batch_bytes=batch_bytes,
            num_batches=num_batches,
            first_epoch=first,
        )

    assert depth(budget=0) == 1
    assert depth(budget=50, reserve=70) == 1
    assert depth(budget=59) == 5
    assert depth(budget=10_000) == 9
    assert depth(budget=10_000, first=True) == 4
    assert depth(budget=10_000, num_batches=3, first=True) == 3
    assert depth(budget=10_000, num_batches=0) == 1
    assert depth(budget=7, batch_bytes=1) == 7
    assert depth(budget=7, batch_bytes=0) == 7


def test_activations_need_what_the_peak_is_above_the_memory_that_stays_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, used = torch.device("cuda", 1), {"peak": 7 * GIB, "now": 4 * GIB}
    asked = []
    for name, key in (("max_memory_allocated", "peak"), ("memory_allocated", "now")):
        monkeypatch.setattr(torch.cuda, name, lambda of, key=key: asked.append(of) or used[key])
    memory = memory_of(device, vram_max_usage=0.90)
    assert isinstance(memory, DeviceMemory)
    assert memory.activation_peak() == 3 * GIB
    used["now"] = 8 * GIB  # a reset of the peak by other code
    assert memory.activation_peak() == 0
    assert set(asked) == {device}


def test_the_consumers_stream_waits_for_copies_before_their_memory_is_marked_as_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[object, ...]] = []

    class Stream:
        def wait_event(self, event: object) -> None:
            done.append(("wait", event))

    class Copied:
        def record_stream(self, stream: object) -> None:
            done.append(("in use on", stream))

    stream, copied = Stream(), Copied()
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    sent: Any = Sent((copied,), "arrival")  # type: ignore[arg-type]
    received: Any = CudaTransfer(torch.device("cuda", 0)).receive(sent)
    assert received == (copied,)
    assert done == [("wait", "arrival"), ("in use on", stream)]


def test_a_host_gives_half_of_what_is_available() -> None:
    memory = HostMemory(lambda: 1000)
    assert memory.budget() == 500
    assert memory.holds(500)
    assert not memory.holds(501)


def test_the_depth_is_measured_again_at_each_epoch_unless_the_user_decides() -> None:
    free = [GIB]
    memory = DeviceMemory(0.99, lambda: (free[0], GIB), lambda: 0)
    source = Whole(100)
    form = BatchForm(None)
    form.check([torch.zeros(1, 2**20)], "a batch")
    feed = StreamingFeed(
        source,
        torch.device("cpu"),
        form,
        memory=memory,
        batch_size=2,
        num_batches=50,
    )

    def depth_during_an_epoch() -> int:
        batches = feed.batches(torch.arange(4), 2)
        with pytest.raises(DataError, match=r"samples 0 to 1 is .*int64"):
            next(batches)  # the sample above is float32; only the depth matters here
        return feed.prefetch_depth()

    assert depth_during_an_epoch() == 4
    assert depth_during_an_epoch() == 50
    free[0] = GIB // 8
    assert depth_during_an_epoch() == int(0.99 * GIB - 7 * GIB / 8) // (8 * 2**20)

    feed.set_prefetch_depth(3)
    free[0] = GIB
    assert depth_during_an_epoch() == 3
    feed.close()


def test_the_depth_of_a_loader_can_be_read_and_set() -> None:
    resident = DataLoader(TensorDataSet(torch.arange(9)), 2)
    assert resident.prefetch_depth() == 0
    assert DataLoader(Numbers(9), 2).prefetch_depth() == 0

    loader = DataLoader(Numbers(9), 2, streaming=True)
    assert loader.prefetch_depth() == 2
    loader.set_prefetch_depth(5)
    orders(loader, 0)
    assert loader.prefetch_depth() == 5
    with pytest.raises(ValueError, match="depth=-1: it must be an integer of at least 0"):
        loader.set_prefetch_depth(-1)


def test_no_more_than_the_depth_is_read_ahead() -> None:
    reached = threading.Event()

    class Watched(Recorded):
        def get(self, index: int) -> Sequence[Tensor]:
            sample = super().get(index)
            if len(self.read) == 4:
                reached.set()
            return sample

    data = Watched(20)
    loader = DataLoader(data, 1, shuffle=False, streaming=True)
    data.read.clear()
    batches = loader.epoch(0)
    next(batches)
    # One is with us and two are ready; the thread has nothing to do.
    wait_for(lambda: len(data.read) == 3)
    assert not reached.wait(0.2)
    assert data.read == [0, 1, 2]
    loader.set_prefetch_depth(3)
    wait_for(reached.is_set)
    assert data.read == [0, 1, 2, 3]
    assert [int(batch[0]) for batch in batches] == list(range(1, 20))


def test_without_prefetch_a_batch_is_read_when_it_is_asked_for_and_by_no_thread() -> None:
    data = Recorded(10)
    loader = DataLoader(data, 2, shuffle=False, streaming=True, prefetch=0)
    data.read.clear()
    batches = loader.epoch(0)
    assert data.read == []
    next(batches)
    assert data.read == [0, 1]
    assert prefetchers() == []


def test_batches_that_are_skipped_are_not_read() -> None:
    data = Recorded(10)
    loader = DataLoader(data, 2, shuffle=False, streaming=True)
    data.read.clear()
    assert orders(loader, 0, start_batch=3) == [[6, 7], [8, 9]]
    assert data.read == [6, 7, 8, 9]


@pytest.mark.case("runtime", 66)
def test_a_data_set_that_runs_out_of_memory_streams_in_the_order_of_its_own_sampler() -> None:
    class Backwards(Sampler):
        def indices(self, epoch: int) -> list[int]:
            return [(epoch - i) % 10 for i in range(10)]

    class Tight(np.ndarray):  # type: ignore[type-arg]
        def __getitem__(self, rows: Any) -> Any:
            if len(rows) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return np.asarray(self)[rows]

    loader = DataLoader(np.arange(10).view(Tight), 2, sampler=Backwards())
    assert not loader.is_resident
    assert orders(loader, 0) == [[0, 9], [8, 7], [6, 5], [4, 3], [2, 1]]
    assert orders(loader, 3) == [[3, 2], [1, 0], [9, 8], [7, 6], [5, 4]]

    with pytest.raises(torch.OutOfMemoryError):
        DataLoader(Whole(10, most=2), 2, streaming=False)


@pytest.mark.case("runtime", 67)
@pytest.mark.parametrize("prefetch", [None, 0])
def test_an_exception_surfaces_at_the_consumer_and_the_thread_survives(
    prefetch: int | None,
) -> None:
    loader = DataLoader(Failing(10), 1, shuffle=False, streaming=True, prefetch=prefetch)
    seen: list[int] = []
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="No such picture") as caught:
            collect(loader.epoch(0), seen)
        assert caught.value.filename == "seven.png"
    assert seen == [0, 1, 2, 3, 4, 5, 6] * 2
    assert orders(loader, 1, start_batch=8) == [[8], [9]]
    assert len(prefetchers()) == (0 if prefetch == 0 else 1)
    # The exception's frames hold the loader.
    del caught
    del loader
    assert prefetchers() == []


def test_breaking_out_cancels_the_epoch_and_the_thread_survives() -> None:
    data = Recorded(1000)
    loader = DataLoader(data, 1, shuffle=False, streaming=True)
    for _ in loader.epoch(0):
        break
    worker = prefetchers()
    assert orders(loader, 1, start_batch=990) == [[i] for i in range(990, 1000)]
    assert prefetchers() == worker
    assert len(data.read) < 30


def test_an_epoch_can_be_closed_by_hand() -> None:
    loader = DataLoader(Numbers(10), 1, streaming=True)
    batches = loader.epoch(0)
    next(batches)
    batches.close()
    assert list(batches) == []
    assert len(orders(loader, 0)) == 10


def test_epochs_may_run_side_by_side() -> None:
    loader = DataLoader(Numbers(30), 2, streaming=True)
    pairs = list(zip(loader.epoch(0), loader.epoch(1), strict=True))
    assert [a[0].tolist() for a, _ in pairs] == orders(loader, 0)
    assert [b[0].tolist() for _, b in pairs] == orders(loader, 1)


def test_an_iterator_outlives_the_name_of_its_loader() -> None:
    batches = DataLoader(Numbers(10), 2, streaming=True).epoch(0)
    assert len(list(batches)) == 5


def test_closing_ends_the_thread_and_an_epoch_under_way() -> None:
    loader = DataLoader(Slow(100), 2, streaming=True)
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    assert prefetchers() == []
    with pytest.raises(StateError, match="the loader was closed in the middle of this epoch"):
        list(batches)
    loader.close()
    assert len(orders(loader, 1)) == 50


def test_a_program_may_end_in_the_middle_of_an_epoch() -> None:
    program = (
        "from tests.flodl.data.sources import Slow\n"
        "from flodl.data import DataLoader\n"
        "batches = DataLoader(Slow(1000), 2, streaming=True).epoch(0)\n"
        "print(len(next(batches)))\n"
    )
    done = fork_server.python("-c", program, torch=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_the_next_batch_is_read_while_the_consumer_works() -> None:
    read = threading.Event()

    class Watched(Numbers):
        def get(self, index: int) -> Sequence[Tensor]:
            if index == 1:
                read.set()
            return super().get(index)

    batches = DataLoader(Watched(5), 1, shuffle=False, streaming=True).epoch(0)
    assert int(next(batches)[0]) == 0
    wait_for(read.is_set)  # nobody has asked for it yet
    assert [int(batch[0]) for batch in batches] == [1, 2, 3, 4]


def test_batches_of_different_shapes_may_be_streamed() -> None:
    class Padded(BatchDataSet):
        def __len__(self) -> int:
            return 4

        def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
            return [torch.zeros(len(indices), max(indices) + 1)]

    loader = DataLoader(Padded(), 2, shuffle=False, streaming=True)
    assert [list(batch[0].shape) for batch in loader.epoch(0)] == [[2, 2], [2, 4]]
    with pytest.raises(DataError, match="shape and dtype of a sample must not change"):
        DataLoader(Padded(), 2, streaming=False)


@each_row(
    ("settings", "complaint"),
    [
        ({"prefetch": -1}, "prefetch=-1: it must be an integer of at least 0"),
        ({"prefetch": 1.5}, "prefetch=1.5: it must be an integer"),
        ({"workers": -1}, "workers=-1: it must be an integer of at least 0"),
        ({"workers": 2, "streaming": False}, "workers=2 read while training continues"),
        ({"workers": 2, "prefetch": 0}, "workers=2 read ahead, and prefetch=0 forbids that"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DataLoader(Numbers(4), 1, **settings)  # type: ignore[arg-type]
