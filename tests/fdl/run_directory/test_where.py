"""``--where``: conditions on metrics, settings and facts, and where a wrong one goes wrong."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from fdl.errors import UsageError
from fdl.run_directory.find import search
from fdl.run_directory.quantity import Known
from fdl.run_directory.query import matches, parse
from tests.fdl.run_directory.trails import trail


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three runs: a, b and c, which began on three days of UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    trail(
        tmp_path / "2026-01-01T10-00-00",
        metrics={"val_loss": [0.05, 0.2], "train/acc": [0.5, 0.9], "epoch_loss": [1, "nan"]},
        config={"lr": 0.1, "optimizer.name": "adam", "amp": True, "epochs": 2, "text": "10"},
    )
    trail(
        tmp_path / "2026-01-02T10-00-00",
        "failed",
        metrics={"val_loss": [0.3, 0.1], "both": [1, 2]},
        config={"lr": 0.01, "optimizer.name": "sgd", "amp": False, "both": 3, "layers": [64, 64]},
    )
    trail(tmp_path / "2026-01-03T23-50-00", metrics={}, config={"seed": 7, "odd name": 1})
    (tmp_path / "2026-01-01T10-00-00/notes.json").write_text(
        json.dumps({"tags": ["baseline", "paper"], "note": "with the old data"})
    )
    yield search([tmp_path])
    monkeypatch.undo()
    time.tzset()


def found(runs, text):
    """The letters of the runs that meet a condition."""
    condition = parse(text, Known(runs))
    days = sorted(run.name[9] for run in runs if matches(condition, run))
    return "".join("abc"[int(day) - 1] for day in days)


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("val_loss < 0.15", "b"),
        ("val_loss <= 0.1", "b"),
        ("best:val_loss < 0.06", "a"),
        ("min(val_loss) < 0.06", "a"),
        ("max( val_loss ) >= 0.3", "b"),
        ("last:val_loss = 0.2", "a"),
        ("val_loss < best:val_loss", ""),
        ("val_loss > best:val_loss", "a"),
        ("train/acc >= 0.9", "a"),
        ("lr = 1e-1", "a"),
        ("config.lr == 0.01", "b"),
        ("lr != 0.1", "b"),
        ("lr in (0.1, 0.01)", "ab"),
        ("lr not in (0.1, 0.2)", "b"),
        ("optimizer.name = adam", "a"),
        ("optimizer.name = 'adam'", "a"),
        ("optimizer.name ~ '^s'", "b"),
        ("optimizer.name !~ ^s", "a"),
        ("amp", "a"),
        ("not amp", "b"),
        ("amp = false", "b"),
        ("text > 9", "a"),
        ("layers = '[64, 64]'", "b"),
        ("`odd name` = 1", "c"),
        ("config.both = 3 and last:both = 2", "b"),
        ("config.epochs = 2 and epochs = 2", "a"),
        ("state = failed", "b"),
        ("state in (failed, complete)", "abc"),
        ("name ~ '2026-01-0[12]'", "ab"),
        ("tags = paper", "a"),
        ("tags != paper", "bc"),
        ("not tags in (paper, other)", "bc"),
        ("tags ~ base", "a"),
        ("note ~ 'old data'", "a"),
        ("started >= 2026-01-02", "bc"),
        ("started = 2026-01-03", "c"),
        ("started <= 2026-01-02", "ab"),
        ("started > 2026-01-02", "c"),
        ("started < '2026-01-02T10:00'", "a"),
        ("seconds > 2m and seconds < 1h", "abc"),
        ("age > 1d", "abc"),
        ("epoch_loss > 0", ""),
        ("not epoch_loss > 0", ""),
        ("not val_loss < 0.15", "a"),
        ("val_loss < 0.15 or seed = 7", "bc"),
        ("not (val_loss < 0.15 or lr = 5)", "a"),
        ("seed = 7 and val_loss < 1", ""),
        ("lr = 0.1 or lr = 0.01 and val_loss > 5", "a"),
        ("(lr = 0.1 or lr = 0.01) and val_loss > 5", ""),
    ],
)
def test_a_condition_is_met_by(runs, text, letters):
    assert found(runs, text) == letters


@pytest.mark.parametrize(
    ("text", "caret", "problem"),
    [
        ("", "^", "the condition ends too early"),
        ("val_loss <", "          ^", "`<` needs a value"),
        ("val_loss < and lr", "           ^", "`<` needs a value, not `and`"),
        ("val_los < 1", "^", "no run has the metric, setting or fact `val_los`"),
        ("lr = 1 and val_los < 1", "           ^", "`val_los`"),
        ("best:lr < 1", "^", "no run has the metric `lr`"),
        ("both = 1", "^", "`both` is both a metric and a setting"),
        ("(lr = 1", "       ^", "`)` is missing"),
        ("lr = 1)", "      ^", "`)` is not expected here"),
        ("lr = 1 seed = 2", "       ^", "`seed` is not expected here"),
        ("lr && seed", "   ^", "`&&` is not a word here"),
        ("lr = 'x", "     ^", "the quote ' is not closed"),
        ("lr in 1", "      ^", "`(` is missing after `in`"),
        ("lr in (1", "        ^", "`)` is missing"),
        ("lr in ()", "       ^", "`=` needs a value"),
        ("lr not 1", "       ^", "`in` is missing after `not`"),
        ("name ~ 'a['", "         ^", "the regular expression is wrong"),
        ("state = compleet", "        ^", "`compleet` is not a state of a run"),
        ("started > 5", "          ^", "`started` takes a date"),
        ("val_loss < abc", "           ^", "`val_loss` is compared with a number"),
        ("lr < abc", "     ^", "`<` compares numbers and dates"),
        ("name ~ 5 and 日本 < 1", "             ^", "`日本`"),
        ("(" * 60 + "lr = 1", " " * 50 + "^", "nested in more than 50 levels"),
    ],
)
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
