"""Where other programs use the cores, a training leaves these to them from its first step on.

The machine here is a stand-in: a step takes as long as the simulated machine would compute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.train.step import AutoEngine, AutoPolicy, StepSettings
from flodl.train.step.other_programs import OtherPrograms
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuning import fewer_threads
from tests.rows import each_row
from tests.waiting import wait_for

POLICY = AutoPolicy(least_steps=50, least_seconds=0.01, only=frozenset({"threads"}))

MILLISECONDS = {("idle", 2): 30.0, ("idle", 1): 50.0, ("busy", 2): 90.0, ("busy", 1): 50.0}


class Machine:
    """A machine with two cores, which other programs use or not. Its clock is not the real one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.use = "busy"
        self.interrupted = 0
        self.numbers: list[int] = []

    def read_clock(self) -> float:
        self.now += 1e-7
        return self.now

    def step(self, model: nn.Module, batch: Batch) -> Tensor:
        self.numbers.append(torch.get_num_threads())
        seconds = MILLISECONDS[self.use, self.numbers[-1]] / 1e3
        if self.numbers[-1] == 2 and self.interrupted and len(self.numbers) % self.interrupted == 0:
            seconds += 0.2
        self.now += seconds
        return model(batch["x"]).sum()


class Others:
    """Plays :class:`OtherPrograms` on such a machine."""

    known, all_cores = True, 2

    def __init__(self, machine: Machine) -> None:
        self._machine, self._began = machine, machine.now

    def seconds(self) -> float:
        return self._machine.now - self._began

    def cores(self) -> float:
        return 1.0 if self._machine.use == "busy" else 0.1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    machine = Machine()
    monkeypatch.setattr(time, "perf_counter", machine.read_clock)
    monkeypatch.setattr("flodl.train.step.auto.OtherPrograms", lambda: Others(machine))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield machine
    torch.set_num_threads(before)


def engine_on(
    machine: Machine, *, steps: int = 10**4, policy: AutoPolicy = POLICY, step: Any = None
) -> AutoEngine:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adagrad(model.parameters())  # it has no fused step
    settings = StepSettings(train_fn=step or machine.step)
    return AutoEngine(model, optimizer, settings, total_steps=steps, policy=policy)


def train(engine: AutoEngine, steps: int) -> int:
    """Train some steps; return the number of threads that is used then."""
    losses = loss_log(torch.device("cpu"), 0)
    for _ in range(steps):
        engine.step(Batch((torch.ones(1, 2),), ("x",)), losses)
    return engine.tuning.threads


def test_on_a_busy_machine_no_step_uses_a_core_that_others_use(machine):
    engine = engine_on(machine, steps=150)
    assert train(engine, 50) == 1
    assert set(machine.numbers) == {1}
    assert engine.report()["trials"] == {"1 thread": "other programs use 1.0 cores"}
    assert "plain_ms" not in engine.report()


def test_when_the_others_have_ended_during_the_trials_all_threads_are_tried(machine):
    policy = AutoPolicy(least_seconds=0.01)
    engine = engine_on(machine, policy=policy, steps=10**4)
    train(engine, 8)
    machine.use = "idle"
    assert train(engine, 300) == 0
    assert engine.report()["trials"]["all threads"].startswith("0.6")


def test_others_that_have_ended_are_noticed_where_nothing_else_is_tried(machine):
    """A fused optimizer and the other candidates do not fit every program."""
    engine = engine_on(machine)
    train(engine, 8)
    machine.use = "idle"
    assert train(engine, 100) == 0
    assert engine.report()["trials"]["all threads"].startswith("0.6")


