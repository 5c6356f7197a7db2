"""What single steps record for the page: learning rates, gradient norms, progress and drawing."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, TensorDataSet, Trainer
from flodl.monitor import EpochRecord, Monitor, StepProgress
from flodl.monitor.records import Finish, RunInfo, StepSeries
from flodl.nn.clip import limited_norm
from flodl.train.step.step_values import StepValues
from tests import fork_server

STEPS = 8


class Seen:
    """A sink that keeps all it receives."""

    def __init__(self) -> None:
        self.curves: dict[str, dict[int, float]] = {}
        self.records: list[EpochRecord] = []
        self.positions: list[StepProgress] = []
        self.ledgers: list[dict[str, float]] = []
        self.svg = ""

    def open(self, info: RunInfo) -> None:
        self.svg = info.svg

    def record(self, record: EpochRecord) -> None:
        self.records.append(record)

    def steps(self, series: list[StepSeries]) -> None:
        for piece in series:
            pairs = zip(piece.steps, piece.values, strict=True)
            self.curves.setdefault(piece.name, {}).update(pairs)

    def progress(self, progress: StepProgress) -> None:
        self.positions.append(progress)

    def ledger(self, seconds: dict[str, float]) -> None:
        self.ledgers.append(dict(seconds))

    def finish(self, summary: Finish) -> None:
        """Nothing follows."""


def model() -> nn.Module:
    return FlowBuilder.from_(nn.Linear(2, 4)).through(nn.Linear(4, 1)).label("two").build()


def step(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def train(**settings: Any) -> Seen:
    """Train two epochs of eight steps, and return what a sink has seen."""
    torch.manual_seed(0)
    inputs = torch.randn(2 * STEPS, 2)
    data = TensorDataSet(inputs, inputs.sum(1, keepdim=True))
    monitor, seen = Monitor(2, terminal=False), Seen()
    monitor.add_sink(seen)
    builder = (
        Trainer.builder(lambda device: model().to(device), lambda p: torch.optim.SGD(p, 0.1), step)
        .dataset(data)
        .batch_size(2)
        .num_epochs(2)
        .device("cpu")
        .monitor(monitor)
    )
    for name, value in settings.items():
        builder = getattr(builder, name)(value)
    builder.run()
    return seen


class Halving:
    """0.4, 0.2, 0.1, … and the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def lr(self, step: int) -> float:
        self.calls += 1
        return 0.4 / 2**step


def test_the_rate_of_a_schedule_is_recorded_at_every_step_without_further_calls():
    schedule = Halving()
    seen = train(scheduler=lambda _: schedule)
    assert seen.curves["lr"] == {step: 0.4 / 2**step for step in range(2 * STEPS)}
    assert schedule.calls == 2 * STEPS, "the user's schedule is called as often as before"
    assert [record.lr for record in seen.records] == [0.4 / 2**7, 0.4 / 2**15]


def test_a_constant_rate_is_recorded_too():
    seen = train()
    assert set(seen.curves["lr"].values()) == {0.1}
    assert [record.lr for record in seen.records] == [0.1, 0.1]
    assert "grad_norm" not in seen.curves, "without clipping no norm is computed"
    assert [record.grad_norm for record in seen.records] == [None, None]


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_norms_before_clipping_are_recorded_at_every_step(engine):
    told: list[float] = []
    real = limited_norm

    def watched(parameters: Any, limit: float) -> torch.Tensor:
        norm = real(parameters, limit)
        told.append(float(norm))
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flodl.train.step.halves.limited_norm", watched)
        seen = train(max_grad_norm=0.01, engine=engine)
    assert list(seen.curves["grad_norm"]) == list(range(2 * STEPS))
    assert list(seen.curves["grad_norm"].values()) == pytest.approx(told)
    first = math.fsum(told[:STEPS]) / STEPS
    assert seen.records[0].grad_norm == pytest.approx(first), "the mean of the epoch"


