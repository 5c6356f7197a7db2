"""``fdl runs import`` of transaction logs of W&B, made by hand."""

from __future__ import annotations

import json
import math
import struct

import pytest

from fdl.runs.importing.detect import runs
from fdl.runs.importing.foreign import UnreadableRunError
from tests.fdl.run_directory.test_import import field, varint
from tests.rows import each_row

BLOCK = 32768


def item(path, value):
    names = b"".join(field(2, one.encode()) for one in path.split("."))
    return field(1, names + field(16, json.dumps(value).encode()))


def history(step, **values):
    row = {"_step": step, "_timestamp": 1000.0 + step, **values}
    return field(2, b"".join(item(path, value) for path, value in row.items()))


RUN = field(
    17,
    field(1, b"abc")
    + field(3, b"digits")
    + field(4, item("lr", 0.5) + item("_wandb", {}))
    + field(8, b"first")
    + field(10, b"small")
    + field(17, b"\x08" + varint(900)),
)


def log(folder, *records):
    """A run folder with a transaction log; a record may be in pieces of several blocks."""
    data = bytearray(b":W&B\x00\x00\x00")
    for content in records:
        rest, first = content, True
        while first or rest:
            room = BLOCK - len(data) % BLOCK
            if room <= 7:
                data += bytes(room)
                continue
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            data += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
    folder.mkdir(parents=True)
    file = folder / "run-abc.wandb"
    file.write_bytes(data)
    return file


def read(folder):
    [made] = runs([folder])
    return made


def test_a_run_with_its_settings_curves_and_end(tmp_path):
    log(
        tmp_path / "wandb/offline-run-1-abc",
        RUN,
        history(0, loss=1, ok=True, name="x"),
        history(5, loss=math.nan),
        field(5, item("depth", 3)),
        field(3, item("best", 2) + item("loss", 9)),
        field(18, b"\x08\x01"),
    )
    made = read(tmp_path)
    assert (made.name, made.identity, made.tags) == ("first", "offline-run-1-abc", ["small"])
    assert (made.config, made.state) == ({"lr": 0.5, "depth": 3}, "failed")
    assert repr(made.curves["loss"].values) == "[1.0, nan]"
    assert (made.curves["loss"].steps, made.curves["loss"].times) == ([0, 5], [1000.0, 1005.0])
    assert (made.curves["best"].steps, made.curves["best"].values) == ([5], [2.0])
    assert made.started.timestamp() == 900
    assert set(made.curves) == {"loss", "best"}


def test_images_and_histograms_are_no_curves(tmp_path):
    picture = {"image._type": "image-file", "image.width": 8, "image.inner.size": 3}
    log(tmp_path / "run", RUN, history(0, **picture, **{"train.loss": 2}))
    assert list(read(tmp_path).curves) == ["train.loss"]


def test_a_long_log_is_read_over_its_blocks(tmp_path):
    rows = [history(step, loss=step, note="n" * 50) for step in range(2000)]
    file = log(tmp_path / "run", RUN, *rows, history(2000, loss=0, note="n" * 80_000))
    assert file.stat().st_size > 6 * BLOCK
    curve = read(file).curves["loss"]
    assert curve.steps == list(range(2001))


def test_a_log_that_is_still_written_counts_as_interrupted(tmp_path):
    file = log(tmp_path / "run", RUN, history(0, loss=1), history(1, loss=2))
    file.write_bytes(file.read_bytes()[:-3])
    made = read(tmp_path)
    assert (made.state, made.curves["loss"].steps, made.warnings) == ("interrupted", [0], [])


@each_row(
    ("damage", "warned"),
    [
        (b"\xff" * 20, True),
        (b"\x0a\x7f", True),
        (b"", False),
        (b"\x10\x05", True),  # a number in place of a history
        (field(2, field(1, b"\x10\x05")), True),  # a number in place of a name
        (history(1, _timestamp=[]), True),
        (history(1, _step=[], other=2), True),
        (history(float("inf"), other=2), True),
        (history(1, other=10**400), True),
    ],
)
def test_what_follows_a_damaged_record_is_left_out(tmp_path, damage, warned):
    file = log(tmp_path / f"run{hash(damage)}", RUN, history(0, loss=1), damage)
    made = read(file)
    assert made.curves["loss"].steps == [0]
    assert bool(made.warnings) is warned


def test_a_log_without_a_run_cannot_be_imported(tmp_path):
    log(tmp_path / "run", history(0, loss=1))
    with pytest.raises(UnreadableRunError, match="has no run"):
        raise read(tmp_path)
