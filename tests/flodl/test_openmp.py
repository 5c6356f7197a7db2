"""Threads of OpenMP: who has chosen how they wait, and one thread for work in the background."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch

from flodl.environment import environment_report
from flodl.openmp import openmp_report, use_one_thread, waiting_shortly
from flodl.worker import CpuWorker
from flodl_shared.waiting import SPIN_COUNT, VARIABLES, chosen

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


@pytest.mark.parametrize("name", VARIABLES)
def test_a_choice_of_the_user_stays(name):
    assert chosen({name: "1"}) == {}
    assert openmp_report({name: "1"})["waiting"] == {name: "1"}
    assert openmp_report({name: "1"})["chosen_by"] == "you"


def test_without_a_choice_threads_spin_shortly_while_torch_is_loaded(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("flodl.openmp._added", {})
    with waiting_shortly():  # torch is loaded already
        assert "GOMP_SPINCOUNT" not in os.environ
    assert openmp_report(os.environ)["chosen_by"] == "default"
    monkeypatch.delitem(__import__("sys").modules, "torch")
    with waiting_shortly():
        assert os.environ["GOMP_SPINCOUNT"] == SPIN_COUNT
    monkeypatch.undo()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_the_report_says_that_fdl_has_chosen():
    plan = {"variables": [{"name": "GOMP_SPINCOUNT", "origin": "fdl", "secret": False}]}
    environ = {"GOMP_SPINCOUNT": SPIN_COUNT, "FDL_PLAN": json.dumps(plan)}
    assert openmp_report(environ)["chosen_by"] == "flodl"
    assert openmp_report({**environ, "OMP_WAIT_POLICY": "active"})["chosen_by"] == "you"
    assert openmp_report({**environ, "FDL_PLAN": "{broken"})["chosen_by"] == "you"


def test_the_environment_report_says_how_threads_wait():
    told = environment_report()["openmp"]
    assert told.keys() == {"library", "waiting", "chosen_by"}
    assert told["library"] in ("libgomp", "libomp", "libiomp5", None)
