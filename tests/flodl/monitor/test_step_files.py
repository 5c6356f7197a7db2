"""Step curves as files: what a reader finds in the folder after a training, a crash, a restart."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from flodl.monitor import Monitor, StepSeries
from flodl.monitor.step_files import BLOCK, StepFilesSink


class Clock:
    """A clock that is set by hand, in seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def numbers(folder: Path, stem: str, columns: int = 2) -> np.ndarray:
    return np.fromfile(folder / f"{stem}.f64", "<f8").reshape(-1, columns)


def index(folder: Path) -> dict:
    return json.loads((folder / "index.json").read_text(encoding="utf-8"))


def trained(folder: Path, first: int, count: int, clock: Clock, **more: object) -> None:
    """A training of one epoch that logs its loss in two pieces, ten seconds each."""
    monitor = Monitor(1, terminal=False, clock=clock)
    delivery = monitor.add_sink(StepFilesSink(folder, **more))
    assert delivery.flush(10)
    for start in (first, first + count // 2):
        clock.now += 10
        steps = range(start, start + count // 2)
        monitor.log_steps([StepSeries("loss", steps, [1 / (step + 1) for step in steps])])
        assert delivery.flush(10)
    monitor.log(0, 20.0, {"loss": 0.5})
    monitor.finish()


def test_a_reader_finds_points_blocks_times_and_epochs(tmp_path):
    trained(tmp_path / "steps", 0, 300, Clock())
    found = index(tmp_path / "steps")
    assert found == {
        "version": 1, "block": 128, "curves": {"loss": "1-0"}, "time": "time-0",
        "epochs": "epochs-0",
    }  # fmt: skip
    points = numbers(tmp_path / "steps", "1-0")
    assert points[:, 0].tolist() == list(range(1, 301)), "steps count from 1"
    assert points[2].tolist() == [3.0, 1 / 3]
    blocks = numbers(tmp_path / "steps", "1-0.blocks", 6)
    assert blocks[:, :2].tolist() == [[1, BLOCK], [BLOCK + 1, 2 * BLOCK]]
    assert blocks[0, 2:4].tolist() == [1 / BLOCK, 1.0], "lowest and highest"
    assert blocks[0, 4] == pytest.approx(points[:BLOCK, 1].mean())
    times = numbers(tmp_path / "steps", "time-0")
    assert (times - [0, times[0, 1]]).round(3).tolist() == [[0, 0], [150, 10], [300, 20]]
    assert times[0, 1] == pytest.approx(time.time(), abs=60), "in seconds since 1970"
    assert numbers(tmp_path / "steps", "epochs-0").tolist() == [[300, 1]]


def test_values_that_are_not_finite_are_kept_and_counted(tmp_path):
    sink = StepFilesSink(tmp_path)
    values = [math.nan, math.inf, *[2.0] * (BLOCK - 2), *[math.nan] * BLOCK]
    sink.steps([StepSeries("loss", range(2 * BLOCK), values)])
    sink.flush()
    blocks = numbers(tmp_path, "1-0.blocks", 6)
    assert blocks[0].tolist() == [1, BLOCK, 2, 2, 2, 2]
    assert np.isnan(blocks[1, 2:5]).all()
    assert blocks[1, 5] == BLOCK
    assert numbers(tmp_path, "1-0")[1].tolist() == [2, math.inf]


def test_a_long_curve_is_thinned_into_new_files_with_its_peak(tmp_path):
    sink = StepFilesSink(tmp_path, limit=1000)
    for start in range(0, 5000, 100):
        values = [9.0 if step == 777 else math.sin(step) for step in range(start, start + 100)]
        sink.steps([StepSeries("loss", range(start, start + 100), values)])
        sink.flush()
    stem = index(tmp_path)["curves"]["loss"]
    assert stem != "1-0"
    points = numbers(tmp_path, stem)
    assert 500 <= len(points) <= 1000
    assert [778, 9.0] in points.tolist()
    assert points[-1, 0] == 5000
    rows = numbers(tmp_path, f"{stem}.blocks", 6)
    assert len(rows) == len(points) // BLOCK
    assert rows[:, 0].tolist() == points[: len(rows) * BLOCK : BLOCK, 0].tolist()
    left = {file.name for file in tmp_path.iterdir() if file.name.startswith("1-")}
    assert left == {f"{stem}.f64", f"{stem}.blocks.f64"}, "the old files are gone"


def test_a_restart_goes_on_and_replaces_steps_that_are_trained_again(tmp_path):
    clock = Clock()
    trained(tmp_path, 0, 300, clock)
    with (tmp_path / "1-0.f64").open("ab") as file:
        file.write(b"half")  # what a kill in the middle of a write leaves
    trained(tmp_path, 200, 300, clock)
    stem = index(tmp_path)["curves"]["loss"]
    points = numbers(tmp_path, stem)
    assert points[:, 0].tolist() == list(range(1, 501)), "nothing twice, nothing missing"
    assert numbers(tmp_path, f"{stem}.blocks", 6)[:, 1].tolist() == [128, 256, 384]
    epochs = numbers(tmp_path, index(tmp_path)["epochs"])
    assert epochs.tolist() == [[300, 1], [500, 1]]


def test_a_file_that_a_crash_cut_off_is_continued_from_its_last_point(tmp_path):
    clock = Clock()
    trained(tmp_path, 0, 300, clock)
    for name in ("1-0.f64", "1-0.blocks.f64"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"half")
    trained(tmp_path, 300, 100, clock)
    stem = index(tmp_path)["curves"]["loss"]
    assert numbers(tmp_path, stem)[:, 0].tolist() == list(range(1, 401))
    assert numbers(tmp_path, f"{stem}.blocks", 6)[:, 1].tolist() == [128, 256, 384]


def test_a_run_without_step_values_gets_no_folder(tmp_path):
    monitor = Monitor(1, terminal=False)
    monitor.add_sink(StepFilesSink(tmp_path / "steps"))
    monitor.log(0, 1.0, {"loss": 1.0})
    monitor.finish()
    assert not (tmp_path / "steps").exists()


def test_pieces_without_steps_are_left_out(tmp_path):
    sink = StepFilesSink(tmp_path / "steps")
    sink.steps([])
    sink.steps([StepSeries("loss", [], [])])
    sink.flush()
    assert not (tmp_path / "steps").exists()
    sink.steps([StepSeries("lr", [], []), StepSeries("loss", [0], [2.0])])
    sink.flush()
    assert list(index(tmp_path / "steps")["curves"]) == ["loss"]


def test_a_repeated_step_is_not_written_twice(tmp_path):
    sink = StepFilesSink(tmp_path)
    sink.steps([StepSeries("loss", [0, 1], [2.0, 1.0])])
    sink.steps([StepSeries("loss", [1], [9.0])])
    sink.flush()
    assert numbers(tmp_path, "1-0").tolist() == [[1, 2.0], [2, 1.0]]


def test_a_curve_that_is_too_long_at_once_is_thinned_before_it_is_written(tmp_path):
    sink = StepFilesSink(tmp_path, limit=1000)
    sink.steps([StepSeries("loss", range(5000), [math.sin(step) for step in range(5000)])])
    sink.flush()
    points = numbers(tmp_path, index(tmp_path)["curves"]["loss"])
    assert 400 <= len(points) <= 1000
    assert points[[0, -1], 0].tolist() == [1, 5000]


def test_an_index_that_leads_out_of_the_folder_is_not_continued(tmp_path):
    (tmp_path / "steps").mkdir()
    (tmp_path / "mine-0.f64").write_bytes(b"precious")
    curves = {"version": 1, "block": 128, "curves": {"loss": "../mine-0"}}
    (tmp_path / "steps/index.json").write_text(json.dumps(curves), encoding="utf-8")
    trained(tmp_path / "steps", 0, 10, Clock())
    assert (tmp_path / "mine-0.f64").read_bytes() == b"precious"
    assert numbers(tmp_path / "steps", index(tmp_path / "steps")["curves"]["loss"])[-1, 0] == 10


@pytest.mark.parametrize(
    "found",
    [
        [],
        {"curves": {"loss": "1"}},
        {"curves": {"loss": 3}},
        {"curves": {"loss": "1-7"}},
        {"curves": {"loss": "1-0"}, "time": "time-3"},
    ],
    ids=["a list", "a name without a number", "a number", "a file that is missing", "a mark"],
)
def test_a_damaged_folder_is_written_anew(tmp_path, found, capsys):
    trained(tmp_path, 0, 10, Clock())
    (tmp_path / "index.json").write_text(json.dumps(found), encoding="utf-8")
    trained(tmp_path, 20, 10, Clock())
    assert numbers(tmp_path, index(tmp_path)["curves"]["loss"])[:, 0].tolist() == [*range(21, 31)]
    assert len(numbers(tmp_path, index(tmp_path)["time"])) == 3
    assert "detached" not in capsys.readouterr().err
