"""Blocks that another thread makes ahead."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from fdl.fetch.together import ahead, step_back, together
from tests.rows import each_row

HELPER = "fetch ahead"


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == HELPER]


def test_all_blocks_come_in_their_order():
    blocks = [bytes([number]) * number for number in range(200)]
    with ahead(iter(blocks)) as taken:
        assert list(taken) == blocks
    assert helpers() == []


def test_they_are_made_by_another_thread_before_they_are_asked_for():
    made = threading.Semaphore(0)

    def slowly():
        for _ in range(3):
            made.release()
            yield threading.current_thread().name.encode()

    with ahead(slowly()) as taken:
        for _ in range(3):
            assert made.acquire(timeout=60)
        assert set(taken) == {HELPER.encode()}


def test_a_failure_comes_behind_what_was_made_before_it():
    def breaks():
        yield b"first"
        raise KeyError("second")

    with ahead(breaks()) as taken:
        assert next(taken) == b"first"
        with pytest.raises(KeyError, match="second"):
            next(taken)


@each_row("wanted", [0, 1, 7])
def test_whoever_gives_up_leaves_no_thread_behind(wanted):
    made = []

    def endless():
        while True:
            made.append(len(made))
            yield b"x" * 100

    with ahead(endless()) as taken:
        assert len(list(islice(taken, wanted))) == wanted
        assert helpers()
    assert helpers() == []
    assert len(made) < 50


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities elsewhere")
def test_a_thread_that_steps_back_leaves_the_others_where_they_are():
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    both_run = threading.Barrier(2)

    def lower() -> int:
        step_back()
        both_run.wait(10)
        return priority()

    def stay() -> int:
        both_run.wait(10)
        return priority()

    before = priority()
    lowered, other = together([lower, stay], lambda: None)
    assert (lowered, other, priority()) == (max(before, 5), before, before)


def test_a_job_is_stopped_whose_start_was_interrupted(monkeypatch):
    submit, stopped, ended = ThreadPoolExecutor.submit, threading.Event(), []
    begun = threading.Event()

    def interrupted(pool, *args):
        submit(pool, *args)
        assert begun.wait(20)
        raise KeyboardInterrupt

    def job():
        begun.set()
        ended.append(stopped.wait(20))

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        together([job], stopped.set)
    assert ended == [True]
