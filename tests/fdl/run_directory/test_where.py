"""``--where``: conditions on metrics, settings and facts, and where a wrong one goes wrong."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from fdl.base.errors import UsageError
from fdl.runs.find import search
from fdl.runs.quantity import Known
from fdl.runs.query import matches, parse
from tests.fdl.run_directory.trails import trail
from tests.fdl.run_directory.where_cases import CASES, WRONG, make_three
from tests.rows import each_row


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three runs: a, b and c, which began on three days of UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    make_three(tmp_path)
    yield search([tmp_path])
    monkeypatch.undo()
    time.tzset()


def found(runs, text):
    """The letters of the runs that meet a condition."""
    condition = parse(text, Known(runs))
    days = sorted(run.name[9] for run in runs if matches(condition, run))
    return "".join("abc"[int(day) - 1] for day in days)


@each_row(("text", "letters"), CASES)
def test_a_condition_is_met_by(runs, text, letters):
    assert found(runs, text) == letters


@each_row(("text", "caret", "problem"), WRONG)
def test_a_wrong_condition_is_shown_with_a_caret(runs, text, caret, problem):
    with pytest.raises(UsageError) as refused:
        parse(text, Known(runs))
    message, *shown = refused.value.message.split("\n")
    assert problem in message
    assert shown == [f"  {text}", f"  {caret}"]


def test_a_name_of_both_kinds_is_told_with_both_spellings(runs):
    with pytest.raises(UsageError) as refused:
        parse("both > 1", Known(runs))
    assert refused.value.hint == "write `last:both` or `config.both`"


def test_a_metric_on_the_right_has_its_explicit_name(runs):
    with pytest.raises(UsageError) as refused:
        parse("val_loss < both", Known(runs))
    assert refused.value.hint == "write `last:both` for the metric"


def test_a_day_on_which_the_clock_changes_has_all_of_its_hours(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        trail(tmp_path / "2026-01-01T10-00-00", started="2026-10-25T23:30:00+01:00")
        trail(tmp_path / "2026-01-02T10-00-00", started="2026-03-30T00:30:00+02:00")
        runs = search([tmp_path])
        assert found(runs, "started = 2026-10-25") == "a"
        assert found(runs, "started > 2026-10-25") == ""
        assert found(runs, "started <= 2026-03-29") == ""
        assert found(runs, "started = 2026-03-30") == "b"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_two_settings_are_equal_where_one_of_them_is_a_number_written_as_text(tmp_path):
    trail(tmp_path / "2026-01-01T10-00-00", config={"width": 64, "height": "64"})
    trail(tmp_path / "2026-01-02T10-00-00", config={"width": 64, "height": "sixty"})
    runs = search([tmp_path])
    assert found(runs, "width = config.height") == "a"
    assert found(runs, "width != config.height") == "b"


def test_an_age_counts_from_now(tmp_path):
    began = datetime.now(UTC) - timedelta(hours=5)
    trail(tmp_path / f"{began:%Y-%m-%dT%H-%M-%S}", "running", started=began.isoformat())
    runs = search([tmp_path])
    (run,) = runs
    for text, expected in (("age < 6h", True), ("age < 4h", False), ("seconds > 4h", True)):
        assert matches(parse(text, Known(runs)), run) is expected


def test_the_rate_that_the_trainer_records_does_not_hide_the_setting(tmp_path):
    trail(tmp_path / "2026-01-01T10-00-00", metrics={"lr": [0.1, 0.05]}, config={"lr": 0.1})
    trail(tmp_path / "2026-01-02T10-00-00", metrics={"lr": [0.3]}, config={"lr": 0.3})
    runs = search([tmp_path])
    assert found(runs, "lr = 0.1") == "a"
    assert found(runs, "last:lr < 0.1") == "a"
    assert found(runs, "last:lr > 0.2") == "b"
