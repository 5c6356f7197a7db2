"""The language of conditions on runs, case by case: for ``--where``, and for the page of runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fdl.run_directory.trails import trail


def make_three(folder: Path) -> None:
    """Three runs: a, b and c, which began on three days of UTC."""
    trail(
        folder / "2026-01-01T10-00-00",
        metrics={
            "val_loss": [0.05, 0.2],
            "train/acc": [0.5, 0.9],
            "epoch_loss": [1, "nan"],
            "a, (b)": [3, 2],
        },
        config={"lr": 0.1, "optimizer.name": "adam", "amp": True, "epochs": 2, "text": "10"},
    )
    trail(
        folder / "2026-01-02T10-00-00",
        "failed",
        metrics={"val_loss": [0.3, 0.1], "both": [1, 2]},
        config={"lr": 0.01, "optimizer.name": "sgd", "amp": False, "both": 3, "layers": [64, 64]},
    )
    trail(folder / "2026-01-03T23-50-00", metrics={}, config={"seed": 7, "odd name": 1})
    (folder / "2026-01-01T10-00-00/notes.json").write_text(
        json.dumps({"tags": ["baseline", "paper"], "note": "with the old data"})
    )


CASES = [
    ("val_loss < 0.15", "b"),
    ("val_loss <= 0.1", "b"),
    ("best:val_loss < 0.06", "a"),
    ("min(val_loss) < 0.06", "a"),
    ("max( val_loss ) >= 0.3", "b"),
    ("last:val_loss = 0.2", "a"),
    ("val_loss < best:val_loss", ""),
    ("val_loss > best:val_loss", "a"),
    ("train/acc >= 0.9", "a"),
    ("max (train/acc) >= 0.9", "a"),
    ("`a, (b)` < 3", "a"),
    ("`last:a, (b)` < 3", "a"),
    ("`best:a, (b):max` = 3", "a"),
    ("max(`a, (b)`) = 3", "a"),
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
]
"""Conditions, and the runs that meet them."""

WRONG = [
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
]
"""Text that is not a condition, a caret below the character, and what is wrong."""
