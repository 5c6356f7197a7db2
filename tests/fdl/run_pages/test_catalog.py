"""What the page of many runs knows: rows, the cache of what was read, and what changed."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from benchmarks.many_runs import make_runs
from fdl.base.run_record import boot_id
from fdl.runs.pages import catalog as catalog_module
from fdl.runs.pages.catalog import Cache, Catalog, Changes
from tests.fdl.run_directory.trails import LR, trail
from tests.rows import each_row

NAME = "2026-01-31T10-00-00"


@pytest.fixture(autouse=True)
def _every_look_counts(monkeypatch):
    monkeypatch.setattr(catalog_module, "_FRESH_SECONDS", 0.0)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" / "pages.sqlite3")


def rows(catalog: Catalog, since: int = -1) -> dict[str, dict]:
    return {row["name"]: row for row in told(catalog.changes(since))}


def told(changes: Changes) -> list[dict]:
    """The rows of a page; JSON has lists where a row has a setting and its origin."""
    found = json.loads(changes.as_json())["rows"]
    for row in found:
        row["config"] = {name: tuple(pair) for name, pair in row["config"].items()}
    return found


def test_a_row_has_settings_with_origins_metrics_tags_and_no_secret(tmp_path, cache):
    run = trail(
        tmp_path / "runs" / NAME,
        metrics={"loss": [0.5, 0.25, "nan"], "accuracy": [0.5, 0.9, 0.8], "lost": ["inf"] * 3},
        config={"lr": LR, "token": "sesame-open-up", "layers": [1, 2]},
        environment={"torch": "2.13.0", "engine": {"engine": "eager"}},
        error="<script>alert(1)</script>",
    )
    (run / "notes.json").write_text(json.dumps({"tags": ["paper", 3], "note": "again"}))
    [row] = rows(Catalog([tmp_path / "runs"], cache)).values()
    assert row["config"] == {
        "lr": (0.1, "train/fdl.yml:9:13"),
        "token": ("<secret>", "recorded"),
        "layers": ("[1, 2]", "recorded"),
    }
    assert row["metrics"] == {
        "loss": {
            "last": "nan",
            "latest": "nan",
            "best": 0.25,
            "min": 0.25,
            "max": 0.5,
            "epoch": 2,
            "higher": False,
        },
        "accuracy": {
            "last": 0.8,
            "latest": 0.8,
            "best": 0.9,
            "min": 0.5,
            "max": 0.9,
            "epoch": 2,
            "higher": True,
        },
        "lost": dict.fromkeys(["last", "latest", "best", "min", "max"], "inf")
        | {"epoch": None, "higher": False},
    }
    assert (row["tags"], row["note"]) == (["paper"], "again")
    assert row["environment"] == {"torch": "2.13.0", "engine": "eager"}
    assert row["curves"] == ["loss", "accuracy", "lost"]
    assert row["error"] == "<script>alert(1)</script>", "the page makes it harmless"
    assert row["has_report"] is True


def test_only_runs_that_changed_are_told_again(tmp_path, cache):
    first = trail(tmp_path / "runs" / NAME)
    catalog = Catalog([tmp_path / "runs"], cache)
    before = catalog.changes(-1)
    assert len(told(before)) == 1
    assert told(catalog.changes(before.version)) == []

    trail(tmp_path / "runs" / "2026-02-01T10-00-00")
    after = catalog.changes(before.version)
    assert [row["name"] for row in told(after)] == ["2026-02-01T10-00-00"]
    assert after.order == [1, 0], "newest first, and a number stays with its run"

    (first / "notes.json").write_text('{"tags": ["kept"]}')
    assert rows(catalog, after.version)[NAME]["tags"] == ["kept"]


def test_many_runs_are_listed_by_their_records_before_their_files_are_read(
    tmp_path, cache, monkeypatch
):
    monkeypatch.setattr(catalog_module, "_MANY", 2)
    monkeypatch.setattr(catalog_module, "_FIRST_PART_SECONDS", 60.0)
    for number in range(3):
        trail(tmp_path / "runs" / f"2026-02-0{number + 1}T10-00-00", config={"lr": LR})
    read, go_on = [], threading.Event()
    original = catalog_module.row

    def slowly(run):
        assert go_on.wait(10)
        read.append(run.name)
        return original(run)

    monkeypatch.setattr(catalog_module, "row", slowly)
    catalog = Catalog([tmp_path / "runs"], cache)
    first = catalog.changes(-1, patience=10)
    assert (first.more, len(first.order), read) == (True, 3, [])
    assert {row["name"][:10] for row in told(first)} == {f"2026-02-0{n}" for n in (1, 2, 3)}
    assert all(row["state"] == "complete" and row["config"] == {} for row in told(first))
    go_on.set()
    last = catalog.changes(first.version, patience=10)
    assert [row["config"]["lr"] for row in told(last)] == [(0.1, "train/fdl.yml:9:13")] * 3
    monkeypatch.setattr(catalog_module, "row", original)
    assert told(catalog.changes(last.version)) == [], "listed rows are not taken for read ones"


def test_a_removed_run_leaves_the_page(tmp_path, cache):
    run = trail(tmp_path / "runs" / NAME)
    catalog = Catalog([tmp_path / "runs"], cache)
    version = catalog.changes(-1).version
    for file in run.iterdir():
        file.unlink()
    run.rmdir()
    assert catalog.changes(version).order == []
    assert catalog.changes(version).version > version


def test_a_run_that_trains_is_told_again_when_its_curves_grow(tmp_path, cache):
    [run] = make_runs(tmp_path / "runs", 1, 1000)
    record = json.loads((run / "run.json").read_text())
    here = {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": boot_id()}
    (run / "run.json").write_text(json.dumps({**record, "state": "running", **here}))
    catalog = Catalog([tmp_path / "runs"], cache)
    first = catalog.changes(-1)
    assert told(first)[0]["state"] == "running"
    assert told(catalog.changes(first.version)) == []
    with (run / "steps" / "1-0.f64").open("ab") as file:
        file.write(bytes(16))
    assert len(told(catalog.changes(first.version))) == 1


def test_a_run_is_told_again_when_its_program_has_written_metrics(tmp_path, cache):
    here = {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": boot_id()}
    run = trail(tmp_path / "runs" / NAME, "running", argv=["train"], **here)
    (run / "metrics.csv").unlink()
    lines = run / "metrics.jsonl"
    lines.write_text('{"step": 1, "loss": 2}\n')
    catalog = Catalog([tmp_path / "runs"], cache)
    first = catalog.changes(-1)
    lines.write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n')
    [row] = told(catalog.changes(first.version))
    assert row["metrics"]["loss"]["last"] == 1
    with lines.open("a") as file:
        file.write('{"step": 2, "val": 5}\n{"step": 3, "loss": 0}\n')
    [row] = rows(catalog).values()
    found = {name: one["last"] for name, one in row["metrics"].items()}
    assert found == {"loss": 0, "val": 5}, "also what was not measured in the last step"


def test_what_was_read_is_kept_for_the_next_page(tmp_path, cache, monkeypatch):
    run = trail(tmp_path / "runs" / NAME)
    once = rows(Catalog([tmp_path / "runs"], cache))

    def refuse(run):
        raise AssertionError(f"{run.path} is read again")

    with monkeypatch.context() as patched:
        patched.setattr(catalog_module, "row", refuse)
        again = rows(Catalog([tmp_path / "runs"], cache))
    assert json.loads(json.dumps(once)) == json.loads(json.dumps(again))

    time.sleep(0.01)
    (run / "notes.json").write_text('{"note": "new"}')
    assert rows(Catalog([tmp_path / "runs"], cache))[NAME]["note"] == "new"
    assert not [file.name for file in run.iterdir() if "sqlite" in file.name], "nothing in the run"


@each_row("damage", ["no database", "another table", "a folder"])
def test_a_cache_that_cannot_be_used_is_empty(tmp_path, damage):
    file = tmp_path / "pages.sqlite3"
    if damage == "no database":
        file.write_text("not a database, and long enough to be read as one" * 100)
    elif damage == "another table":
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE runs (number INTEGER)")
        database.close()
    else:
        file.mkdir()
    trail(tmp_path / "runs" / NAME)
    for _ in range(2):
        assert list(rows(Catalog([tmp_path / "runs"], Cache(file)))) == [NAME]


def test_a_run_with_a_damaged_configuration_is_still_shown(tmp_path, cache):
    run = trail(tmp_path / "runs" / NAME)
    (run / "config.json").write_text("{")
    (run / "metrics.csv").write_text("\0")
    [row] = rows(Catalog([tmp_path / "runs"], cache)).values()
    assert (row["config"], row["metrics"], row["curves"]) == ({}, {}, [])


def test_runs_are_told_in_parts_while_others_are_read(tmp_path, cache, monkeypatch):
    make_runs(tmp_path / "runs", 4, 20)
    read, go_on = catalog_module.row, threading.Event()
    count = iter(range(4))

    def slowly(run):
        if next(count) == 2:
            assert go_on.wait(30)
        return read(run)

    monkeypatch.setattr(catalog_module, "row", slowly)
    monkeypatch.setattr(catalog_module, "_FIRST_PART_SECONDS", 0.0)
    monkeypatch.setattr(catalog_module, "_FRESH_SECONDS", 60.0)
    catalog = Catalog([tmp_path / "runs"], cache)
    seen = catalog.changes(-1, patience=30)
    numbers = [one.id for one in seen.entries]
    while len(seen.order) < 2:
        seen = catalog.changes(seen.version, patience=30)
        numbers += [one.id for one in seen.entries]
    assert (seen.more, seen.total, len(seen.order)) == (True, 4, 2)
    assert catalog.changes(seen.version, patience=0.0).entries == [], "nothing new by now"
    assert [one.id for one in catalog.by_ids({0, 1})] == [0, 1], "curves need not wait"
    go_on.set()
    while seen.more:
        seen = catalog.changes(seen.version, patience=30)
        numbers += [one.id for one in seen.entries]
    assert seen.order == numbers == [0, 1, 2, 3]
