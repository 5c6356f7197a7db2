"""What those who watch a training get to see, and when."""

from __future__ import annotations

import itertools
import socket
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.monitor import EpochRecord, Monitor
from flodl.monitor.ledger import TimeLedger
from flodl.monitor.records import Finish, RunInfo, StepSeries
from flodl.monitor.timeline import Timeline
from flodl.train import RunDirectory, record_scalar
from flodl.train.metrics import ScalarLog
from flodl.train.observers.reporting import Reporter
from flodl.train.settings import TrainingPlan
from flodl.train.step.step_values import LossLog
from tests.waiting import at_some_pace

from .programs import line, network, sgd, squared_error, training


class Curves:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[int, float]]] = {}
        self.info: RunInfo | None = None
        self.summary: Finish | None = None
        self.epochs: list[EpochRecord] = []

    def open(self, info: RunInfo) -> None:
        self.info = info

    def record(self, record: EpochRecord) -> None:
        self.epochs.append(record)

    def steps(self, series: Sequence[StepSeries]) -> None:
        for piece in series:
            points = zip(piece.steps, piece.values, strict=True)
            self.values.setdefault(piece.name, []).extend(points)

    def finish(self, summary: Finish) -> None:
        self.summary = summary


def counting(every: int = 1) -> object:
    """A training step that records its number, not in every step."""
    numbers = itertools.count()

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        number = next(numbers)
        if number % every == 0:
            record_scalar("number", number)
        return squared_error(model, batch)

    return train_fn


def test_every_step_of_the_run_becomes_a_point_of_a_curve() -> None:
    monitor, curves = Monitor(2, terminal=False), Curves()
    monitor.add_sink(curves)
    handle = training(counting(every=2)).monitor(monitor).run()
    loss = curves.values["loss"]
    assert [step for step, _ in loss] == list(range(6))
    for epoch, metrics in enumerate(handle.poll_metrics()):
        assert sum(value for _, value in loss[3 * epoch : 3 * epoch + 3]) / 3 == pytest.approx(
            metrics.avg_loss
        )
    assert curves.values["number"] == [(0, 0.0), (2, 2.0), (4, 4.0)]


def test_with_accumulation_a_point_is_the_mean_of_the_step() -> None:
    monitor, curves = Monitor(2, terminal=False), Curves()
    monitor.add_sink(curves)
    training(counting()).accumulate(2).monitor(monitor).run()
    assert [step for step, _ in curves.values["loss"]] == [0, 1, 2, 3]
    # Batches 0 and 1 make step 0, batch 2 step 1, and so on.
    assert curves.values["number"] == [(0, 0.5), (1, 2.0), (2, 3.5), (3, 5.0)]


def test_a_resumed_run_continues_its_curves_where_they_were(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path / "first")
    training(epochs=1).run_dir(first).monitor(Monitor(1, terminal=False)).run()
    monitor, curves = Monitor(2, terminal=False), Curves()
    monitor.add_sink(curves)
    training().resume(first.path / "last.fdl").monitor(monitor).run()
    assert [step for step, _ in curves.values["loss"]] == [3, 4, 5]
    assert [record.epoch for record in curves.epochs] == [0, 1]


def slowly(_: nn.Module, seconds: float = 0.05) -> dict[str, float]:
    """An evaluation that takes its time."""
    time.sleep(seconds)
    return {}


def test_the_time_is_booked_whole_and_reaches_the_monitor() -> None:
    def is_whole(factor: float) -> bool:
        monitor, curves = Monitor(2, terminal=False), Curves()
        monitor.add_sink(curves)
        before = time.perf_counter()
        training().eval_fn(partial(slowly, seconds=0.05 * factor)).monitor(monitor).run()
        took = time.perf_counter() - before
        assert curves.summary is not None
        ledger = dict(curves.summary.ledger)
        ledger.pop("import")  # what was before the call
        assert ledger["evaluation"] >= 0.1 * factor
        steps = ("setup", "data", "forward", "backward", "optimizer")
        assert min(ledger[name] for name in steps) > 0
        return bool(sum(ledger.values()) == pytest.approx(took, rel=0.2, abs=0.02))

    at_some_pace(is_whole)


