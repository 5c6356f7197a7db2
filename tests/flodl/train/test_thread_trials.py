"""The number of threads is tried on a busy machine, before the engine decides, and never after.

The machine here is a stand-in: a step sleeps as long as the simulated machine would compute.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.train.engines import AutoEngine, AutoPolicy, StepSettings
from flodl.train.engines.cores import CoreUse, idle_seconds
from flodl.train.engines.thread_trials import ThreadPolicy, other_numbers
from flodl.train.losses import loss_log
from tests import fork_server
from tests.rows import each_row

POLICY = AutoPolicy(
    least_steps=10**5,
    threads=ThreadPolicy(block=0.0, steps=50, seconds=0.01),
)
"""Tries numbers of threads only."""

MILLISECONDS = {
    ("idle", 2): 1.0,
    ("idle", 1): 3.0,
    ("busy", 2): 9.0,
    ("busy", 1): 3.0,
    ("full", 1): 3.0,
}


class Machine:
    """A machine with two cores, which other programs use or not. Its clock is not the real one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.use = "idle"
        self.waited = self.idle = 0.0
        self.slower = 1.0
        self.numbers: set[int] = set()
        self.spins: list[str] = []

    def read_clock(self) -> float:
        self.now += 1e-7
        return self.now

    def step(self, model: nn.Module, batch: Batch) -> Tensor:
        self.compute(len(batch["x"]))
        return model(batch["x"]).sum()

    def compute(self, rows: int = 1) -> None:
        threads = torch.get_num_threads()
        self.numbers.add(threads)
        seconds = MILLISECONDS[self.use, threads] / 1e3 * self.slower * rows
        self.now += seconds
        if self.use == "busy":
            self.waited += seconds / 2
        elif self.use == "idle":
            self.idle += seconds * (2 - threads)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    machine = Machine()
    monkeypatch.setattr(time, "perf_counter", machine.read_clock)
    monkeypatch.setattr("flodl.train.engines.cores.waited_seconds", lambda: machine.waited)
    monkeypatch.setattr("flodl.train.engines.cores.idle_seconds", lambda: machine.idle)
    for name in ("hold", "release"):
        monkeypatch.setattr(
            f"flodl.openmp.ShortSpin.{name}", lambda _, name=name: machine.spins.append(name)
        )
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


def train(engine: AutoEngine, most: int, until: int | None = None, rows: int = 1) -> int:
    """Train until a number of threads is used, at most some steps; return that number."""
    losses = loss_log(torch.device("cpu"), 0)
    for _ in range(most):
        engine.step(Batch((torch.ones(rows, 2),), ("x",)), losses)
        if engine.tuning.threads == until and engine._course is None:
            break
    return engine.tuning.threads


def test_a_busy_machine_is_noticed_in_the_first_steps(machine):
    machine.use = "busy"
    engine = engine_on(machine, steps=150)
    assert train(engine, 50) == 1
    assert engine.report()["trials"]["1 thread"].startswith("0.")


def test_after_the_trial_of_threads_no_step_of_a_busy_machine_has_more(machine):
    machine.use = "busy"
    policy = replace(
        POLICY, least_steps=50, least_seconds=0.0, only=frozenset({"threads", "channels_last"})
    )
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 1))
    counts: list[int] = []

    def step(model: nn.Module, batch: Batch) -> Tensor:
        counts.append(torch.get_num_threads())
        faster = 0.5 if engine.tuning.channels_last else 1.0
        machine.now += faster * MILLISECONDS["busy", counts[-1]] / 1e3
        machine.waited += 1e-3
        return model(batch["x"]).sum()

    settings = StepSettings(train_fn=step)
    engine = AutoEngine(
        model, torch.optim.Adagrad(model.parameters()), settings, total_steps=2000, policy=policy
    )
    losses = loss_log(torch.device("cpu"), 0)
    while not engine.decided:
        engine.step(Batch((torch.ones(2, 1, 4, 4),), ("x",)), losses)
        assert len(counts) < 1000
    report = engine.report()
    assert str(engine.tuning) == "channels last + 1 thread", report
    assert report["trials"]["all together"] == "0.500x"
    assert report["step_ms"] == pytest.approx(1.5, rel=0.01)
    assert 2 not in counts[40:]


