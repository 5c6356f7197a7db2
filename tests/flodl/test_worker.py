"""Tasks for a thread of their own."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from flodl.errors import StateError
from flodl.worker import CpuWorker
from tests import fork_server


@pytest.mark.case("runtime", 73)
def test_five_tasks_run_in_order_the_error_of_one_is_raised_at_the_end():
    done: list[int] = []
    gate = threading.Event()
    worker = CpuWorker()
    assert worker.is_idle

    def task(number):
        gate.wait()
        assert threading.current_thread() is not threading.main_thread()
        done.append(number)
        if number == 1:
            raise ValueError("the second one")

    for number in range(5):
        worker.submit(lambda number=number: task(number))
    assert not worker.is_idle  # one runs, four are queued
    gate.set()
    with pytest.raises(ValueError, match="the second one"):
        worker.finish()
    assert done == [0, 1, 2, 3, 4]
    assert worker.is_idle


def test_it_is_not_idle_while_the_last_task_runs():
    started, gate = threading.Event(), threading.Event()
    with CpuWorker() as worker:
        worker.submit(lambda: (started.set(), gate.wait()))
        started.wait()
        assert not worker.is_idle  # nothing is queued, and yet
        gate.set()
    assert worker.is_idle


def test_all_tasks_share_one_thread_at_a_time():
    running, most = 0, 0

    def task():
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    with CpuWorker() as worker:
        for _ in range(500):
            worker.submit(task)
    assert most == 1


def test_nothing_can_be_submitted_after_the_end():
    worker = CpuWorker()
    worker.finish()
    with pytest.raises(StateError, match="make a new CpuWorker"):
        worker.submit(print)


def test_a_system_without_another_thread_refuses_the_task_and_nothing_waits_for_it():
    program = (
        "import threading\n"
        "from flodl.worker import CpuWorker\n"
        "worker = CpuWorker()\n"
        "threading.stack_size(1 << 46)  # more than there is\n"
        "try:\n"
        "    worker.submit(lambda: print('never'))\n"
        "except RuntimeError as refusal:\n"
        "    print(refusal, worker.is_idle)\n"
        "threading.stack_size(0)\n"
        "worker.submit(lambda: print('ran'))\n"
        "worker.finish()\n"
    )
    run = fork_server.python("-c", program, torch=True)
    assert (run.stdout, run.stderr) == ("can't start new thread True\nran\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_worker_of_its_own():
    program = (
        "import os, threading\n"
        "from flodl.worker import CpuWorker\n"
        "worker, gate = CpuWorker(), threading.Event()\n"
        "worker.submit(gate.wait)\n"
        "worker.submit(lambda: print('parent', os.getpid() == first, flush=True))\n"
        "first = os.getpid()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    worker.submit(lambda: print('child', flush=True))\n"
        "    worker.finish()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "gate.set()\n"
        "worker.finish()\n"
    )
    run = fork_server.python("-c", program, torch=True)
    assert (run.stdout, run.stderr) == ("child\nparent True\n", "")


def test_further_errors_are_noted_and_raised_once():
    worker = CpuWorker()
    for text in ("first", "second"):
        worker.submit(lambda text=text: (_ for _ in ()).throw(OSError(text)))
    worker.submit(sys.exit)
    with pytest.raises(OSError, match="first") as failure:
        worker.finish()
    assert failure.value.__notes__ == [
        "a later task raised OSError: second",
        "a later task raised SystemExit: ",
    ]
    worker.finish()


def test_an_error_of_the_block_is_not_hidden_by_one_of_a_task():
    def block():
        with CpuWorker() as worker:
            worker.submit(lambda: 1 / 0)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as failure:
        block()
    assert "ZeroDivisionError" in failure.value.__notes__[0]


def test_a_program_that_forgets_to_finish_still_ends_with_its_work_done():
    program = (
        "import time\n"
        "from flodl.worker import CpuWorker\n"
        "worker = CpuWorker()\n"
        "worker.submit(lambda: (time.sleep(0.2), print('saved')))\n"
    )
    run = fork_server.python("-c", program, torch=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "saved\n", "")
