"""What a monitor takes, prints and remembers."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from flodl.errors import StateError
from flodl.log import set_verbosity
from flodl.monitor import EpochMetrics, GpuSnapshot, Monitor, ResourceSample
from flodl.monitor.records import to_json
from flodl.monitor.sinks import TerminalSink
from tests import fork_server
from tests.rows import each_row

from .test_sinks import record


class Graphlike:
    def latest_metrics(self):
        return [("total_loss", 1.0), ("encoder.loss", 0.4)]


@pytest.mark.case("runtime", 81)
def test_terminal_line_reads_well_and_nan_is_text_in_json(capsys):
    monitor = Monitor(100)
    monitor.log(6, 0.024, {"loss": 0.0023})
    assert capsys.readouterr().out.startswith("  epoch   7/100  loss=0.0023  [24ms  ETA ")
    monitor.log(7, 0.024, {"x": math.nan})
    assert "  x=nan  " in capsys.readouterr().out
    form = json.loads(to_json(monitor.history[-1].as_json()))
    assert form["metrics"] == {"x": "nan"}
    assert form["epoch"] == 8
    monitor.finish()


def test_a_run_on_the_terminal(capsys, clock):
    monitor = Monitor(3, clock=clock)
    for epoch, loss in enumerate([0.5, 0.25, 0.125]):
        clock.now += 1.5
        monitor.log(epoch, 1.25, {"loss": loss, "acc": 1 - loss})
    clock.now += 0.5
    monitor.finish()
    monitor.finish()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  VRAM")[0] for line in lines] == [
        "  epoch 1/3  loss=0.5000  acc=0.5000  [1.2s  ETA 2.5s]",
        "  epoch 2/3  loss=0.2500  acc=0.7500  [1.2s  ETA 1.3s]",
        "  epoch 3/3  loss=0.1250  acc=0.8750  [1.2s]",
        "  3 epochs in 5s, loss 0.1250, acc 0.8750",
    ]


def test_vram_stands_at_the_end_of_the_line(capsys):
    gib = 1024**3
    gpus = (
        GpuSnapshot(0, "A", 90.0, int(2.1 * gib), 6 * gib),
        GpuSnapshot(1, "A", 74.0, 0, 6 * gib),
    )
    spilled = (GpuSnapshot(0, "A", None, 7 * gib, 6 * gib),)
    TerminalSink().record(record(0, {}, resources=ResourceSample(gpus=gpus)))
    TerminalSink().record(record(0, {}, resources=ResourceSample(gpus=spilled)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("]  VRAM: 2.1/6.0 GB (82%)")
    assert lines[1].endswith("]  VRAM: 7.0/6.0 GB spill 1.0 GB")


@each_row(
    ("status", "line"),
    [
        ("complete", "  0 epochs in 3s\n"),
        ("interrupted", "  interrupted after 0 epochs in 3s\n"),
        ("diverged", "  diverged after 0 epochs in 3s\n"),
        ("failed", "  failed after 0 epochs in 3s\n"),
    ],
)
def test_how_a_run_ends(capsys, clock, status, line):
    monitor = Monitor(3, clock=clock)
    clock.now += 3
    monitor.finish(status)
    assert capsys.readouterr().out == line


def test_quiet_prints_nothing_and_remembers_all(capsys):
    set_verbosity("quiet")
    monitor = Monitor(1)
    monitor.log(0, 1.0, {"loss": 1.0})
    monitor.finish()
    assert capsys.readouterr() == ("", "")
    assert len(monitor.history) == 1


def test_eta_counts_the_epochs_of_this_run(clock):
    monitor = Monitor(100, clock=clock, terminal=False)
    clock.now += 60  # building the model
    clock.now += 2
    monitor.log(89, 2.0)  # resumed at epoch 90 of 100
    clock.now += 4
    monitor.log(90, 4.0)
    monitor.log(99, 1.0)
    monitor.log(120, 1.0)
    assert [one.eta for one in monitor.history] == [20.0, 27.0, None, None]
    assert [one.elapsed for one in monitor.history] == [62.0, 66.0, 66.0, 66.0]
    monitor.finish()


def test_an_epoch_of_unknown_length_does_not_spoil_the_eta(clock):
    monitor = Monitor(3, clock=clock, terminal=False)
    monitor.log(0, math.nan)
    clock.now += 4
    monitor.log(1, 4.0)
    assert [one.eta for one in monitor.history] == [0.0, 2.0]
    monitor.finish()


EPOCH_METRICS = EpochMetrics(0, 0.5, {"acc": 0.9}, 20.0, 3.2, [1.0])


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, []),
        ({}, []),
        ({"loss": 1, "acc": torch.tensor(0.5)}, [("loss", 1.0), ("acc", 0.5)]),
        ([("b", 2.0), ("a", True), ("b", 3.0)], [("b", 3.0), ("a", 1.0)]),
        ((("b", 2.0), ("a", 1.0)), [("b", 2.0), ("a", 1.0)]),
        ((pair for pair in [("x", 1.0)]), [("x", 1.0)]),
        (Graphlike(), [("total_loss", 1.0), ("encoder.loss", 0.4)]),
        ((Graphlike(), {"lr": 0.1}), [("total_loss", 1.0), ("encoder.loss", 0.4), ("lr", 0.1)]),
        (EPOCH_METRICS, [("loss", 0.5), ("acc", 0.9)]),
        ((EPOCH_METRICS, {"lr": 0.1}), [("loss", 0.5), ("acc", 0.9), ("lr", 0.1)]),
        (
            EpochMetrics(0, 0.5, {"loss": 0.7}, 20.0, 3.2, [1.0]),
            [("avg_loss", 0.5), ("loss", 0.7)],
        ),
    ],
)
def test_metrics_come_in_many_forms(monitor, given, taken):
    monitor.log(0, 1.0, given)
    assert list(monitor.history[0].metrics) == taken


def test_a_trainers_throughput_is_kept(monitor):
    monitor.log(0, 1.0, EPOCH_METRICS)
    monitor.log(1, 1.0, (EPOCH_METRICS, {"lr": 0.1}))
    monitor.log(2, 1.0, {"loss": 1.0})
    assert [one.throughput for one in monitor.history] == [3.2, 3.2, None]
    assert monitor.history[0].as_json()["throughput"] == 3.2
    assert "throughput" not in monitor.history[2].as_json()


@each_row(
    ("given", "message"),
    [
        (
            {"loss": torch.zeros(2, 3)},
            r"metric 'loss' is a Tensor of shape \[2, 3\], not one numbe",
        ),
        ({"loss": "0.5"}, "metric 'loss' is a str, not one number"),
        ({"loss": None}, "metric 'loss' is a NoneType"),
        ({"loss": 10**400}, "metric 'loss' is a int"),
        (("loss", 0.5), "'loss' is neither a mapping, a .name, value. pair"),
        ("loss", "'loss' is neither a mapping"),
        (0.5, "0.5 is neither a mapping"),
        ([1, 2], "1 is neither a mapping"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(monitor, given, message):
    with pytest.raises(ValueError, match=message):
        monitor.log(0, 1.0, given)
    assert monitor.history == ()


def test_misuse_is_refused(monitor):
    with pytest.raises(ValueError, match="total_epochs is 0; a run has at least 1 epoch"):
        Monitor(0)
    with pytest.raises(ValueError, match="epoch is -1; epochs count from 0"):
        monitor.log(-1, 1.0)
    with pytest.raises(ValueError, match="'done'; use one of complete, interrupted, diverged, fai"):
        monitor.finish("done")
    monitor.finish()
    with pytest.raises(StateError, match="make a new Monitor"):
        monitor.log(0, 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[1, 2]", "a list is not a mapping"),
        ("{broken", "not JSON"),
        (3, "a int is not a mapping"),
    ],
)
def test_metadata_that_is_no_mapping_is_refused(monitor, given, message):
    with pytest.raises(ValueError, match=message):
        monitor.set_metadata(given)


def test_metadata_without_an_end_is_refused(monitor):
    circle: dict[str, object] = {}
    circle["self"] = circle
    with pytest.raises(ValueError, match="nested deeper than"):
        monitor.set_metadata(circle)


def test_names_cannot_steer_the_terminal(capsys):
    monitor = Monitor(1)
    monitor.log(0, 1.0, {"a\nb": 1.0, "\x1b[31mred": 2.0, "naïve 学习": 3.0, "\udc80": 4.0})
    monitor.finish()
    line = capsys.readouterr().out.splitlines()[0]
    assert r"a\nb=1.0000  \x1b[31mred=2.0000  naïve 学习=3.0000  \udc80=4.0000" in line


def test_training_survives_a_closed_stdout(capsys, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monitor = Monitor(3)
    monkeypatch.setattr(sys, "stdout", closed)
    for epoch in range(3):
        monitor.log(epoch, 1.0, {"loss": 1.0})
    monitor.finish()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("warning: monitor: no more lines on stdout, training continues")
    assert len(monitor.history) == 3


def test_training_survives_a_reader_that_leaves():
    program = """
import sys
from flodl.monitor import Monitor
monitor = Monitor(20000)
for epoch in range(20000):
    monitor.log(epoch, 0.001, {"loss": 1.0})
monitor.finish()
print(len(monitor.history), file=sys.stderr)
sys.stderr.flush()
import os; os._exit(0)
"""
    reader, writer = os.pipe()
    command = [fork_server.torch_program(os.environ), "-c", program]
    training = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    os.read(reader, 100)
    os.close(reader)
    _, err = training.communicate(timeout=60)
    warnings, count = err.splitlines()
    assert "no more lines on stdout" in warnings
    assert count == "20000"