# Nobody waits on a full machine, and no core is free.
@pytest.mark.parametrize("then", ["busy", "full", "idle"])
def test_threads_are_tried_again_if_a_core_became_free_during_the_other_trials(machine, then):
    machine.use = "busy"
    policy = replace(
        POLICY, least_steps=50, least_seconds=0.0, only=frozenset({"threads", "channels_last"})
    )
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 1))

    def step(model: nn.Module, batch: Batch) -> Tensor:
        if engine.tuning.channels_last:
            machine.use = then  # it changes during the trial of the layout
        machine.slower = 0.5 if engine.tuning.channels_last else 1.0
        machine.compute()
        return model(batch["x"]).sum()

    settings = StepSettings(train_fn=step)
    engine = AutoEngine(
        model, torch.optim.Adagrad(model.parameters()), settings, total_steps=2000, policy=policy
    )
    losses = loss_log(torch.device("cpu"), 0)
    taken = 0
    while not engine.decided:
        engine.step(Batch((torch.ones(2, 1, 4, 4),), ("x",)), losses)
        taken += 1
        assert taken < 1000
    report, stays = engine.report(), then != "idle"
    assert str(engine.tuning) == ("channels last + 1 thread" if stays else "channels last"), report
    assert report["plain_ms"] == pytest.approx(9.0 if stays else 1.0, rel=0.01)
    assert report["step_ms"] == pytest.approx(1.5 if stays else 0.5, rel=0.01)


@pytest.mark.parametrize(("busy_ms", "kept"), [(3.0, 1), (2.75, 1), (2.6, 0)])
def test_a_busy_machine_is_shared_if_that_costs_little(machine, monkeypatch, busy_ms, kept):
    monkeypatch.setitem(MILLISECONDS, ("busy", 2), busy_ms)  # one thread needs 3 ms
    machine.use = "busy"
    engine = engine_on(machine, steps=400)
    assert train(engine, 60) == kept


# One thread needs 3 ms.
@pytest.mark.parametrize(("busy_ms", "with_two"), [(40.0, 2), (4.5, 3 + 2 * (1 + 6))])
def test_an_evident_comparison_suffices_on_a_crowded_machine(
    machine, monkeypatch, busy_ms, with_two
):
    monkeypatch.setitem(MILLISECONDS, ("busy", 2), busy_ms)
    machine.use = "busy"
    counts: list[int] = []

    def step(model: nn.Module, batch: Batch) -> Tensor:
        counts.append(torch.get_num_threads())
        return machine.step(model, batch)

    policy = replace(POLICY, threads=replace(POLICY.threads, block=0.025))
    engine = engine_on(machine, steps=1000, step=step, policy=policy)
    assert train(engine, 60, until=1) == 1
    assert counts.count(2) == with_two


@pytest.mark.parametrize("busy_ms", [75.0, 60.0])
def test_a_short_training_of_long_steps_soon_shares_a_crowded_machine(
    machine, monkeypatch, busy_ms
):
    monkeypatch.setitem(MILLISECONDS, ("busy", 2), busy_ms)
    monkeypatch.setitem(MILLISECONDS, ("busy", 1), 40.0)
    machine.use = "busy"
    engine = engine_on(machine, steps=90, policy=AutoPolicy())
    assert train(engine, 90) == 1
    assert machine.now <= 1.15 * 90 * 0.040


def test_a_trial_without_a_clear_result_takes_a_part_of_the_steps_that_are_left(machine):
    machine.use = "busy"
    odd = iter([1.0, 1.2, 0.85] * 1000)

    def step(model: nn.Module, batch: Batch) -> Tensor:
        machine.numbers.add(torch.get_num_threads())
        machine.now += 0.03 * next(odd)
        machine.waited += 0.015
        return model(batch["x"]).sum()

    policy = replace(AutoPolicy(), threads=ThreadPolicy(share=0.0))
    engine = engine_on(machine, steps=60, policy=policy, step=step)
    losses, tried = loss_log(torch.device("cpu"), 0), 0
    for _ in range(60):
        engine.step(Batch((torch.ones(1, 2),), ("x",)), losses)
        tried += engine._course is not None
    assert machine.numbers == {1, 2}
    assert tried <= 2 + 12 + 4  # a fifth of 60, and the rest of the comparison in which it ends


