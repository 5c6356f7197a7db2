"""Curves by step: what is kept of them, and what a picture of them needs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flodl.errors import StateError
from flodl.monitor import Monitor
from flodl.monitor.records import EpochRecord, StepSeries, to_json
from flodl.monitor.series import SeriesStore, thinned
from tests.rows import each_row


def test_pieces_become_one_curve_and_no_step_stands_twice():
    store = SeriesStore()
    store.extend([StepSeries("loss", [0, 1, 2], [3.0, 2.0, 1.0])])
    store.extend([StepSeries("loss", [2, 3], [9.0, 0.5]), StepSeries("lr", [0], [0.1])])
    assert store.names() == ("loss", "lr")
    assert store.read("loss") == StepSeries("loss", [0, 1, 2, 3], [3.0, 2.0, 1.0, 0.5])
    assert store.read("none") == StepSeries("none", (), ())
    with pytest.raises(ValueError, match="'x': 2 steps and 1 values; pass one value per step"):
        store.extend([StepSeries("loss", [4], [1.0]), StepSeries("x", [0, 1], [1.0])])
    assert store.read("loss").steps[-1] == 3, "a refused call changes nothing"


def test_memory_is_bounded_and_extremes_outlive_it():
    store = SeriesStore(limit=1000)
    peak = 12_345
    for start in range(0, 100_000, 500):
        values = [99.0 if step == peak else math.sin(step) for step in range(start, start + 500)]
        store.extend([StepSeries("loss", range(start, start + 500), values)])
        assert len(store.read("loss").steps) <= 1000
    curve = store.read("loss")
    assert curve.values[curve.steps.index(peak)] == 99.0
    assert curve.steps[0] == 0
    assert curve.steps[-1] == 99_999
    assert curve.steps == sorted(curve.steps)


values_of_curves = st.lists(
    st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300
)


@given(values_of_curves, st.integers(1, 120))
def test_thinning_keeps_ends_extremes_and_a_gap(values, points):
    steps = np.arange(len(values)) * 3
    kept_steps, kept = thinned(steps, np.array(values), points)
    assert len(kept_steps) <= max(5, points)
    assert (np.diff(kept_steps) > 0).all()
    assert {kept_steps[0], kept_steps[-1]} == {steps[0], steps[-1]}
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        there = kept[np.isfinite(kept)]
        assert there.max() == max(finite)
        assert there.min() == min(finite)
    assert all(math.isfinite(value) for value in values) == np.isfinite(kept).all()
    original = dict(zip(steps.tolist(), values, strict=True))
    for step, value in zip(kept_steps.tolist(), kept.tolist(), strict=True):
        assert np.array_equal(original[step], value, equal_nan=True), "no point is invented"


class Watcher:
    """A sink that wants everything."""

    def __init__(self):
        self.seen = []

    def open(self, info):
        pass

    def record(self, record):
        self.seen.append(("epoch", record.epoch))

    def steps(self, series):
        self.seen += [("steps", one.name, list(one.steps)) for one in series]

    def ledger(self, seconds):
        self.seen.append(("ledger", dict(seconds)))

    def finish(self, summary):
        self.seen.append(("finish", dict(summary.ledger)))


def test_sinks_that_want_steps_and_time_get_them_late_ones_too(monitor):
    early = Watcher()
    monitor.add_sink(early)
    monitor.log_steps([StepSeries("loss", [0, 1], [2.0, 1.0]), StepSeries("empty", [], [])])
    monitor.flush()
    monitor.log_steps([StepSeries("loss", [2], [0.5])])
    monitor.log_ledger({"forward": 1.0})
    monitor.flush()
    late = Watcher()
    monitor.add_sink(late)
    monitor.log(0, 1.0)
    monitor.finish()
    assert early.seen == [
        ("steps", "loss", [0, 1]),
        ("steps", "loss", [2]),
        ("ledger", {"forward": 1.0}),
        ("epoch", 0),
        ("finish", {"forward": 1.0}),
    ]
    assert [one for one in late.seen if one[0] == "steps"] == [("steps", "loss", [0, 1, 2])]
    assert ("ledger", {"forward": 1.0}) in late.seen
    with pytest.raises(StateError, match=r"log_steps\(\) after finish\(\)"):
        monitor.log_steps([])


def test_a_resumed_run_shows_what_was_before_and_counts_only_its_own(clock, capsys, tmp_path):
    first = Monitor(10, clock=clock, terminal=False)
    for epoch in range(6):
        clock.now += 100
        first.log(epoch, 100.0, {"loss": math.nan if epoch == 3 else 1.0 / (epoch + 1)})
    forms = [json.loads(to_json(record.as_json())) for record in first.history]
    first.finish("interrupted")
    capsys.readouterr()

    second = Monitor(10, clock=clock)
    second.export_csv(tmp_path / "metrics.csv")
    restored = [EpochRecord.from_json(form) for form in forms]
    assert [to_json(one.as_json()) for one in restored] == [to_json(form) for form in forms]
    second.restore(restored)
    assert capsys.readouterr().out == "", "what was printed once is not printed again"
    clock.now += 1
    second.log(6, 1.0, {"loss": 0.1})
    assert "epoch  7/10  loss=0.1000  [1.0s  ETA 3s]" in capsys.readouterr().out
    assert [record.epoch for record in second.history] == list(range(7))
    with pytest.raises(StateError, match=r"restore\(\) after the first epoch"):
        second.restore(restored)
    second.finish()
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 8


@each_row("form", [{}, {"epoch": "x"}, {"epoch": 1, "total": 2, "metrics": []}])
def test_what_is_no_record_is_refused(form):
    with pytest.raises(ValueError, match=r"record of an epoch: .* pass what .*as_json\(\)"):
        EpochRecord.from_json(form)


def test_pieces_without_steps_are_no_news(monitor):
    watcher = Watcher()
    monitor.add_sink(watcher)
    monitor.log_steps([StepSeries("loss", [], [])])
    monitor.log_steps([])
    monitor.finish()
    assert watcher.seen == [("finish", {})]
