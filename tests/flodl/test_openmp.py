"""Threads of OpenMP: how they wait, and one thread for work in the background."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from flodl.environment import environment_report
from flodl.openmp import (
    VARIABLES,
    openmp_report,
    use_one_thread,
)
from flodl.worker import CpuWorker

TASKS = Path("/proc/self/task")
LINUX = pytest.mark.skipif(not TASKS.is_dir(), reason="Linux counts threads")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def on_thread(function):
    """What a function returns on a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def threads_started_by(function):
    """How many threads of the system a function starts and leaves waiting."""
    before = {task.name for task in TASKS.iterdir()}  # threads of other tests may end meanwhile
    function()
    return len({task.name for task in TASKS.iterdir()} - before)


def large_sum():
    torch.ones(2_000_000).sum()


@LINUX
@pytest.mark.usefixtures("two_threads")
def test_one_thread_computes_alone_and_others_keep_their_number():
    def alone():
        use_one_thread()
        return torch.get_num_threads(), threads_started_by(large_sum)

    assert on_thread(lambda: threads_started_by(large_sum)) == 1
    assert on_thread(alone) == (1, 0)
    assert torch.get_num_threads() == 2
    assert on_thread(torch.get_num_threads) == 2  # a thread that starts later


@LINUX
@pytest.mark.usefixtures("two_threads")
def test_a_worker_uses_one_thread_if_it_is_told_so():
    seen = []
    for one_thread in (True, False):
        with CpuWorker(one_thread=one_thread) as worker:
            worker.submit(lambda: seen.append(torch.get_num_threads()))
    assert seen == [1, 2]


def test_the_environment_report_says_how_threads_wait():
    told = environment_report()["openmp"]
    assert told.keys() == {"library", "waiting"}
    assert told["library"] in ("libgomp", "libomp", "libiomp5", None)
    for name in VARIABLES:
        assert openmp_report({name: "1"})["waiting"] == {name: "1"}


def test_a_folder_of_torch_that_cannot_be_read_is_no_error(monkeypatch):
    """A process that gave up its rights after the import of torch describes itself all the same."""

    class Unreadable:
        def glob(self, _):
            raise PermissionError("Permission denied")

    assert environment_report()["openmp"]["library"]
    monkeypatch.setattr("flodl.openmp._torch_libraries", Unreadable)
    assert environment_report()["openmp"]["library"] is None
