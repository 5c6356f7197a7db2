"""acts.jsonl: one line for each act, readable after a kill at any byte."""

import json
from pathlib import Path

from flodl.train.observers.journal import Act, Journal
from tests.rows import each_row


def test_acts_are_read_as_they_were_recorded(tmp_path: Path):
    journal = Journal(tmp_path / "acts.jsonl")
    told = Act.now(12, "lr", value=1e-4, old=0.1, by="ada")
    own = Act.now(40, "rewind", by="guard", detail="loss 1e30 at step 40; back to step 30")
    journal.record(told)
    journal.record(own)
    assert Journal.read(tmp_path / "acts.jsonl") == [told, own]
    first = json.loads((tmp_path / "acts.jsonl").read_text().splitlines()[0])
    assert first == {"step": 12, "time": told.time, "act": "lr", "value": 1e-4, "old": 0.1} | {
        "by": "ada"
    }


def test_a_run_without_acts_has_no_file_and_no_acts(tmp_path: Path):
    Journal(tmp_path / "acts.jsonl")
    assert Journal.read(tmp_path / "acts.jsonl") == []
    assert not list(tmp_path.iterdir())


@each_row("cut", [1, 5, 60])
def test_a_cut_last_line_is_left_out_and_removed_by_the_next_act(tmp_path: Path, cut: int):
    path = tmp_path / "acts.jsonl"
    first, second, third = (Act.now(step, "set", "beta", step) for step in (1, 2, 3))
    journal = Journal(path)
    journal.record(first)
    journal.record(second)
    path.write_bytes(path.read_bytes()[:-cut])
    assert Journal.read(path) == [first]
    journal.record(third)
    assert Journal.read(path) == [first, third]


def test_a_long_cut_line_is_removed_as_a_whole(tmp_path: Path):
    path = tmp_path / "acts.jsonl"
    path.write_bytes(b'{"step":1,"act":"stop"}\n' + b"x" * 10_000)
    Journal(path).record(Act.now(2, "stop"))
    assert [act.step for act in Journal.read(path)] == [1, 2]


def test_unknown_acts_and_entries_are_read(tmp_path: Path):
    path = tmp_path / "acts.jsonl"
    path.write_text('{"step":7,"act":"dance","partner":"x"}\nnoise\n[1]\n{"act":"no step"}\n')
    assert Journal.read(path) == [Act(7, "", "dance")]


def test_only_changes_of_rates_and_settings_are_replayed():
    names = ("lr", "set", "lower_lr", "checkpoint", "pause", "continue", "stop", "rewind", "skip")
    assert [name for name in names if Act.now(1, name).is_replayed] == ["lr", "set", "lower_lr"]
