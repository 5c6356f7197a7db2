"""``fdl why RUN:FIELD``: the records that runs and checkpoints leave."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.conftest import Fdl

CONFIG = {
    "lr": {
        "value": 0.2,
        "origin": "train/fdl.yml:9:13",
        "field": "training.lr",
        "overrides": [
            {"value": 0.1, "origin": "train/fdl.yml:2:7"},
            {"value": 0.01, "origin": "default"},
        ],
    },
    "batch_size": {
        "value": 8,
        "origin": "command line",
        "overrides": [
            {"value": 4, "origin": ".env:3", "field": "env.BATCH"},
            {"value": 2, "origin": "fdl.yml:7:9", "field": "training.batch_size"},
        ],
    },
    "workers": {"value": 2, "origin": "env WORKERS"},
    "api_key": {"value": "sesame-open", "origin": "command line"},
    "plain": [1, 2],
}


def run(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    began = folder.name[:10] if folder.name.startswith("20") else "2026-01-31"
    (folder / "run.json").write_text(json.dumps({"state": "complete", "started": began}))
    return folder


def checkpoint(file: Path, metadata: dict[str, str], *, packed: bool = False) -> Path:
    header = json.dumps({"__metadata__": metadata}).encode()
    data = len(header).to_bytes(8, "little") + header
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(data) if packed else data)
    return file


LR = (
    "training.lr = 0.2\n"
    "  wins        0.2   train/fdl.yml:9:13  manifest\n"
    "  overridden  0.1   train/fdl.yml:2:7   manifest\n"
    "  overridden  0.01                      default\n"
)


@pytest.mark.parametrize("asked", ["training.lr", "lr", "--lr"])
def test_a_run_answers_without_a_project(tmp_path: Path, fdl: Fdl, asked: str) -> None:
    run(tmp_path / "runs/2026-01-31T10-00-00")
    session = fdl("why", f"runs/2026-01-31T10-00-00:{asked}")
    assert (session.exit, session.out, session.err) == (0, LR, "")


def test_a_folder_of_runs_means_its_newest(tmp_path: Path, fdl: Fdl) -> None:
    for number, name in enumerate(["-10", "-2", ""]):
        run(tmp_path / f"runs/2026-01-31T10-00-00{name}", plain=number)
    run(tmp_path / "runs/2025-12-31T23-59-59", plain="old")
    (tmp_path / "runs/.new-abc").mkdir()
    assert fdl("why", "runs:plain").out.startswith("plain = 0\n")
    # As for `fdl runs show`, it may be in a folder below: that of a command, or of a sweep.
    run(tmp_path / "runs/train/2026-02-01T10-00-00", plain="below")
    assert fdl("why", "runs:plain").out.startswith("plain = below\n")


@pytest.mark.parametrize(
    ("asked", "row"),
    [
        ("workers", "wins  2  environment variable WORKERS"),
        ("api_key", "wins  <secret>  command line"),
        ("plain", "wins  [1, 2]  recorded"),
    ],
)
def test_every_origin_is_told(tmp_path: Path, fdl: Fdl, asked: str, row: str) -> None:
    run(tmp_path / "out/a")
    assert fdl("why", f"out:{asked}").out.splitlines()[1].strip() == row


@pytest.mark.parametrize("asked", ["batch-size", "batch_size", "training.batch_size"])
def test_the_manifests_name_is_known_whoever_has_won(tmp_path: Path, fdl: Fdl, asked: str) -> None:
    run(tmp_path / "out/a")
    assert fdl("why", f"out:{asked}").out == (
        "training.batch_size = 8\n"
        "  wins        8               command line\n"
        "  overridden  4  .env:3       env file\n"
        "  overridden  2  fdl.yml:7:9  manifest\n"
    )


@pytest.mark.parametrize("packed", [False, True])
def test_a_checkpoint_answers_from_its_header(tmp_path: Path, fdl: Fdl, packed: bool) -> None:
    name = "model.fdl.gz" if packed else "model.fdl"
    checkpoint(tmp_path / name, {"format": "fdl", "config": json.dumps(CONFIG)}, packed=packed)
    session = fdl("why", f"{name}:lr")
    assert (session.exit, session.out, session.err) == (0, LR, "")


def test_a_checkpoint_without_a_record_asks_the_run_it_lies_in(tmp_path: Path, fdl: Fdl) -> None:
    checkpoint(tmp_path / "alone/model.fdl", {"format": "fdl"})
    session = fdl("why", "alone/model.fdl:lr")
    assert session.exit == 2
    assert "has no record of its configuration" in session.err
    (tmp_path / "alone/config.json").write_text(json.dumps(CONFIG))
    assert fdl("why", "alone/model.fdl:lr").out == LR


def test_as_json(tmp_path: Path, fdl: Fdl) -> None:
    run(tmp_path / "out/a")
    document = json.loads(fdl("why", "out/a:lr", "--json").out)
    assert document["fields"][0]["path"] == "training.lr"
    assert document["fields"][0]["stack"][1] == {
        "role": "overridden",
        "value": 0.1,
        "file": "train/fdl.yml",
        "line": 2,
        "column": 7,
        "source": "manifest",
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no safetensors header"),
        (b"\xff" * 64, "has no safetensors header"),
        ((1 << 20).to_bytes(8, "little") + b"{}", "is cut off inside its header"),
        ((2).to_bytes(8, "little") + b"[]", "is not a JSON object"),
        ((2).to_bytes(8, "little") + b"{]", "is not a JSON object"),
        (b"\x1f\x8b" + b"\x00" * 30, "cannot be read"),
    ],
)
def test_damaged_checkpoints_are_told(tmp_path: Path, fdl: Fdl, data: bytes, message: str) -> None:
    (tmp_path / "model.fdl").write_bytes(data)
    session = fdl("why", "model.fdl:lr")
    assert (session.exit, session.out) == (1, "")
    assert message in session.err


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("out/a:lrr", "records no `lrr`"),
        ("out/b:lr", "out/b does not exist"),
        ("empty:lr", "is not a run and contains none"),
        ("out/a/config.json:nope", "records no `nope`"),
    ],
)
def test_what_is_not_recorded_is_told(tmp_path: Path, fdl: Fdl, asked: str, message: str) -> None:
    run(tmp_path / "out/a")
    (tmp_path / "empty").mkdir()
    session = fdl("why", asked)
    assert (session.exit, session.out) == (2, "")
    assert message in session.err
