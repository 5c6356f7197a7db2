"""Threads of OpenMP: how they wait, and one thread for work in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from flodl.environment import environment_report
from flodl.openmp import (
    VARIABLES,
    ShortSpin,
    openmp_report,
    other_programs_run,
    use_one_thread,
)
from flodl.worker import CpuWorker
from tests.rows import each_row

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


@each_row("name", VARIABLES)
def test_the_spin_of_the_user_stays_on_a_busy_machine(name, monkeypatch):
    monkeypatch.setenv(name, "7")
    before, spin = threading.active_count(), ShortSpin()
    spin.hold()
    assert threading.active_count() == before


@LINUX
@pytest.mark.usefixtures("two_threads")
def test_a_short_spin_needs_more_threads_than_cores_and_leaves_the_numbers_of_others(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    threads = [torch.get_num_threads()]
    # Threads of earlier tests may end meanwhile.
    before, spin = set(TASKS.iterdir()), ShortSpin()
    for _ in range(2):
        spin.hold()
    team = max(2, len(os.sched_getaffinity(0)) - 2 + 2)
    assert eventually(lambda: len({*TASKS.iterdir()} - before) >= team)
    CpuWorker().submit(lambda: threads.append(torch.get_num_threads()))
    assert eventually(lambda: threads == [2, 2])
    spin.release()
    assert eventually(lambda: before >= {*TASKS.iterdir()})
    assert torch.get_num_threads() == 2


def eventually(holds):
    """Whether something becomes true within half a minute."""
    until = time.monotonic() + 30
    while not holds() and time.monotonic() < until:
        time.sleep(0.005)
    return holds()


@each_row(("looks", "busy"), [([3, 3, 3], True), ([1], False), ([2, 3, 1], False), ([0], False)])
def test_a_machine_is_busy_if_others_run_at_every_look(monkeypatch, looks, busy):
    seen = iter(looks)
    monkeypatch.setattr("flodl.openmp._runnable_threads", lambda: next(seen))
    assert other_programs_run() is busy


@LINUX
def test_a_program_that_keeps_a_core_busy_is_seen():
    words = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(words) as other:
        try:
            until = time.monotonic() + 30
            while not other_programs_run():
                assert time.monotonic() < until
        finally:
            other.kill()


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
