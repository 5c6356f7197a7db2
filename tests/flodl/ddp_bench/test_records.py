"""The folder of a run."""

import json
import math
from datetime import datetime

import pytest

from flodl.ddp_bench.records import RunFolder, RunRecord, is_complete, read_run, run_folders
from flodl.errors import DataError
from tests.flodl.ddp_bench.figures import record, row
from tests.rows import each_row


def test_a_record_survives_being_written(tmp_path):
    rows = (
        row(0, k=10, counts=(25, 10), batches=(50, 20), busy_ms=(900.0, 950.0), comm_ms=3.0),
        row(1, loss=math.nan, scalars={"train_acc": 0.5}),
    )
    run = record(rows=rows, plans=((3, 3), (25, 10)), syncs=4, sync_ms=1.5)
    folder = RunFolder(tmp_path / "mlp" / "sync")
    folder.begin(["gpu0: A"])
    folder.finish(run)
    read = read_run(folder.path)
    assert math.isnan(read.rows[1].loss)
    assert read.rows[0] == rows[0]
    assert (read.plans, read.syncs, read.devices) == (run.plans, 4, run.devices)
    assert list(run_folders(tmp_path)) == [folder.path]


def test_the_log_reads_as_promised(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(["gpu0: A", "gpu1: B"])
    for one in (row(0, k=15, train_ms=1234.5), row(1)):
        folder.tell(one.line())
    folder.finish(record(rows=(row(1, eval=0.97),)))
    assert (tmp_path / "training.log").read_text().splitlines() == [
        "# gpu0: A",
        "# gpu1: B",
        "epoch 1: loss=0.5, eval=0.9, k=15, time=1.234s",
        "epoch 2: loss=0.5, eval=0.9, k=0, time=1.000s",
        "final eval=0.97",
        "# total: 1.500s",
    ]


def test_an_earlier_run_is_moved_aside_and_never_overwritten(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    folder = RunFolder(tmp_path)
    for number in range(3):
        folder.begin([f"run {number}"], now=now)
        folder.finish(record())
        (tmp_path / "epoch-1.fdl").write_text("weights")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "epoch-1.20260102-030405-2.fdl",
        "epoch-1.20260102-030405.fdl",
        "epoch-1.fdl",
        "metrics.20260102-030405-2.json",
        "metrics.20260102-030405.json",
        "metrics.json",
        "training.20260102-030405-2.log",
        "training.20260102-030405.log",
        "training.log",
    ]
    assert "run 0" in (tmp_path / "training.20260102-030405.log").read_text()
    assert "run 2" in (tmp_path / "training.log").read_text()


def test_a_run_is_complete_only_with_its_figures(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin([])
    assert not is_complete(tmp_path)
    folder.finish(record())
    assert is_complete(tmp_path)


@each_row("text", ["", "[]", '{"format": 2}', '{"format": 1, "rows": []}', "{"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(DataError, match="not the figures of a run"):
        read_run(tmp_path)


def test_what_is_not_finite_is_null():
    form = record(rows=(row(loss=math.inf),)).as_json()
    assert form["rows"][0]["loss"] is None
    json.dumps(form, allow_nan=False)
    assert math.isnan(RunRecord.from_json(form).loss)
