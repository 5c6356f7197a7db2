"""The run's stream as JSON lines: complete, valid after a crash, continued by a resumed run."""

from __future__ import annotations

import json
import math

from fdl.runs.step_files import StepFiles
from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries
from flodl.monitor.server import PageFilesSink


def lines(path):
    """Every line, read as strict JSON."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def run(path, epochs, clock, *, total=3, status="complete"):
    """Log some epochs, as one process does."""
    monitor = Monitor(total, clock=clock, terminal=False)
    monitor.set_metadata({"config": {"lr": {"value": 0.1, "origin": "fdl.yml:3:7"}}})
    monitor.add_sink(PageFilesSink(path.parent))
    for epoch, loss in epochs:
        clock.now += 2
        monitor.log(epoch, 2.0, {"loss": loss})
    monitor.finish(status)


def test_every_record_is_one_line_in_order(tmp_path, clock):
    monitor = Monitor(2, clock=clock, terminal=False)
    monitor.write_run(tmp_path)
    monitor.flush()
    monitor.log_steps([StepSeries("loss", [0, 1], [2.0, math.nan])])
    monitor.flush()
    monitor.log(0, 1.5, {"loss": 0.5, "</script>": math.inf})
    monitor.flush()
    monitor.set_identity(label="digits")
    monitor.flush()
    monitor.log_ledger({"forward": 1.0, "backward": 2.0})
    monitor.finish()
    found = lines(tmp_path / "page/records.jsonl")
    assert [line["type"] for line in found] == ["run", "epoch", "run", "finish"]
    first, epoch, again, end = found
    assert (first["label"], again["label"]) == ("", "digits")
    assert "svg" not in first
    steps = StepFiles.read(tmp_path).points_from("loss", 0, 2)
    assert (steps.steps, steps.mean[0], steps.broken) == ([1, 2], 2.0, [0, 1]), "from 1; nan"
    assert (epoch["epoch"], epoch["duration"]) == (1, 1.5)
    assert epoch["metrics"] == {"loss": 0.5, "</script>": "inf"}
    now = json.loads((tmp_path / "page/now.json").read_text(encoding="utf-8"))
    assert now["ledger"] == {"forward": 1.0, "backward": 2.0}
    assert (end["status"], end["epochs"]) == ("complete", 1)


def test_a_resumed_run_continues_the_file(tmp_path, clock):
    path = tmp_path / "records.jsonl"
    run(path, [(0, 0.5), (1, 0.25)], clock, status="interrupted")
    run(path, [(2, 0.125)], clock)
    found = lines(path)
    assert [line["epoch"] for line in found if line["type"] == "epoch"] == [1, 2, 3]
    ends = [line["status"] for line in found if line["type"] == "finish"]
    assert ends == ["interrupted", "complete"]


def test_an_epoch_that_is_there_already_is_not_written_twice(tmp_path, clock):
    path = tmp_path / "records.jsonl"
    first = Monitor(3, clock=clock, terminal=False)
    first.add_sink(PageFilesSink(path.parent))
    first.log(0, 1.0, {"loss": 0.5})
    first.finish()
    late = PageFilesSink(path.parent)
    first.add_sink(late).join(10)
    assert [line["type"] for line in lines(path)].count("epoch") == 1


def test_a_line_cut_off_by_a_crash_is_taken_away(tmp_path, clock):
    path = tmp_path / "records.jsonl"
    run(path, [(0, 0.5), (1, 0.25)], clock, status="failed")
    *whole, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole) + last[:9])
    run(path, [(2, 0.125)], clock)
    found = lines(path)
    assert [line["epoch"] for line in found if line["type"] == "epoch"] == [1, 2, 3]
    assert [line["type"] for line in found][-1] == "finish"


def test_a_foreign_file_is_extended_and_not_judged(tmp_path, clock):
    path = tmp_path / "records.jsonl"
    path.write_text("not json\n[1]\n", encoding="utf-8")
    run(path, [(0, 0.5)], clock)
    text = path.read_text(encoding="utf-8").splitlines()
    assert text[:2] == ["not json", "[1]"]
    assert json.loads(text[3])["metrics"] == {"loss": 0.5}
