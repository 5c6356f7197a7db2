"""Curves over every axis, in the resolution of a screen, and with everything that matters kept."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

from benchmarks.many_runs import EPOCHS, losses, make_runs
from fdl.runs.pages.catalog import Cache, Catalog, Entry
from fdl.runs.pages.curves import Request, curve, packed
from fdl.runs.step_files import Line, StepFiles, merged, of_values
from flodl.monitor import StepSeries
from flodl.monitor.step_files import StepFilesSink
from tests.fdl.run_directory.trails import trail

POINTS = 40_000


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """Two runs with a loss by step, and metrics by epoch."""
    folder = tmp_path_factory.mktemp("made")
    make_runs(folder / "runs", 2, POINTS)
    return Catalog([folder / "runs"], Cache(folder / "cache")).entries()[::-1]


def test_an_overview_keeps_the_lowest_and_highest_value_of_every_piece(entries):
    pieces = curve(entries[0], Request("loss", pieces=100))
    values = losses(0, POINTS)
    assert 70 <= len(pieces.steps) <= 110
    assert min(pieces.low) == values.min()
    assert max(pieces.high) == values.max()
    assert np.mean(pieces.mean) == pytest.approx(values.mean(), rel=0.02)
    assert pieces.steps == sorted(pieces.steps)


def test_a_zoom_shows_every_point_and_one_beyond_each_end(entries):
    pieces = curve(entries[0], Request("loss", pieces=1000, first=20_000, last=20_100))
    assert pieces.steps == list(range(19_999, 20_102))
    assert pieces.mean == losses(0, POINTS)[19_998:20_101].tolist()


def test_time_and_epochs_are_translated_to_steps_and_back(entries):
    whole = curve(entries[0], Request("loss", "time", 100))
    assert whole.steps[-1] == pytest.approx(600, rel=0.01), "the run took 600 seconds"
    part = curve(entries[0], Request("loss", "time", 5000, 300.0, 303.0))
    by_step = losses(0, POINTS)
    at = round(part.steps[100] / 600 * POINTS)
    assert 300 <= part.steps[100] <= 303
    assert part.mean[100] == pytest.approx(by_step[at - 1], rel=1e-9)
    epochs = curve(entries[0], Request("loss", "epoch", 100))
    assert epochs.steps == [float(epoch) for epoch in range(1, EPOCHS + 1)], "the table's own rows"
    wall = curve(entries[0], Request("loss", "wall", 100))
    assert wall.steps[0] == pytest.approx(1777874400 + whole.steps[0])


def test_a_metric_by_epoch_is_placed_where_its_epoch_ended(entries):
    pieces = curve(entries[1], Request("accuracy", "step", 100))
    assert pieces.steps == [POINTS / EPOCHS * epoch for epoch in range(1, EPOCHS + 1)]
    time = curve(entries[1], Request("accuracy", "time", 100))
    assert time.steps == pytest.approx([32 * epoch for epoch in range(1, EPOCHS + 1)])


def test_a_run_without_step_files_has_time_from_the_table_and_no_steps(tmp_path):
    trail(
        tmp_path / "runs" / "2026-01-31T10-00-00",
        metrics={"loss": [0.5, "", 0.25], "broken": [1, "nan", "inf"]},
    )
    [entry] = Catalog([tmp_path / "runs"], Cache(tmp_path / "cache")).entries()
    assert curve(entry, Request("loss", "epoch")).steps == [1, 3], (
        "a cell without a value is left out"
    )
    assert curve(entry, Request("loss", "time")).steps == [1, 3]
    assert curve(entry, Request("broken", "epoch")).broken == [0, 1, 1], "nan and inf are marked"
    assert curve(entry, Request("loss", "step")).steps == []
    assert curve(entry, Request("absent", "step")).steps == []


def test_a_table_that_went_away_after_the_row_was_made_has_no_curve(tmp_path):
    run = trail(tmp_path / "runs" / "2026-01-31T10-00-00", metrics={"loss": [0.5, 0.25]})
    [entry] = Catalog([tmp_path / "runs"], Cache(tmp_path / "cache")).entries()
    (run / "metrics.csv").unlink()
    assert curve(entry, Request("loss", "epoch")).steps == []
    assert entry.run.metrics.latest() == {"loss": 0.25}, "conditions are answered from the row"


def test_a_program_with_a_column_of_steps_is_drawn_over_them(tmp_path):
    run = trail(tmp_path / "runs" / "2026-01-31T10-00-00", argv=["train"])
    (run / "metrics.csv").write_text("step,loss\n100,2.0\n200,1.0\n")
    [entry] = Catalog([tmp_path / "runs"], Cache(tmp_path / "cache")).entries()
    pieces = curve(entry, Request("loss", "step"))
    assert (pieces.steps, pieces.mean) == ([100, 200], [2.0, 1.0])


def test_steps_that_a_program_wrote_in_another_order_are_drawn_in_theirs(tmp_path):
    run = trail(tmp_path / "runs" / "2026-01-31T10-00-00", argv=["train"])
    (run / "metrics.csv").write_text("step,loss\n3,1.0\n1,3.0\n2,2.0\n")
    [entry] = Catalog([tmp_path / "runs"], Cache(tmp_path / "cache")).entries()
    pieces = curve(entry, Request("loss", "step"))
    assert (pieces.steps, pieces.mean) == ([1, 2, 3], [3.0, 2.0, 1.0])
    assert entry.row["metrics"]["loss"]["last"] == 1.0


def test_several_rows_of_an_epoch_stand_at_its_last_step(tmp_path):
    run = trail(tmp_path / "runs" / "2026-01-31T10-00-00", argv=["train"])
    (run / "metrics.csv").write_text(
        "epoch,step,loss,val\n1,50,2.0,\n1,100,1.5,\n1,100,,3.0\n2,200,1.0,\n2,200,,2.5\n"
    )
    [entry] = Catalog([tmp_path / "runs"], Cache(tmp_path / "cache")).entries()
    assert curve(entry, Request("loss", "step")).steps == [100, 200]
    assert curve(entry, Request("val", "step")).mean == [3.0, 2.5]


def test_a_page_is_not_drawn_over_steps_that_only_some_rows_have(tmp_path):
    run = trail(tmp_path / "runs" / "2026-01-31T10-00-00", argv=["train"])
    (run / "metrics.csv").write_text("epoch,step,loss\n1,50,2.0\n2,,1.0\n")
    [entry] = Catalog([tmp_path / "runs"], Cache(tmp_path / "cache")).entries()
    assert not entry.row["has_steps"]
    assert curve(entry, Request("loss", "epoch")).mean == [2.0, 1.0]


def test_values_that_are_not_finite_are_marked_and_hide_no_others(tmp_path):
    sink = StepFilesSink(tmp_path / "steps")
    values = [math.nan if step == 700 else 5.0 if step == 701 else 1.0 for step in range(1000)]
    sink.steps([StepSeries("loss", range(1000), values)])
    sink.flush()
    pieces = StepFiles.read(tmp_path).pieces("loss", 4)
    assert sum(pieces.broken) == 1
    assert max(pieces.high) == 5.0
    assert all(math.isfinite(value) for value in pieces.mean)


def test_the_bytes_for_the_browser_hold_what_was_asked(entries):
    data = packed(entries, Request("loss", pieces=50), band=True)
    length = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + length])
    assert (4 + length) % 8 == 0
    assert [one[0] for one in head] == [entry.id for entry in entries]
    numbers = struct.unpack(f"<{(len(data) - 4 - length) // 8}d", data[4 + length :])
    count = head[0][1]
    expected = curve(entries[0], Request("loss", pieces=50))
    assert numbers[:count] == tuple(expected.steps)
    assert numbers[count : 2 * count] == tuple(expected.mean)
    assert numbers[3 * count : 4 * count] == tuple(expected.high)
    assert len(numbers) == 4 * sum(one[1] for one in head)


def test_an_index_from_elsewhere_leads_out_of_no_folder(tmp_path):
    secret = tmp_path / "secret.f64"
    secret.write_bytes(struct.pack("<2d", 1, 42))
    folder = tmp_path / "run" / "steps"
    folder.mkdir(parents=True)
    index = {"version": 1, "block": 128, "curves": {"a": "../../secret", "b": 7, "c": "gone"}}
    (folder / "index.json").write_text(json.dumps(index))
    files = StepFiles.read(tmp_path / "run")
    assert files.names == ["c"]
    assert files.pieces("a", 10).steps == files.pieces("c", 10).steps == []
    (folder / "index.json").write_text(json.dumps({**index, "version": 2}))
    assert StepFiles.read(tmp_path / "run").names == [], "a newer format is not guessed"


@given(
    st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=1, max_size=300),
    st.integers(1, 40),
)
def test_merging_loses_no_extreme_and_no_gap(values, count):
    made = merged(of_values([float(at) for at in range(len(values))], values), count)
    finite = [value for value in values if math.isfinite(value)]
    assert sum(made.broken) == len(values) - len(finite)
    if finite:
        assert min(value for value in made.low if not math.isnan(value)) == min(finite)
        assert max(value for value in made.high if not math.isnan(value)) == max(finite)
    assert len(made.steps) <= max(count, 1) + 1
    assert len({len(column) for column in made}) == 1


def test_a_line_is_not_continued_beyond_its_ends():
    line = Line([0.0, 10.0, 10.0, 20.0], [0.0, 1.0, 2.0, 3.0])
    found = line.read([-1.0, 0.0, 5.0, 15.0, 20.0, 21.0])
    assert [math.isnan(value) for value in found] == [True, False, False, False, False, True]
    assert found[1:5] == [0.0, 0.5, 2.5, 3.0]
    assert math.isnan(Line([], []).read([1.0])[0])
