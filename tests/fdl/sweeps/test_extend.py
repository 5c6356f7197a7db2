"""Sweeps that grow: only what is missing runs, and what was measured stays."""

import json

import pytest

from fdl.base.errors import UsageError
from fdl.base.global_flags import Work
from fdl.run.sweeps.request import Request, parse
from fdl.run.sweeps.search import Search
from fdl.run.sweeps.store import Row, Sweep
from tests.fdl.sweeps.conftest import states
from tests.rows import each_row

SEARCH = ("--search", "tpe:1", "--goal", "val_loss:min", "--trials")


def logs(root):
    """Name of a run -> its log, with the time of the last write."""
    found = root.rglob("training.log")
    return {file.parent.name: (file.read_text(), file.stat().st_mtime_ns) for file in found}


def test_more_values_run_only_what_is_missing(scores, fdl):
    assert fdl("train", "--each", "lr=0.5,0.25", "--each", "seed=1").exit == 0
    before = logs(scores)
    done = fdl("sweep", "extend", "last", "--each", "lr=0.1", "--each", "seed=1,2")
    assert done.exit == 0, done.err
    names = [f"lr={lr},seed={seed}" for seed in (1, 2) for lr in ("0.5", "0.25", "0.1")]
    assert states(scores) == dict.fromkeys(names, "done")
    after = logs(scores)
    assert {name: after[name] for name in before} == before
    assert "lr 0.1 seed 2 model small" in after["lr=0.1,seed=2"][0]
    assert "6 of 6 runs done" in done.err


def test_the_same_sweep_with_more_values_grows_and_with_the_same_ones_begins_anew(scores, fdl):
    fdl("train", "--each", "seed=1,2")
    before = logs(scores)
    shown = fdl("--dry-run", "train", "--each", "seed=1..3")
    assert (shown.exit, shown.out) == (0, "seed=3\n  python score.py --seed 3\n")
    assert "has 2 of these runs already; `fdl --force …` begins a new one" in shown.err
    assert fdl("train", "--each", "seed=1..3").exit == 0
    assert states(scores) == {"seed=1": "done", "seed=2": "done", "seed=3": "done"}
    assert logs(scores).items() > before.items()
    for words in (("train", "--each", "seed=1..3"), ("--force", "train", "--each", "seed=1..4")):
        count = len(list(scores.rglob("sweep.json")))
        fdl(*words)
        assert len(list(scores.rglob("sweep.json"))) == count + 1


@pytest.mark.usefixtures("scores")
@pytest.mark.parametrize(
    "words",
    [
        ("train", "quick", "--each", "seed=1..3"),
        ("train", "--model", "big", "--each", "seed=1..3"),
        ("train", "--each", "seed=1..3", "--each", "lr=0.5"),
        ("train", "--each", "seed=2..4"),
    ],
)
def test_another_command_or_other_settings_are_another_sweep(fdl, words):
    fdl("train", "--each", "seed=1,2")
    shown = fdl("--dry-run", *words)
    assert "already" not in shown.err
    assert len(shown.out.splitlines()) == 6


@pytest.mark.slow
def test_a_changed_manifest_makes_another_sweep_and_is_named_when_one_is_extended(scores, fdl):
    fdl("train", "--each", "seed=1,2")
    (scores / "train/fdl.yml").write_text("entry: python score.py\noptions: {model: big}\n")
    assert "already" not in fdl("--dry-run", "train", "--each", "seed=1..3").err
    extended = fdl("sweep", "extend", "last", "--each", "seed=3")
    assert extended.exit == 0
    assert "has changed since it began" in extended.err
    assert "its first runs had: python score.py" in extended.err


