"""On a busy machine, the number of threads is tried first, and never after the decision.

The machine here is a stand-in: a step takes as long as the simulated machine would compute.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.train.step import AutoEngine, AutoPolicy, StepSettings
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuning import fewer_threads, waited_seconds
from tests import fork_server
from tests.rows import each_row

POLICY = AutoPolicy(least_steps=50, least_seconds=0.01, only=frozenset({"threads"}))

MILLISECONDS = {("idle", 2): 30.0, ("idle", 1): 50.0, ("busy", 2): 90.0, ("busy", 1): 50.0}


class Machine:
    """A machine with two cores, which other programs use or not. Its clock is not the real one."""

    def __init__(self) -> None:
        self.now = self.waited = 0.0
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
        self.waited += seconds / 2 if self.use == "busy" else 0.0
        return model(batch["x"]).sum()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    machine = Machine()
    monkeypatch.setattr(time, "perf_counter", machine.read_clock)
    monkeypatch.setattr("flodl.train.step.auto.waited_seconds", lambda: machine.waited)
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


def test_a_busy_machine_is_noticed_and_shared_soon(machine):
    engine = engine_on(machine, steps=150)
    assert train(engine, 20) == 1
    assert engine.report()["trials"]["1 thread"].startswith("0.")
    assert machine.numbers.count(2) <= 14  # seven before the trial, and one block of it


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


@each_row(("use", "steps"), [("idle", 150), ("busy", 40)])
def test_nothing_is_tried_on_an_idle_machine_or_in_a_short_run(machine, use, steps):
    machine.use = use
    machine.numbers.clear()
    assert train(engine_on(machine, steps=steps), 40) == 0
    assert set(machine.numbers) == {2}


def test_a_program_that_sets_its_own_number_keeps_it(machine):
    def step(model: nn.Module, batch: Batch) -> Tensor:
        torch.set_num_threads(2)
        return machine.step(model, batch)

    engine = engine_on(machine, step=step)
    assert train(engine, 100) == 0
    assert set(machine.numbers) == {2}
    assert "the program sets the number" in engine.report()["trials"]["1 thread"]


def test_a_number_that_takes_far_longer_is_given_up_soon(machine, monkeypatch):
    monkeypatch.setitem(MILLISECONDS, ("busy", 1), 300.0)
    engine = engine_on(machine, steps=1000)
    assert train(engine, 40) == 0
    assert engine.decided
    assert machine.numbers.count(1) <= 3


@pytest.mark.usefixtures("machine")
def test_a_single_thread_is_tried_for_short_steps_only():
    assert fewer_threads(single=True) == fewer_threads(single=False) == [1]
    torch.set_num_threads(16)
    assert fewer_threads(single=True) == [8, 1]
    assert fewer_threads(single=False) == [8]
    torch.set_num_threads(1)
    assert fewer_threads(single=True) == []


@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").is_file(), reason="the kernel counts nothing"
)
def test_a_thread_that_shares_its_core_waits(tmp_path):
    program = tmp_path / "shares.py"
    program.write_text(
        "import os, time\n"
        "from flodl.train.step.tuning import waited_seconds\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "before, end = waited_seconds(), time.monotonic() + 0.4\n"
        "other = os.fork()\n"
        "while time.monotonic() < end: pass\n"
        "print(waited_seconds() - before) if other else os._exit(0)\n"
    )
    ran = fork_server.python(str(program), torch=True, abrupt=True)
    assert float(ran.stdout) > 0.08, ran.stderr
    assert waited_seconds() <= time.monotonic()
