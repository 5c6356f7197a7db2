"""Rows that several calls of a benchmark keep beside its page."""

import json
from pathlib import Path

import pytest

from benchmarks import hf, rows
from benchmarks.huggingface.rates import Measured
from benchmarks.rows import Kept, continued
from benchmarks.shared_machine import kept_of, read
from tests.rows import each_row

PAGES = Path(__file__).parents[2] / "docs/benchmarks"


@pytest.fixture
def machine(monkeypatch):
    """Says on which machine and at which date the benchmark runs."""
    monkeypatch.setattr(rows, "environment", lambda *_: "a processor, torch 1, 2026-11-24")

    def move(told):
        monkeypatch.setattr(rows, "environment", lambda *_: told)

    return move


def test_rows_of_several_calls_are_kept(tmp_path):
    page = tmp_path / "pages/page.md"
    first = Kept.beside(page)
    assert first.rows == {}
    first.rows["one"] = {"seconds": [1.5]}
    first.write()
    second = Kept.beside(page)
    second.rows["two"] = {"seconds": [2.5]}
    second.write()
    assert Kept.beside(page).rows == {"one": {"seconds": [1.5]}, "two": {"seconds": [2.5]}}
    assert [file.name for file in page.parent.iterdir()] == ["page.json"]


def test_without_a_page_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = Kept.beside(None)
    kept.rows["one"] = {"seconds": [1.5]}
    kept.write()
    assert Kept.beside(None).rows == {}
    assert list(tmp_path.iterdir()) == []


def test_a_row_is_continued_on_the_same_machine_and_begun_anew_on_another(machine):
    row = {**continued(None, "torch"), "rounds": [1]}
    assert row == {"where": "a processor, torch 1", "dates": ["2026-11-24"], "rounds": [1]}
    machine("a processor, torch 1, 2026-11-25")
    assert continued(row, "torch") == {**row, "dates": ["2026-11-24", "2026-11-25"]}
    machine("a processor, torch 2, 2026-11-25")
    assert continued(row, "torch") == {"where": "a processor, torch 2", "dates": ["2026-11-25"]}


def test_rounds_of_the_same_form_are_added(machine):
    def found(*seconds, amount=8):
        return [Measured("texts", {"ours": list(seconds)}, 1e-6 * len(seconds), amount)]

    row = hf.added(None, found(1.0, 2.0))
    machine("a processor, torch 1, 2026-11-25")
    more = hf.added(row, found(3.0))
    assert more["dates"] == ["2026-11-24", "2026-11-25"]
    (texts,) = more["measured"]
    assert (texts["seconds"], texts["difference"]) == ({"ours": [1.0, 2.0, 3.0]}, 2e-6)
    other = hf.added(more, found(4.0, amount=16))
    assert (other["dates"], other["measured"][0]["seconds"]) == (["2026-11-25"], {"ours": [4.0]})


@each_row("file", sorted(PAGES.glob("*.json")), ids=lambda file: file.stem)
def test_the_rows_beside_every_page_are_read_and_written_unchanged(file, tmp_path):
    kept = Kept.beside(file.with_suffix(".md"))
    assert kept.rows
    kept.path = tmp_path / file.name
    kept.write()
    assert kept.path.read_bytes() == file.read_bytes()


def test_the_rounds_of_a_shared_machine_are_read_back():
    form = json.loads((PAGES / "shared_machine.json").read_text(encoding="utf-8"))
    assert form["trainings"]
    for rounds in form.values():
        assert kept_of(read(rounds)) == rounds
