"""Reading ahead by default: only where nobody can tell who has read a batch."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flodl.data import BatchDataSet, DataLoader, streaming
from flodl.data.transfer import Group, Sent, Transfer

A_MOMENT = 0.001
N = 12


class Told(BatchDataSet):
    """Takes a moment for each batch; knows who read what, and says when a read begins."""

    def __init__(self, draw: Callable[[int], object] = lambda _: None) -> None:
        self.draw = draw
        self.begun = [threading.Event() for _ in range(N)]
        self.read: list[int] = []
        self.drawn: list[object] = []
        self.here: list[bool] = []

    def __len__(self) -> int:
        return N

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        (index,) = indices
        self.begun[index].set()
        time.sleep(A_MOMENT)
        self.drawn.append(self.draw(index))
        self.read.append(index)
        self.here.append(threading.current_thread() is threading.main_thread())
        return [torch.tensor(indices)]


def trained(data: Told, step: Callable[[int], object], device: str = "cpu") -> DataLoader:
    loader = DataLoader(data, 1, shuffle=False, device=device)
    for epoch in range(2):
        del data.read[:]
        for number, (batch,) in enumerate(loader.epoch(epoch)):
            assert batch.tolist() == [number]
            time.sleep(A_MOMENT)
            step(number)
        assert data.read == list(range(N)), "each once, in order"
    return loader


GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_the_next_batch_is_read_during_a_step_by_default(device: str) -> None:
    data = Told()

    def step(number: int) -> None:
        if 2 <= number < N - 1:
            assert data.begun[number + 1].wait(30), "nobody has asked for it yet"

    loader = trained(data, step, device)
    assert data.here == [*[True] * 2, *[False] * (N - 2), True, *[False] * (N - 1)]
    assert loader.prefetch_depth() == 2


def test_a_number_drawn_anywhere_lets_every_batch_be_read_where_it_is_asked_for() -> None:
    draws: list[Callable[[], object]] = [
        random.random,
        np.random.rand,
        lambda: torch.rand(()).item(),
    ]
    for draw in draws:
        for data, step in (
            (Told(lambda _, draw=draw: draw()), lambda _: None),  # type: ignore[misc]
            (Told(), lambda _, draw=draw: draw()),
        ):
            loader = trained(data, step)
            assert data.here == [True] * 2 * N
            assert loader.prefetch_depth() == 0


def test_the_first_number_may_be_drawn_late() -> None:
    def drawn(prefetch: int | None) -> list[object]:
        random.seed(3)
        data = Told(lambda index: random.random() if index >= 7 else None)
        loader = DataLoader(data, 1, shuffle=False, prefetch=prefetch)
        for _ in loader:
            time.sleep(A_MOMENT)
        assert data.read == list(range(N)), "each once, in order"
        if prefetch is None:
            assert False in data.here
            assert data.here[10:] == [True] * 2
        return [*data.drawn, random.random()]

    assert drawn(None) == drawn(0)


def test_what_belongs_to_one_thread_or_fails_is_read_where_it_is_asked_for() -> None:
    main = threading.main_thread()

    def connected(_: int) -> None:
        if threading.current_thread() is not main:
            raise RuntimeError("this connection belongs to another thread")

    data = Told(connected)
    trained(data, lambda _: None)
    assert data.here == [True] * 2 * N

    def broken(index: int) -> None:
        if index == 7:
            raise FileNotFoundError("seven.png")

    batches = DataLoader(Told(broken), 1, shuffle=False).epoch(0)
    for number in range(7):
        assert next(batches)[0].tolist() == [number]
        time.sleep(A_MOMENT)
    with pytest.raises(FileNotFoundError, match=r"seven\.png") as caught:
        next(batches)
    assert "read the samples 7" in "".join(caught.value.__notes__)


class CopyEngine(Transfer):
    """Copies on a thread of its own, as a GPU does, and knows which batches have arrived."""

    def __init__(self) -> None:
        self.copied = [threading.Event() for _ in range(N)]
        self._thread = ThreadPoolExecutor(1)

    def send(self, batches: Group) -> list[Sent]:
        return [Sent(batch, self._thread.submit(self._copy, batch)) for batch in batches]

    def receive(self, sent: Sent) -> tuple[Tensor, ...]:
        copied: tuple[Tensor, ...] = sent.arrival.result()  # type: ignore[union-attr]
        return copied

    def gather(self, tensor: Tensor, rows: Tensor) -> Tensor:
        return tensor.index_select(0, rows)

    def group(self, batch_bytes: int, depth: int) -> int:  # noqa: ARG002
        return 1

    def _copy(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.copied[int(batch[0])].set()
        return tuple(one.clone() for one in batch)


@pytest.mark.parametrize("settings", [{}, {"prefetch": 2}])
def test_reading_copying_and_stepping_overlap(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CopyEngine()
    monkeypatch.setattr(streaming, "transfer_to", lambda _: engine)
    data = Told()
    for number, (batch,) in enumerate(DataLoader(data, 1, shuffle=False, **settings).epoch(0)):
        assert batch.tolist() == [number]
        time.sleep(A_MOMENT)
        # During this step the next batch arrives, and the one after it is read.
        if 2 <= number < N - 2:
            assert engine.copied[number + 1].wait(30), "the next batch was not copied"
            assert data.begun[number + 2].wait(30), "the one after it was not read"
    assert data.read == list(range(N))


@pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_reads_the_rest_of_an_epoch_itself() -> None:
    loader = DataLoader(Told(), 1, shuffle=False)
    batches = loader.epoch(0)
    for _ in range(5):
        next(batches)
        time.sleep(A_MOMENT)
    assert loader.prefetch_depth() == 2
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, bytes(int(batch[0]) for batch in batches))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert list(os.read(reading, 100)) == list(range(5, N))
    for end in (reading, writing):
        os.close(end)
    assert [int(batch[0]) for batch in batches] == list(range(5, N))