@each_row("threads", [2, 8])
def test_more_threads_than_cores_stay_where_nobody_else_computes(machine, monkeypatch, threads):
    """OMP_PROC_BIND binds the thread of the steps to one core; OMP_NUM_THREADS may be large."""
    monkeypatch.setattr(Others, "all_cores", 1)
    monkeypatch.setitem(MILLISECONDS, ("idle", threads), 30.0)
    monkeypatch.setitem(MILLISECONDS, ("idle", threads // 2), 50.0)
    torch.set_num_threads(threads)
    machine.use = "idle"
    machine.numbers.clear()
    assert train(engine_on(machine), 40) == 0
    assert machine.numbers[1:] == [threads] * 39


def test_a_short_load_before_the_first_step_is_not_taken_for_others(machine, monkeypatch):
    loads = iter([1.0, 0.2])
    monkeypatch.setattr(Others, "cores", lambda _: next(loads))
    machine.use = "idle"
    assert train(engine_on(machine), 20) == 0
    assert machine.numbers[10:] == [2] * 10


def test_steps_that_others_interrupt_count_though_most_steps_are_faster(machine, monkeypatch):
    """On two busy cores most steps of two threads are a little faster; one in five waits long."""
    monkeypatch.setitem(MILLISECONDS, ("busy", 2), 45.0)
    machine.interrupted = 5
    assert train(engine_on(machine, steps=1000), 200) == 1


def test_nothing_is_tried_after_the_decision_in_this_run_and_in_later_ones(machine):
    first = engine_on(machine)
    assert train(first, 60) == 1
    assert first.decided
    machine.use = "idle"
    later = engine_on(machine)
    machine.numbers.clear()
    assert train(first, 100) == 1
    assert train(later, 100) == 1
    assert set(machine.numbers) == {1}
    assert later.report()["source"] == "cache"
    assert later.report()["stretches"] == [[1, "1 thread"]]


@each_row(("use", "steps", "seeing"), [("idle", 150, 1), ("busy", 40, 0)])
def test_nothing_is_tried_on_an_idle_machine_or_in_a_short_run(machine, use, steps, seeing):
    """On an idle machine the first step has shown that it is idle."""
    machine.use = use
    machine.numbers.clear()
    assert train(engine_on(machine, steps=steps), 40) == 0
    assert machine.numbers == [1] * seeing + [2] * (40 - seeing)


def test_a_program_that_sets_its_own_number_keeps_it(machine):
    def step(model: nn.Module, batch: Batch) -> Tensor:
        torch.set_num_threads(2)
        return machine.step(model, batch)

    engine = engine_on(machine, step=step)
    assert train(engine, 100) == 0
    assert set(machine.numbers) == {2}
    assert "the program sets the number" in engine.report()["trials"]["1 thread"]


@each_row("compiled", ["step", "model"])
def test_a_program_that_compiles_keeps_its_number(machine, compiled):
    """torch compiles again for another number of threads, which takes longer than a trial saves."""

    def step(model: nn.Module, batch: Batch) -> Tensor:
        return machine.step(model, batch)

    machine.numbers.clear()
    engine = engine_on(machine, step=step, policy=replace(POLICY, short_step=1.0))
    if compiled == "step":
        step._torchdynamo_orig_callable = step
    else:  # as `model.compile()` does
        engine.model._compiled_call_impl = engine.model._call_impl
    assert train(engine, 100) == 0
    assert set(machine.numbers) == {2}
    assert "compile" in engine.report()["trials"]["1 thread"]


@pytest.mark.usefixtures("machine")
def test_a_single_thread_is_tried_for_short_steps_only():
    assert fewer_threads(single=True) == fewer_threads(single=False) == [1]
    torch.set_num_threads(16)
    assert fewer_threads(single=True) == [8, 1]
    assert fewer_threads(single=False) == [8]
    torch.set_num_threads(1)
    assert fewer_threads(single=True) == []


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="the kernel counts nothing")
def test_a_busy_process_beside_this_one_is_seen():
    others = OtherPrograms()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_for(lambda: others.cores() > 0.25 and others.seconds() > 0.3)
    finally:
        busy.kill()
        busy.wait()
    assert others.known
    assert others.cores() <= others.all_cores == len(os.sched_getaffinity(0))


@each_row(("nice", "giving_way"), [(0, 0.0), (5, 2 * 0.3)])
def test_what_this_process_uses_and_what_gives_way_to_it_do_not_count(
    tmp_path, monkeypatch, nice, giving_way
):
    """A line has user, nice, system, idle, iowait, irq, softirq, steal, and two of guests."""
    monkeypatch.setattr(os, "getpriority", lambda *_: nice)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    now, own = [10.0], [3.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: own[0])
    stat = tmp_path / "stat"
    before = "100 5 20 900 7 1 2 3 0 0"
    stat.write_text(
        f"cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 {before}\ncpu1 {before}\ncpu2 {before}\nintr 5\n"
    )
    others = OtherPrograms(stat)
    now[0], own[0] = 12.0, 4.5
    later = "220 35 60 900 7 11 12 23 0 0"  # 120 + 40 + 10 + 10 + 20 ticks more, and 30 nice
    stat.write_text(f"cpu0 {later}\ncpu1 99999 0 0 0 0 0 0 0 0 0\ncpu2 {later}\n")
    assert others.seconds() == 2.0
    assert others.cores() == pytest.approx((2 * 2.0 + giving_way - 1.5) / 2.0)


def test_a_system_that_counts_nothing_is_left_alone(tmp_path):
    others = OtherPrograms(tmp_path / "none")
    assert not others.known
    assert others.cores() == 0.0
