"""Files that follow a run, and what happens when a sink is late, slow or broken."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import shutil
import sys
import threading

import pytest

from flodl.monitor import (
    EpochRecord,
    Finish,
    GpuSnapshot,
    Monitor,
    ResourceSample,
    RunInfo,
    Sink,
    StepSeries,
)
from flodl.monitor.media.records import MediaRecord, Text
from flodl.monitor.records import BestEpoch
from flodl.monitor.report import HtmlSink
from flodl.monitor.sink_delivery import Delivery
from flodl.monitor.sinks import CsvSink, LogSink, TerminalSink, finish_line
from tests import fork_server
from tests.rows import each_row

GIB = 1024**3


def record(epoch, metrics, *, resources=None, seconds=0.5, total=5):
    """An epoch of a run of five, on a machine that says nothing about itself."""
    return EpochRecord(
        epoch=epoch,
        total=total,
        seconds=seconds,
        metrics=tuple(metrics.items()),
        eta=None,
        resources=resources or ResourceSample(),
        elapsed=1.0,
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Recorder:
    """A sink that keeps what it is told."""

    def __init__(self):
        self.told = []

    def open(self, info):
        self.told.append(("open", info.label))

    def record(self, record):
        self.told.append(("record", record.epoch))

    def finish(self, summary):
        self.told.append(("finish", summary.status))


class Blocked(Recorder):
    """A sink that hangs until it is released."""

    def __init__(self):
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    def record(self, record):
        self.entered.set()
        assert self.release.wait(60)
        super().record(record)


class Broken(Recorder):
    """A sink that cannot take epoch 1."""

    def record(self, record):
        super().record(record)
        if record.epoch == 1:
            raise OSError("no space left on device")


@pytest.mark.case("runtime", 46)
def test_csv_columns_are_the_union_and_earlier_rows_stay_blank(monitor, tmp_path):
    path = tmp_path / "deep" / "metrics.csv"
    monitor.export_csv(path)
    monitor.log(0, 0.5, {"loss": 0.75})
    monitor.flush()
    assert list(table(path)[0])[:3] == ["epoch", "duration_s", "loss"]
    monitor.log(1, 0.25, {"loss": 0.5, "acc": 0.875})
    monitor.finish()
    first, second = table(path)
    expected = "epoch duration_s loss acc cpu_pct ram_used gpu_pct vram_alloc vram_spill"
    assert list(first) == expected.split()
    assert (first["epoch"], first["loss"], first["acc"]) == ("1", "0.75000000", "")
    assert (second["loss"], second["acc"]) == ("0.50000000", "0.87500000")
    assert (second["duration_s"], second["epoch"]) == ("0.250", "2")
    assert names(path.parent) == ["metrics.csv"]


def test_csv_writes_resources_blanks_and_what_is_not_finite(tmp_path):
    gpu = GpuSnapshot(0, "A", 81.25, 7 * GIB, 6 * GIB)
    sink = CsvSink(tmp_path / "m.csv")
    sink.open(info())
    sink.record(record(0, {"a": math.nan, "b": -math.inf}))
    sink.record(record(1, {"a": 1e-9}, resources=ResourceSample(12.345, 5 * GIB, 8 * GIB, (gpu,))))
    sink.flush()
    assert (tmp_path / "m.csv").read_text().splitlines() == [
        "epoch,duration_s,a,b,cpu_pct,ram_used,gpu_pct,vram_alloc,vram_spill",
        "1,0.500,nan,-inf,,,,,",
        f"2,0.500,0.00000000,,12.3,{5 * GIB},81.2,{7 * GIB},{GIB}",
    ]


def test_csv_survives_hostile_names(monitor, tmp_path):
    hostile = ["a,b", 'say "hi"', "line\nbreak", "naïve 学习 🙂", "</script>", "=1+1", " lead"]
    monitor.log(0, 1.0, {name: float(place) for place, name in enumerate(hostile)})
    monitor.log(0, 1.0, {"half \udc80": 1.0})
    monitor.export_csv(tmp_path / "m.csv")
    first, second = table(tmp_path / "m.csv")
    assert [float(first[name]) for name in hostile] == list(range(7))
    assert second["half \\udc80"] == "1.00000000"


def test_csv_rows_are_appended_and_the_heading_rewritten_only_for_a_new_column(tmp_path):
    path = tmp_path / "m.csv"
    sink = CsvSink(path)
    sink.open(info())
    file = path.stat().st_ino
    for epoch in range(3):
        sink.record(record(epoch, {}))
        sink.flush()
        assert path.stat().st_ino == file
    sink.record(record(3, {"loss": 1.0}))
    sink.flush()
    assert path.stat().st_ino != file
    assert [row["loss"] for row in table(path)] == ["", "", "", "1.00000000"]


def test_log_file_has_the_terminals_lines(clock, tmp_path):
    monitor = Monitor(100, clock=clock, terminal=False)
    path = tmp_path / "training.log"
    path.write_text("of an older run")
    clock.now += 1.2
    monitor.log(0, 1.2, {"loss": 0.5})
    monitor.write_log(path)
    first = "epoch   1/100  loss=0.5000  [1.2s  ETA 1m 58s]"
    lines = path.read_text().splitlines()
    assert lines[0] == "# flodl training log"
    assert lines[1].startswith(first)
    monitor.log(99, 1.2, {"loss": 0.25})
    monitor.finish("interrupted")
    lines = path.read_text().splitlines()
    assert len(lines) == 4
    assert lines[1].startswith(first)
    assert lines[2].startswith("epoch 100/100  loss=0.2500  [1.2s]")
    assert lines[3] == "interrupted after 2 epochs in 1.2s, loss 0.2500"


def test_files_hold_the_history_on_return_and_follow_what_comes(monitor, tmp_path):
    for epoch in range(3):
        monitor.log(epoch, 1.0, {"loss": 1.0})
    monitor.export_csv(tmp_path / "m.csv")
    monitor.write_log(tmp_path / "t.log")
    monitor.save_html(tmp_path / "r.html")
    assert len(table(tmp_path / "m.csv")) == 3
    assert len((tmp_path / "t.log").read_text().splitlines()) == 4
    assert (tmp_path / "r.html").read_text().count('"loss":1.0') == 3
    monitor.log(3, 1.0, {"loss": 1.0})
    monitor.save_html(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().count('"loss":1.0') == 4
    monitor.finish()
    assert len(table(tmp_path / "m.csv")) == 4
    assert len((tmp_path / "t.log").read_text().splitlines()) == 6
    assert names(tmp_path) == ["m.csv", "r.html", "t.log"]


def test_a_late_sink_misses_and_repeats_nothing(monitor):
    early, late, after = Recorder(), Recorder(), Recorder()
    monitor.add_sink(early)
    monitor.set_identity(label="digits")
    for epoch in range(3):
        monitor.log(epoch, 1.0)
    monitor.add_sink(late)
    monitor.log(3, 1.0)
    monitor.finish("diverged")
    monitor.add_sink(after).join(10)
    everything = [("record", epoch) for epoch in range(4)] + [("finish", "diverged")]
    assert [one for one in early.told if one[0] != "open"] == everything
    assert late.told == [("open", "digits"), *everything]
    assert after.told == [("open", "digits"), *everything]


def test_sinks_joining_while_epochs_arrive_see_each_once():
    monitor = Monitor(2000, terminal=False)
    sinks = [Recorder() for _ in range(20)]
    start = threading.Barrier(2)

    def join():
        start.wait()
        for sink in sinks:
            monitor.add_sink(sink)

    joining = threading.Thread(target=join)
    joining.start()
    start.wait()
    for epoch in range(2000):
        monitor.log(epoch, 0.0)
    joining.join()
    monitor.finish(timeout=60)
    everything = [("record", epoch) for epoch in range(2000)]
    assert all(sink.told[1:-1] == everything for sink in sinks)


def test_changed_facts_reach_the_sinks():
    seen = []

    class Facts(Recorder):
        def open(self, info):
            seen.append(info)

    monitor = Monitor(5, terminal=False)
    monitor.add_sink(Facts())
    given = {"config": {"lr": 0.1}, "where": os}
    monitor.set_metadata(given)
    given["config"]["lr"] = 0.2
    monitor.set_metadata('{"note": [1, NaN, {"a": null}]}')
    monitor.set_identity(label="digits", hash="abc")
    monitor.set_identity(run="first")
    monitor.set_svg(b"<svg/>")
    monitor.finish()
    last = seen[-1]
    assert (last.label, last.hash, last.run, last.svg) == ("digits", "abc", "first", "<svg/>")
    assert last.metadata == {
        "config": {"lr": 0.1},
        "where": str(os),
        "note": [1, None, {"a": None}],
    }


def test_a_slow_sink_drops_and_never_blocks():
    sink = Blocked()
    delivery = Delivery(
        sink, {"open": [info()], "record": [record(0, {}), record(1, {})]}, capacity=3
    )
    assert sink.entered.wait(60)
    for epoch in range(2, 1000):
        delivery.tell("record", record(epoch, {}))
    assert delivery.dropped > 0
    sink.release.set()
    assert delivery.flush(60)
    epochs = [epoch for what, epoch in sink.told if what == "record"]
    # The history arrives whole, whatever the capacity; of the rest, what found room.
    assert epochs == list(range(len(epochs)))
    assert len(epochs) + delivery.dropped == 1000
    assert 5 <= len(epochs) <= 2 + 5


class Everything(Blocked):
    """A sink that takes curves and media too."""

    def steps(self, series):
        self.told += [("steps", one.name) for one in series]

    def media(self, record):
        self.told.append(("media", record.name))


def text(name, size=10):
    return MediaRecord(name, "text", 1, 0, Text("x" * size))


def test_curves_and_media_that_a_slow_sink_has_no_room_for_are_counted(monkeypatch):
    monkeypatch.setattr("flodl.monitor.sink_delivery.MEDIA_CAPACITY", 1000)
    sink = Everything()
    delivery = Delivery(sink, {"open": [info()], "record": [record(0, {})]}, capacity=3)
    assert sink.entered.wait(60)
    for place in range(10):
        delivery.tell("steps", [StepSeries(f"curve {place}", [0], [1.0])])
    delivery.tell("media")
    delivery.tell("media", text("large", 2000), text("small"))
    assert delivery.dropped >= 6 + 1
    sink.release.set()
    assert delivery.flush(60)
    assert len([name for what, name in sink.told if what == "steps"]) == 10 - (delivery.dropped - 1)
    assert [name for what, name in sink.told if what == "media"] == ["large"]


def test_what_comes_after_the_end_reaches_no_sink():
    sink = Everything()
    sink.release.set()
    delivery = Delivery(sink, {"open": [info()]})
    delivery.tell("finish", Finish("complete", 1.0, 0, ()))
    assert delivery.join(60)
    told = list(sink.told)
    delivery.tell("record", record(0, {}))
    delivery.tell("steps", [StepSeries("loss", [0], [1.0])])
    delivery.tell("media", text("poem"))
    assert delivery.flush(60)
    assert (sink.told, delivery.dropped) == (told, 0)


def test_a_sink_without_curves_and_media_is_not_given_any():
    sink = Recorder()
    delivery = Delivery(sink, {"open": [info()]})
    delivery.tell("steps", [StepSeries("loss", [0], [1.0])])
    delivery.tell("media", text("poem"))
    delivery.tell("ledger", {"forward": 1.0})
    delivery.tell("finish", Finish("complete", 1.0, 0, ()))
    assert delivery.join(60)
    assert sink.told == [("open", ""), ("finish", "complete")]
    assert delivery.error is None


def test_a_stuck_sink_does_not_hold_up_the_end(capsys):
    sink = Blocked()
    monitor = Monitor(1, terminal=False)
    monitor.add_sink(sink)
    monitor.log(0, 1.0)
    assert sink.entered.wait(60)
    monitor.finish(timeout=0.05)
    assert capsys.readouterr().err == "warning: monitor: Blocked did not finish within 0.05 s\n"
    sink.release.set()


def test_a_broken_sink_is_reported_once_and_detached(capsys):
    broken, sound = Broken(), Recorder()
    monitor = Monitor(5, terminal=False)
    handle = monitor.add_sink(broken)
    monitor.add_sink(sound)
    for epoch in range(5):
        monitor.log(epoch, 1.0)
        monitor.flush()
    monitor.finish()
    assert isinstance(handle.error, OSError)
    assert broken.told == [("open", ""), ("record", 0), ("record", 1)]
    assert len(sound.told) == 7
    assert capsys.readouterr().err == (
        "warning: monitor: Broken is detached, training continues: no space left on device\n"
    )


@each_row("kind", [CsvSink, LogSink, HtmlSink])
def test_a_folder_that_disappears_costs_the_file_and_nothing_else(capsys, tmp_path, kind):
    path = tmp_path / "run" / "file"
    monitor = Monitor(5, terminal=False)
    handle = monitor.add_sink(kind(path))
    monitor.log(0, 1.0, {"loss": 1.0})
    monitor.flush()
    assert path.stat().st_size > 0
    shutil.rmtree(path.parent)
    for epoch in range(1, 5):
        monitor.log(epoch, 1.0, {"loss": 1.0})
        monitor.flush()
    monitor.finish()
    assert isinstance(handle.error, FileNotFoundError)
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: monitor: {path} is detached, training continues: ")
    assert warning.count("\n") == 1
    assert len(monitor.history) == 5


@each_row("kind", [CsvSink, LogSink, HtmlSink])
def test_a_path_that_is_no_file_is_left_alone(capsys, tmp_path, kind):
    (tmp_path / "taken").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "plain").write_text("mine")
    monitor = Monitor(1, terminal=False)
    handles = [monitor.add_sink(kind(tmp_path / name)) for name in ("taken", "pipe", "plain/below")]
    monitor.log(0, 1.0)
    monitor.finish()
    assert all(isinstance(handle.error, OSError) for handle in handles)
    assert names(tmp_path) == ["pipe", "plain", "taken"]
    assert (tmp_path / "plain").read_text() == "mine"
    assert capsys.readouterr().err.count("is detached, training continues") == 3


def test_following_a_path_again_after_it_failed_tries_anew(capsys, monitor, tmp_path):
    (tmp_path / "m.csv").mkdir()
    monitor.export_csv(tmp_path / "m.csv")
    (tmp_path / "m.csv").rmdir()
    monitor.log(0, 1.0)
    monitor.export_csv(tmp_path / "m.csv")
    assert len(table(tmp_path / "m.csv")) == 1
    assert capsys.readouterr().err.count("detached") == 1


DISK_FULL = """
import resource, signal, sys
from pathlib import Path
from flodl.monitor import Monitor
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = Path(sys.argv[1])
monitor = Monitor(200)
monitor.export_csv(folder / "m.csv")
monitor.write_log(folder / "t.log")
monitor.save_html(folder / "r.html")
for epoch in range(200):
    monitor.log(epoch, 1.0, {"loss": 1.0})
    monitor.flush()