@pytest.mark.parametrize(
    ("verbosity", "told"), [("normal", "  time: "), ("verbose", "  evaluation  ")]
)
def test_the_end_tells_where_the_time_went(
    verbosity: str, told: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flodl.log._level", None)
    monkeypatch.setenv("FLODL_VERBOSITY", verbosity)
    # Else the first training of a process books all that the tests did before to "import".
    monkeypatch.setattr("flodl.monitor.ledger._start_is_booked", True)
    training().eval_fn(slowly).monitor(Monitor(2)).run()
    lines = capfd.readouterr().out.splitlines()
    end = next(n for n, text in enumerate(lines) if " epochs in " in text)
    assert any(text.startswith(told) for text in lines[end + 1 :])
    assert any("evaluation" in text for text in lines[end + 1 :])


@pytest.mark.parametrize("longer", range(8))
def test_the_line_of_the_time_fits_a_terminal(
    longer: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"import": 52, "backward": 19, "forward": 13, "optimizer": 7, "logging": 3}
    parts["setup" + "s" * longer] = 3
    monkeypatch.setattr(TimeLedger, "seconds", lambda _: parts)
    monkeypatch.setattr(TimeLedger, "total", 100)
    training().monitor(Monitor(2)).run()
    (line,) = [one for one in capfd.readouterr().out.splitlines() if one.startswith("  time:")]
    assert line.startswith("  time: import 52%  backward 19%  forward 13%  optimizer 7%  ")
    assert len(line) <= 80


def test_the_engine_is_named_among_the_facts_of_the_run() -> None:
    monitor, curves = Monitor(2, terminal=False), Curves()
    monitor.add_sink(curves)
    training().engine("eager").monitor(monitor).run()
    assert curves.info is not None
    assert curves.info.metadata["engine"]["engine"] == "eager"


def test_a_timeline_gets_the_beginning_and_the_end_of_every_epoch() -> None:
    timeline = Timeline()
    handle = training().timeline(timeline).run()
    losses = [metrics.avg_loss for metrics in handle.poll_metrics()]
    assert [(str(event.kind), dict(event.fields)) for event in timeline.events] == [
        ("epoch_start", {"epoch": 0}),
        ("epoch_end", {"epoch": 0, "loss": losses[0]}),
        ("epoch_start", {"epoch": 1}),
        ("epoch_end", {"epoch": 1, "loss": losses[1]}),
    ]


def test_the_live_page_is_there_while_training_runs() -> None:
    monitor = Monitor(1, terminal=False)
    pages: list[bytes] = []

    def look(_: object) -> None:
        assert monitor.url is not None
        with urllib.request.urlopen(monitor.url, timeout=30) as reply:
            pages.append(reply.read())

    training(epochs=1).live().monitor(monitor).metrics_fn(look).run()
    monitor.close()
    assert b"<html" in pages[0]


def test_a_busy_port_does_not_stop_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monitor = Monitor(2, terminal=False)
        handle = training().live(port).monitor(monitor).run()
    assert monitor.url is not None
    assert f":{port}/" not in monitor.url
    monitor.close()
    assert len(handle.poll_metrics()) == 2
    assert f"cannot use 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_machine_that_starts_no_process_trains_without_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no(*_: object, **__: object) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("flodl.monitor.server.subprocess.Popen", no)
    assert len(training().live().monitor(Monitor(2, terminal=False)).run().poll_metrics()) == 2
    assert "there is no live page: " in capsys.readouterr().err


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_step_values_are_delivered_about_once_a_second() -> None:
    monitor, curves, clock = Monitor(1, terminal=False), Curves(), Clock()
    monitor.add_sink(curves)
    plan = TrainingPlan(
        model_factory=network,
        optimizer_factory=sgd,
        train_fn=squared_error,
        dataset=line(),
        batch_size=1,
        num_epochs=1,
        progress=False,
    )
    reporter = Reporter(plan, monitor, TimeLedger(), clock)
    losses, counter = LossLog(0), type("Counter", (), {"global_step": 0})()
    due = reporter.begin_epoch(
        0, steps=10, done=0, first_step=40, losses=losses, scalars=ScalarLog(counter)
    )
    assert due == 100.0, "the first step of a training is shown at once"
    assert reporter.tick(0) == 101.0
    losses.add(torch.tensor(1.0))
    clock.now = 100.9
    assert reporter.tick(1) == 101.0
    monitor.flush()
    assert curves.values.get("loss") is None
    clock.now = 101.5
    losses.add(torch.tensor(2.0))
    assert reporter.tick(2) == 102.5
    monitor.flush()
    assert curves.values == {"loss": [(40, 1.0), (41, 2.0)]}
    monitor.finish()
