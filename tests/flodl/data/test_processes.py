from __future__ import annotations

import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from flodl.data import DataLoader
from flodl.errors import DataError
from tests.flodl.data.sources import Dying, Failing, Noisy, Numbers, Stubborn, collect, orders

Team = Callable[[], list[BaseProcess]]


@pytest.fixture(autouse=True)
def without_the_handler_of_torch() -> Iterator[None]:
    """A test that used torch's own loader has left its handler: it raises when a process dies."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.fixture(autouse=True)
def team() -> Iterator[Team]:
    """The processes that a test has started; none is left when it ends."""
    # Ranks that wait for other tests, for instance.
    others = {process.pid for process in multiprocessing.active_children()}

    def started() -> list[BaseProcess]:
        return [one for one in multiprocessing.active_children() if one.pid not in others]

    yield started
    # The frames of an exception hold the loader whose data set raised it.
    gc.collect()
    for process in started():
        process.join(10)
    assert started() == []


def test_processes_give_the_batches_of_a_resident_data_set_epoch_after_epoch(
    team: Team,
) -> None:
    resident = DataLoader(Numbers(20), 3, drop_last=False)
    loader = DataLoader(Numbers(20), 3, drop_last=False, workers=2)
    assert not loader.is_resident
    assert team() == []
    for epoch in range(3):
        assert orders(loader, epoch) == orders(resident, epoch)
    first = {process.pid for process in team()}
    assert len(first) == 2
    assert orders(loader, 1, 4) == orders(resident, 1)[4:]
    assert {process.pid for process in team()} == first


def test_an_exception_keeps_its_type_and_tells_where_it_was_raised() -> None:
    loader = DataLoader(Failing(10), 1, shuffle=False, workers=2)
    seen: list[int] = []
    with pytest.raises(FileNotFoundError, match="No such picture") as caught:
        collect(loader.epoch(0), seen)
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    assert caught.value.filename == "seven.png"
    sample, trace = caught.value.__notes__
    assert sample == "while Failing read sample 7"
    assert "In a worker process:\nTraceback" in trace
    assert "sources.py" in trace
    assert orders(loader, 0, start_batch=8) == [[8], [9]]


def test_an_exception_that_cannot_travel_is_described() -> None:
    loader = DataLoader(Stubborn(3), 1, shuffle=False, workers=1)
    with pytest.raises(DataError, match=r"raised RuntimeError: .*workers=0 raises it as it is"):
        orders(loader, 0)


def test_a_process_that_dies_is_reported_and_replaced(tmp_path: Path) -> None:
    loader = DataLoader(Dying(6, tmp_path / "died"), 1, shuffle=False, workers=1)
    with pytest.raises(DataError, match="a worker process of the loader ended before its work"):
        orders(loader, 0)
    assert orders(loader, 0) == [[i] for i in range(6)]


@pytest.mark.slow
def test_processes_killed_between_two_epochs_are_replaced(team: Team) -> None:
    loader = DataLoader(Numbers(6), 1, shuffle=False, workers=1)
    for epoch in range(2):
        assert orders(loader, epoch) == [[0], [1], [2], [3], [4], [5]]
        for process in team():
            process.kill()
            process.join()
    assert orders(loader, 2) == [[0], [1], [2], [3], [4], [5]]


@pytest.mark.slow
def test_processes_killed_in_an_epoch_that_is_left_are_replaced_in_the_next(team: Team) -> None:
    loader = DataLoader(Numbers(1000), 1, shuffle=False, workers=1)
    for number in range(3):
        epoch = loader.epoch(number)
        assert next(epoch)[0].tolist() == [0]
        for process in team():
            process.kill()
        loader.set_prefetch_depth(500)  # more than was read: the thread waits for the processes
        time.sleep(0.1)
        epoch.close()
    assert len(orders(loader, 3)) == 1000


def test_breaking_out_keeps_the_processes(team: Team) -> None:
    loader = DataLoader(Numbers(100), 1, shuffle=False, workers=1)
    for _ in loader.epoch(0):
        break
    first = team()
    assert orders(loader, 0, start_batch=95) == [[i] for i in range(95, 100)]
    assert team() == first


def test_epochs_may_run_side_by_side() -> None:
    loader = DataLoader(Numbers(12), 2, workers=1)
    pairs = list(zip(loader.epoch(0), loader.epoch(1), strict=True))
    assert [a[0].tolist() for a, _ in pairs] == orders(loader, 0)
    assert [b[0].tolist() for _, b in pairs] == orders(loader, 1)


def test_random_transforms_repeat_whatever_the_number_of_processes_and_after_a_resume() -> None:
    def noise(workers: int, epoch: int, start_batch: int = 0) -> list[list[float]]:
        loader = DataLoader(Noisy(12), 2, workers=workers)
        return [batch[1].tolist() for batch in loader.epoch(epoch, start_batch)]

    whole = noise(2, 5)
    assert noise(1, 5, start_batch=3) == whole[3:]
    assert noise(1, 6) != whole
    assert len({value for batch in whole for value in batch}) == 12


def test_the_generator_of_the_training_takes_no_part() -> None:
    loader = DataLoader(Noisy(6), 2, workers=1)
    before = torch.get_rng_state()
    orders(loader, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_depth_of_zero_is_refused() -> None:
    loader = DataLoader(Numbers(6), 2, workers=1)
    with pytest.raises(ValueError, match="the 1 worker processes nothing to do ahead"):
        loader.set_prefetch_depth(0)