monitor.finish()
"""


def test_a_full_disk_stops_the_files_between_two_lines_and_not_the_training(tmp_path):
    done = fork_server.python("-c", DISK_FULL, str(tmp_path), torch=True, abrupt=True)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 201
    assert done.stderr.count("is detached, training continues") == 3
    assert len(done.stderr.splitlines()) == 3
    # No torn last line, no report of which half is missing, nothing temporary.
    assert names(tmp_path) == ["m.csv", "t.log"]
    rows = table(tmp_path / "m.csv")
    assert 0 < len(rows) < 200
    assert all(None not in row.values() for row in rows)
    assert (tmp_path / "t.log").read_text().endswith("]\n")


def test_our_sinks_are_sinks():
    for sink in (CsvSink("m.csv"), LogSink("t.log"), HtmlSink("r.html"), Recorder()):
        assert isinstance(sink, Sink)


def info() -> RunInfo:
    return Monitor(5, terminal=False)._info


@contextlib.contextmanager
def terminal(monkeypatch):
    """A terminal of 80 columns as standard output; calling it gives what it received."""
    master, slave = os.openpty()
    os.set_blocking(master, False)
    with monkeypatch.context() as patch, os.fdopen(slave, "w", encoding="utf-8") as stream:
        patch.setenv("COLUMNS", "80")
        patch.setattr(sys, "stdout", stream)
        yield lambda: os.read(master, 1 << 16).decode().rstrip()
    os.close(master)


def test_many_metrics_fill_no_more_than_a_row_of_a_terminal(monkeypatch):
    many = {f"encoder.block{place}.loss": 0.5 for place in range(30)}
    sink = TerminalSink()
    with terminal(monkeypatch) as received:
        sink.record(record(0, many))
        line = received()
        sink.finish(Finish("complete", 2.0, 5, tuple(many.items())))
        closing = received()
    assert 40 < len(line) <= 80
    assert line.startswith("  epoch 1/5  encoder.block0.loss=0.5000  ")
    assert line.endswith(f"  +{30 - line.count('=')} more  [500ms]")
    assert 40 < len(closing) <= 80
    assert closing.startswith("  5 epochs in 2s, encoder.block0.loss 0.5000, ")
    assert closing.endswith(f", +{30 - closing.count(' 0.5000')} more")


def test_the_end_tells_the_best_epoch_and_where_the_run_is() -> None:
    best = BestEpoch("val_accuracy", 0.992, 7)
    summary = Finish("complete", 72.4, 10, (("loss", 0.1),), {}, best, "runs/2026-01-31T10-00-00")
    assert finish_line(summary) == (
        "10 epochs in 1m 12s, best val_accuracy 0.9920 (epoch 8), runs/2026-01-31T10-00-00"
    )
    stopped = Finish("interrupted", 3.0, 1, (("loss", 0.1),), folder="runs/2026-01-31T10-00-00")
    assert finish_line(stopped) == (
        "interrupted after 1 epoch in 3s, loss 0.1000, runs/2026-01-31T10-00-00"
    )


def test_a_few_metrics_are_all_told_and_one_always_is(monkeypatch):
    sink = TerminalSink()
    with terminal(monkeypatch) as received:
        sink.record(record(0, {f"m{place}": 0.5 for place in range(5)}))
        few = received()
        sink.record(record(0, {"x" * 200: 0.5, "y": 1.0}))
        long = received()
    assert few.count("=0.5000") == 5
    assert long == f"  epoch 1/5  {'x' * 66}…"


def test_a_folder_that_does_not_fit_has_a_row_of_its_own(monkeypatch):
    best, folder = BestEpoch("accuracy", 0.992, 7), f"runs/{'deep/' * 8}2026-01-31T10-00-00"
    with terminal(monkeypatch) as received:
        TerminalSink().finish(Finish("complete", 72.4, 10, (), {}, best, folder))
        rows = received().splitlines()
        while len(rows) < 4:  # the second message may arrive by itself
            with contextlib.suppress(BlockingIOError):
                rows += received().splitlines()
    assert rows == [
        "  10 epochs in 1m 12s, best accuracy 0.9920 (epoch 8),",
        f"  {folder}",
        f'  use the best model: load_best("{folder}", model),',
        "  see docs/guide/trained-model.md",
    ]


def test_every_metric_is_told_in_a_pipe(capsys):
    TerminalSink().record(record(0, {f"encoder.block{place}.loss": 0.5 for place in range(30)}))
    assert capsys.readouterr().out.count("=0.5000") == 30