@pytest.mark.slow
def test_a_failed_run_is_tried_again_only_if_asked(scores, fdl):
    fdl("train", "--each", "seed=13")
    (scores / "mended").touch()
    assert fdl("sweep", "extend", "last", "--each", "seed=1").exit == 1
    assert states(scores) == {"seed=13": "failed", "seed=1": "done"}
    before = logs(scores)["seed=1"]
    assert fdl("sweep", "extend", "last", "--each", "seed=2", "--retry", "failed").exit == 0
    assert states(scores) == {"seed=13": "done", "seed=1": "done", "seed=2": "done"}
    assert logs(scores)["seed=1"] == before


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--each", "lr=1"), "the sweep does not vary `lr`"),
        (("--trials", "3"), "`--trials` needs a sweep with `--search`"),
        (("--retry", "all"), "--retry"),
    ],
)
def test_what_a_sweep_cannot_take_is_refused_and_changes_nothing(scores, fdl, words, problem):
    fdl("train", "--each", "seed=1")
    (record,) = scores.rglob("sweep.json")
    before = record.read_bytes()
    refused = fdl("sweep", "extend", "last", *words)
    assert refused.exit == 2
    assert problem in refused.err
    assert record.read_bytes() == before


def test_a_value_that_the_program_refuses_changes_nothing(strict, fdl):
    fdl("train", "--each", "model=small")
    (record,) = strict.rglob("sweep.json")
    before = record.read_bytes()
    refused = fdl("sweep", "extend", "last", "--each", "model=huge")
    assert refused.exit == 2
    assert record.read_bytes() == before


@pytest.mark.slow
def test_pairs_grow_by_pairs(scores, fdl):
    fdl("--zip", "train", "--each", "lr=0.5,0.25", "--each", "seed=1,2")
    refused = fdl("sweep", "extend", "last", "--each", "lr=0.1")
    assert "lr has 3, seed has 2" in refused.err
    assert fdl("sweep", "extend", "last", "--each", "lr=0.1", "--each", "seed=3").exit == 0
    assert list(states(scores)) == ["lr=0.5,seed=1", "lr=0.25,seed=2", "lr=0.1,seed=3"]


@pytest.mark.slow
def test_a_sweep_of_the_manifest_grows_with_it(scores, fdl):
    fdl("sweep", "run", "rates")
    file = scores / "fdl.yml"
    file.write_text(file.read_text().replace("seed: 1..2", "seed: 1..3"))
    done = fdl("sweep", "run", "rates")
    assert "the sweep rates has 4 of these runs already" in done.err
    assert len(states(scores)) == 6
    assert not (scores / "runs/train/rates-2").exists()


@each_row(
    ("each", "value", "state"),
    [
        ("lr=3..4", "0.5", "running"),
        ("lr=1..2", "0.75", "stopped"),
        ("model=tiny,huge", "small", "waiting"),
        ("lr=1..3:log", "9", "failed"),
    ],
)
def test_a_trial_of_before_must_be_among_the_new_values(tmp_path, each, value, state):
    axis = parse(each)
    request = Request(["train"], [axis], Work(search="tpe:1", trials=2, goal="val_loss:min"))
    before = Sweep(tmp_path, {}, [Row("1", {axis.key: value}, state)])
    with pytest.raises(UsageError, match="the trial 1 is outside of the new values"):
        Search(request).rebuild(before)


@pytest.mark.slow
def test_a_search_goes_on_with_what_it_has_measured(scores, fdl):
    typed = ("train", "--each", "lr=0.1..1")
    fdl(*SEARCH, "3", *typed)
    (record,) = scores.rglob("sweep.json")
    before = json.loads(record.read_text())["runs"]
    assert fdl(*SEARCH, "4", *typed).exit == 0
    assert fdl("sweep", "extend", "last", "--trials", "5", "--each", "lr=0.01..2").exit == 0
    content = json.loads(record.read_text())
    assert content["runs"][:3] == before
    assert (len(content["runs"]), content["trials"]) == (5, 5)
    assert content["each"] == {"lr": "0.01..2"}
    refused = fdl("sweep", "extend", "last", "--trials", "6", "--each", "lr=3..4")
    assert refused.exit == 2
    assert "is outside of the new values" in refused.err
    assert json.loads(record.read_text()) == content