@pytest.mark.parametrize(
    ("cores", "others", "spins"),
    [(2, False, ["hold"]), (4, True, ["hold"]), (4, False, [])],
)
def test_threads_spin_briefly_in_the_first_step_if_a_program_could_wait_for_their_core(
    machine, monkeypatch, cores, others, spins
):
    module = "flodl.train.engines.thread_trials"
    monkeypatch.setattr(f"{module}.usable_cores", lambda: cores)
    monkeypatch.setattr(f"{module}.other_programs_run", lambda: others)
    held: list[list[str]] = []

    def step(model: nn.Module, batch: Batch) -> Tensor:
        held.append(list(machine.spins))
        return machine.step(model, batch)

    engine = engine_on(machine, step=step)
    train(engine, 3)
    assert held[0] == spins
    assert held[1] == [*spins, "release"]


def test_nothing_is_tried_after_the_decision_in_this_run_and_in_later_ones(machine):
    machine.use = "busy"
    first = engine_on(machine)
    assert train(first, 60, until=1) == 1
    machine.use = "idle"
    later = engine_on(machine)
    machine.numbers.clear()
    assert train(first, 400) == 1
    assert train(later, 400) == 1
    assert machine.numbers == {1}
    assert later.report()["source"] == "cache"
    assert later.report()["stretches"] == [[1, "1 thread"]]


@pytest.mark.parametrize(("use", "steps"), [("idle", 150), ("busy", 40)])
def test_nothing_is_tried_on_an_idle_machine_or_in_a_short_run(machine, use, steps):
    machine.use = use
    assert train(engine_on(machine, steps=steps), 40) == 0
    assert machine.numbers == {2}


def test_a_program_that_sets_its_own_number_keeps_it(machine):
    def step(model: nn.Module, batch: Batch) -> Tensor:
        torch.set_num_threads(2)
        return machine.step(model, batch)

    machine.use = "busy"
    engine = engine_on(machine, step=step)
    assert train(engine, 100) == 0
    assert machine.numbers == {2}
    assert engine._threads is None


@each_row(
    ("present", "most", "expected"),
    [(0, 2, [1]), (1, 2, [0]), (0, 16, [8, 1]), (8, 16, [0, 4, 1]), (1, 16, [0, 8, 2]), (0, 1, [])],
)
def test_other_numbers_of_threads(present, most, expected):
    assert other_numbers(present, most) == expected


def test_long_steps_go_down_by_half():
    assert other_numbers(0, 64, single=False) == [32]
    assert other_numbers(32, 64, single=False) == [0, 16]
    assert other_numbers(0, 2, single=False) == [1]


def test_a_number_that_takes_far_longer_is_given_up_at_once(machine, monkeypatch):
    monkeypatch.setitem(MILLISECONDS, ("busy", 1), 30.0)
    machine.use = "busy"
    engine = engine_on(machine, steps=1000)
    counts: list[int] = []
    losses = loss_log(torch.device("cpu"), 0)
    for _ in range(40):
        engine.step(Batch((torch.ones(1, 2),), ("x",)), losses)
        counts.append(engine.tuning.threads)
    assert counts.count(1) == 2
    assert engine.tuning.threads == 0


@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").is_file(), reason="the kernel counts nothing"
)
def test_a_thread_that_shares_its_core_waits(tmp_path):
    program = tmp_path / "shares.py"
    program.write_text(
        "import os, time\n"
        "from flodl.train.engines.cores import CoreUse\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "use, end = CoreUse(), time.monotonic() + 0.4\n"
        "other = os.fork()\n"
        "while time.monotonic() < end: pass\n"
        "print(use.waited()) if other else os._exit(0)\n"
    )
    ran = fork_server.python(str(program), torch=True, abrupt=True)
    assert float(ran.stdout) > 0.2, ran.stderr
    assert idle_seconds() > 0
    assert CoreUse().idle() <= (os.cpu_count() or 1) + 1
