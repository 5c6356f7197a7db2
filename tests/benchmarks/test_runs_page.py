"""What the page of many runs makes of its measurements."""

import argparse
import base64
import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from benchmarks import runs_page_subjects
from benchmarks.measure import end_on_sigterm
from benchmarks.runs_page import conditions_of, figures_of, main, row_of, together, why
from benchmarks.runs_page_browser import Opening, members, server, until
from benchmarks.runs_page_features import SOURCES, cell, features
from benchmarks.runs_page_subjects import SUBJECTS, Store, Subject, aim_word, written

OPTIONS = argparse.Namespace(runs=500, points=1000, full_points=100_000, rounds=2)


def opening(curve: float, more: int | None = 1) -> Opening:
    return Opening(curve, server=100.0, page=20.0, clicks=1, more=more)


def store(folder: Path, seconds: float = 1.0) -> Store:
    """Seven million bytes."""
    (folder / "runs").mkdir()
    (folder / "runs/one").write_bytes(bytes(7_000_000))
    return Store(folder, seconds, load=0.5)


def test_a_row_has_the_medians_of_cold_and_of_warm_openings(tmp_path):
    pairs = [(opening(3.0), opening(1.0)), (opening(5.0), opening(2.0))]
    row = row_of(pairs, store(tmp_path, 9.0), "fdl 1.0")
    (cells,) = figures_of({"fdl, full length": row})
    told = ["fdl, full length", "4.0", "2.00 MISSED", "1.5", "100", "20", "1", "1", "9", "7"]
    assert cells == told


def test_settings_that_do_not_appear_are_told(tmp_path):
    row = row_of([(opening(1.0), opening(1.0, more=None))], store(tmp_path), "tool 2")
    assert figures_of({"Aim": row})[0][7] == "not found"


def test_a_tool_that_fails_has_a_row_with_the_reason():
    slow = why(subprocess.TimeoutExpired("writer", 150.0))
    assert figures_of({"MLflow": {"why": slow}})[0][:2] == [
        "MLflow",
        "not measured: its writer did not end within 150 s",
    ]
    assert why(TimeoutError("the first curve")) == "waited in vain for: the first curve"
    assert why(AssertionError("one | two\nthree")) == "one / two"


def test_the_page_is_put_together_from_several_calls(tmp_path):
    options = argparse.Namespace(**vars(OPTIONS), output=tmp_path / "page.md")
    mine = row_of([(opening(1.0), opening(1.0))], store(tmp_path), "tool 2")
    together(options, {"MLflow": {"version": "mlflow", "why": "no reason"}})
    both = together(options, {"fdl, full length": mine})
    assert list(both) == list(SUBJECTS)
    assert [row[0] for row in conditions_of(both)] == ["fdl, full length", "MLflow"]
    assert [row[2] for row in conditions_of(both)] == ["500 × 100,000", "500 × 1,000"]
    assert figures_of(both)[-1][1] == "not measured: not run yet"
    again = together(options, {"MLflow": mine})
    assert "why" not in again["MLflow"]


def test_the_address_of_aim_holds_the_metric():
    word = aim_word({"query": "metric.name == 'loss'"})
    padded = word.removeprefix("O-") + "=" * (-len(word.removeprefix("O-")) % 4)
    text = unquote(base64.urlsafe_b64decode(padded).decode())
    assert json.loads(text) == {"query": "metric.name == 'loss'"}
    assert SUBJECTS["Aim"].path.startswith("/metrics?select=O-")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_sigterm_ends_the_server_of_a_tool_with_its_children(tmp_path):
    tool = Subject("sh", lambda _runs, _port: ["sh", "-c", "sleep 60 & sleep 60"])
    sessions = []

    def measure():
        with server(tool, Path("/bin"), tmp_path, tmp_path) as (_, session):
            sessions.append(session)
            until(lambda: len(members(session)) == 3, "the children")
            os.kill(os.getpid(), signal.SIGTERM)

    former = signal.getsignal(signal.SIGTERM)
    end_on_sigterm()
    try:
        with pytest.raises(SystemExit, match="143"):
            measure()
    finally:
        signal.signal(signal.SIGTERM, former)
    assert members(*sessions) == []


def test_a_store_is_written_once_for_several_calls(tmp_path, monkeypatch):
    calls = []

    def write(tool, _programs, store, runs, points):
        calls.append((tool, runs, points))
        store.mkdir()
        return 7.5

    monkeypatch.setattr(runs_page_subjects, "write", write)
    stores = tmp_path / "stores"
    first = written("aim", tmp_path, stores, 3, 10)
    assert first[:2] == (stores / "aim-3x10", 7.5)
    assert written("aim", tmp_path, stores, 3, 10) == first
    assert written("aim", tmp_path, stores, 3, 20) != first
    assert calls == [("aim", 3, 10), ("aim", 3, 20)]
    (stores / "aim-3x10.json").unlink()  # a writer that was ended leaves no record
    assert written("aim", tmp_path, stores, 3, 10)[:2] == first[:2]
    assert len(calls) == 3


def test_runs_are_only_written_into_a_folder_that_is_kept(tmp_path, monkeypatch, capsys):
    def write(_tool, _programs, store, _runs, _points):
        store.mkdir()
        return 7.5

    monkeypatch.setattr(runs_page_subjects, "write", write)
    words = ["--write", "--only", "fdl", "--runs", "3", "--points", "10"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "add --stores FOLDER" in capsys.readouterr().err
    main([*words, "--stores", str(tmp_path)])
    assert capsys.readouterr().out == "fdl: 8 s\n"
    assert (tmp_path / "fdl-3x10").is_dir()


def test_every_claim_about_a_tool_has_a_source():
    text = features()
    assert text.count("not found") > 0
    assert f"{len(SOURCES)}. {list(SOURCES.values())[-1]}" in text
    assert cell("yes, here", {"here": 3}) == "yes, [3]"
    with pytest.raises(ValueError, match="no source"):
        cell("yes", {"here": 3})