def test_recording_does_not_change_the_training():
    def trained(monitor: Monitor | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        inputs = torch.randn(16, 2)
        builder = (
            Trainer.builder(
                lambda device: model().to(device), lambda p: torch.optim.SGD(p, 0.1), step
            )
            .dataset(TensorDataSet(inputs, inputs.sum(1, keepdim=True)))
            .batch_size(2)
            .num_epochs(2)
            .device("cpu")
            .max_grad_norm(0.5)
        )
        return (builder.monitor(monitor) if monitor else builder).run().join().params

    recorded, plain = trained(Monitor(2, terminal=False)), trained(None)
    assert all(torch.equal(one, other) for one, other in zip(recorded, plain, strict=True))


def test_a_step_can_record_values_under_these_names_itself():
    from flodl import record_scalar

    def own(model: nn.Module, batch: Any) -> torch.Tensor:
        record_scalar("lr", 7.0)
        return step(model, batch)

    torch.manual_seed(0)
    monitor, seen = Monitor(1, terminal=False), Seen()
    monitor.add_sink(seen)
    inputs = torch.randn(8, 2)
    (
        Trainer.builder(lambda device: model().to(device), lambda p: torch.optim.SGD(p, 0.1), own)
        .dataset(TensorDataSet(inputs, inputs.sum(1, keepdim=True)))
        .batch_size(2)
        .num_epochs(1)
        .device("cpu")
        .monitor(monitor)
        .run()
    )
    assert set(seen.curves["lr"].values()) == {7.0}


def test_the_position_is_told_from_the_first_step_with_load_and_time_ledger():
    positions: list[tuple[int, int, int | None, str]] = []
    real = Monitor.log_progress

    def told(self: Monitor, epoch: int, step: int, steps: int | None = None, **more: Any) -> None:
        positions.append((epoch, step, steps, more["phase"]))
        real(self, epoch, step, steps, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Monitor, "log_progress", told)
        seen = train(eval_fn=lambda _: {"val": 1.0})
    assert positions[:2] == [(0, 0, STEPS, "training"), (0, 1, STEPS, "training")]
    assert (0, STEPS, STEPS, "evaluating") in positions
    assert (1, 0, STEPS, "training") in positions
    assert seen.positions[-1].resources.ram_used
    assert seen.ledgers[0]["import"] >= 0


def test_a_graph_is_drawn_by_itself():
    assert "<svg" in train().svg


def test_a_program_that_draws_its_model_itself_is_left_alone():
    monitor = Monitor(1, terminal=False)
    monitor.set_svg("<svg>mine</svg>")
    inputs = torch.randn(8, 2)
    (
        Trainer.builder(lambda device: model().to(device), lambda p: torch.optim.SGD(p, 0.1), step)
        .dataset(TensorDataSet(inputs, inputs.sum(1, keepdim=True)))
        .batch_size(2)
        .num_epochs(1)
        .device("cpu")
        .monitor(monitor)
        .run()
    )
    assert monitor._info.svg == "<svg>mine</svg>"


def test_values_are_taken_once_and_a_norm_that_is_not_finite_is_left_out_of_the_mean():
    values = StepValues()
    values.norms += [(0, torch.tensor(1.0)), (1, torch.tensor(math.inf)), (2, torch.tensor(3.0))]
    taken = {name: (steps, found) for name, steps, found in values.take(2, wait=False)}
    assert taken == {"grad_norm": ([0, 1, 2], [1.0, math.inf, 3.0])}
    assert values.grad_norm == 2.0
    assert list(values.take(3, wait=True)) == []
    values.begin_epoch()
    assert values.grad_norm is None


PROGRAM = """
import sys, time
import torch
from torch import nn
from flodl import RunDirectory, TensorDataSet, Trainer

x = torch.randn(8, 2)
with RunDirectory.create(sys.argv[1]) as run:
    (
        Trainer.builder(lambda d: nn.Linear(2, 1).to(d), lambda p: torch.optim.SGD(p, 0.1),
                        lambda model, batch: model(batch[0]).square().mean())
        .dataset(TensorDataSet(x, x)).batch_size(2).num_epochs(1).run_dir(run).device("cpu").run()
    )
time.sleep(0.3)
"""


def test_the_time_after_the_training_is_in_the_report(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = fork_server.python("program.py", "runs", cwd=tmp_path, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.glob("runs/*/report.html")
    text = page.read_text()
    (ledger,) = re.findall(r'"ledger":(\{[^}]*\}),"written"', text)
    assert json.loads(ledger)["shutdown"] >= 0.3
    assert '"status":"complete"' in text
