"""Values that are no numbers are shown as they are, and never count as the best."""

from __future__ import annotations

import json

import pytest

from tests.fdl.run_directory.trails import trail

BROKEN, LOW, GOOD = "2026-01-31T10-00-00", "2026-02-01T10-00-00", "2026-02-02T10-00-00"


@pytest.fixture(autouse=True)
def runs(project):
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: runs}"})
    trail(folder / "runs" / BROKEN, metrics={"loss": ["nan", "nan"], "acc": [0.5, "inf"]})
    trail(folder / "runs" / LOW, metrics={"loss": [0.9, "-inf"], "acc": ["nan", 0.25]})
    trail(folder / "runs" / GOOD, metrics={"loss": [0.5, 0.4], "acc": [0.75, 0.5]})
    return folder / "runs"


def test_lists_show_nan_and_infinity(fdl):
    lines = fdl("runs", "list").out.splitlines()
    assert "loss=nan  acc=inf" in lines[3]
    assert "loss=-inf  acc=0.2500" in lines[2]


@pytest.mark.parametrize("column", ["loss", "last:loss", "best:loss", "min(loss)"])
def test_columns_show_nan(column, fdl):
    session = fdl("runs", "list", "--columns", column)
    assert session.out.splitlines()[3].split() == [BROKEN, "nan"]


def test_csv_and_json_have_them(fdl):
    rows = fdl("runs", "list", "--csv", "--columns", "loss,acc").out.splitlines()
    assert rows[2:] == [f"{LOW},-inf,0.25", f"{BROKEN},nan,inf"]
    document = json.loads(fdl("runs", "list", "--json").out)
    assert [one["metrics"]["loss"] for one in document["runs"]] == [0.4, "-inf", "nan"]


def test_a_run_shows_its_values(fdl):
    text = fdl("runs", "show", BROKEN).out
    rows = [line.split() for line in text.splitlines()]
    assert ["loss", "nan", "best", "nan", "(epoch", "1)"] in rows
    assert ["acc", "inf", "best", "0.5000", "(epoch", "1)"] in rows
    document = json.loads(fdl("runs", "show", BROKEN, "--json").out)
    assert document["metrics"] == {"loss": "nan", "acc": "inf"}
    assert document["best"]["acc"] == {"value": 0.5, "epoch": 1}


@pytest.mark.parametrize(("metric", "best"), [("loss", GOOD), ("acc", GOOD), ("loss:max", LOW)])
def test_they_are_never_the_best(metric, best, fdl):
    assert best in fdl("runs", "show", f"best:{metric}").out


def test_the_best_of_only_such_values_is_an_error(runs, fdl):
    (runs / GOOD / "metrics.csv").unlink()
    (runs / LOW / "metrics.csv").unlink()
    session = fdl("runs", "show", "best:loss")
    assert session.exit == 2
    assert "no run has a finite `loss`: it is nan or infinite in all epochs" in session.err


def test_they_come_last_in_an_order(fdl):
    for order, expected in {
        "loss": [GOOD, LOW, BROKEN],
        "loss:max": [GOOD, LOW, BROKEN],
        "best:loss": [GOOD, LOW, BROKEN],
        "acc": [GOOD, LOW, BROKEN],
    }.items():
        lines = fdl("runs", "list", "--sort", order, "--columns", "state").out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == expected, order


def test_a_comparison_marks_no_such_value(fdl):
    session = fdl("runs", "compare", BROKEN, GOOD)
    loss = next(line for line in session.out.splitlines() if line.split()[:1] == ["loss"])
    assert loss.split() == ["loss", "nan", "@1", "0.4000", "@2*"]
    document = json.loads(fdl("runs", "compare", BROKEN, GOOD, "--json").out)
    assert document["metrics"]["loss"]["best"] == [1]
    assert document["metrics"]["loss"]["values"][0] == {"value": "nan", "epoch": 1}
