"""`--search`: Optuna picks the values, and the run directories are its memory."""

import json

import pytest

from tests.fdl.sweeps.conftest import states

SEARCH = ("--search", "tpe:1", "--goal", "val_loss:min", "--trials")


def varied(folder):
    (file,) = folder.rglob("sweep.json")
    return [row["varied"] for row in json.loads(file.read_text())["runs"]]


def test_a_search_tries_values_of_its_ranges_and_lists(scores, fdl):
    done = fdl(
        *SEARCH, "8", "train", "--each", "lr=1e-3..1:log", "--each", "seed=1..4",
        "--each", "model=small,big",
    )  # fmt: skip
    assert done.exit == 0, done.err
    points = varied(scores)
    assert len(points) == 8
    assert all(1e-3 <= float(point["lr"]) <= 1 for point in points)
    assert {point["seed"] for point in points} <= set("1234")
    assert {point["model"] for point in points} <= {"small", "big"}
    best = min(points, key=lambda point: (float(point["lr"]) - 0.25) ** 2)
    assert f"best val_loss: {(float(best['lr']) - 0.25) ** 2}" in done.err


@pytest.mark.parametrize("search", [(), ("--search", "random:1", "--trials", "2")])
@pytest.mark.parametrize("goal", ["val/loss", "val loss, %"])
def test_a_goal_is_any_name_of_a_metric(scores, fdl, goal, search):
    program = scores / "train/score.py"
    program.write_text(program.read_text().replace('"val_loss"', repr(goal)))
    done = fdl(*search, "--goal", f"{goal}:min", "train", "--each", "lr=0.25,0.75")
    assert done.exit == 0, done.err
    assert f"best {goal}: 0." in done.err


def test_the_goal_is_the_last_value_that_was_measured(scores, fdl):
    """A program may measure its goal more seldom than its loss."""
    program = scores / "train/score.py"
    program.write_text(
        program.read_text() + "\nwith open(file + 'l', 'w') as stream:\n"
        "    for step in range(1, 4):\n"
        "        row = {'step': step, 'loss': 1.0} | ({'acc': args.lr} if step == 2 else {})\n"
        "        print(json.dumps(row), file=stream)\n"
        "os.unlink(file)\n"
    )
    done = fdl("--search", "random:1", "--goal", "acc:max", "--trials", "2", "train",
               "--each", "lr=0.1..1")  # fmt: skip
    assert done.exit == 0, done.err
    best = max(float(point["lr"]) for point in varied(scores))
    assert f"best acc: {best} of" in done.err
    assert f"acc={best:.4f}" in fdl("sweep", "show").out


@pytest.mark.slow
def test_the_same_seed_gives_the_same_values(scores, fdl):
    found = []
    for seed in ("1", "1", "2"):
        search = ("--search", f"tpe:{seed}", "--goal", "val_loss:min", "--trials", "3")
        assert fdl(*search, "train", "--each", "lr=0.1..1").exit == 0
        file = max(scores.rglob("sweep.json"), key=lambda one: one.stat().st_mtime_ns)
        found.append([row["varied"]["lr"] for row in json.loads(file.read_text())["runs"]])
        file.unlink()
    assert len(set(found[0])) == 3
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.slow
def test_an_interrupted_search_goes_on_with_what_it_has_measured(scores, fdl):
    fdl(*SEARCH, "12", "train", "--each", "lr=0.1..1")
    (file,) = scores.rglob("sweep.json")
    content = json.loads(file.read_text())
    content["runs"] = content["runs"][:11]
    content["runs"][10].update(state="running", code=None)
    file.write_text(json.dumps(content))
    before = [row["varied"] for row in content["runs"]]
    assert fdl("sweep", "resume").exit == 0
    assert varied(scores)[:11] == before
    assert set(states(scores).values()) == {"done"}
    assert len(states(scores)) == 12


def test_failed_trials_are_trials(scores, fdl):
    done = fdl(*SEARCH, "3", "train", "--each", "seed=13..13", "--each", "lr=0.1..1")
    assert done.exit == 3
    assert list(states(scores).values()) == ["failed"] * 3
    assert "3 of 3 runs failed" in done.err


@pytest.mark.usefixtures("scores")
def test_a_run_that_did_not_measure_the_goal_counts_as_failed_for_the_search(fdl):
    done = fdl(
        "--search", "random", "--goal", "accuracy", "--trials", "2", "train", "--each", "lr=0..1"
    )
    assert done.exit == 0, done.err
    assert "best" not in done.err


@pytest.mark.slow
def test_several_trials_run_at_once(scores, fdl):
    done = fdl("--jobs", "3", *SEARCH, "6", "train", "--each", "lr=0.1..1")
    assert done.exit == 0, done.err
    assert len(states(scores)) == 6


@pytest.mark.usefixtures("scores")
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--search", "tpe"], "`--search` needs `--trials` and `--goal`"),
        (["--trials", "3"], "`--trials` needs `--search`"),
        ([*SEARCH, "3", "--zip"], "`--zip` and `--search` exclude each other"),
        (["--search", "grid", "--trials", "3", "--goal", "x"], "the samplers are tpe and random"),
        (["--search", "tpe:x", "--trials", "3", "--goal", "x"], "the samplers are tpe and random"),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(fdl, flags, problem):
    done = fdl(*flags, "train", "--each", "lr=0..1")
    assert done.exit == 1
    assert problem in done.err


@pytest.mark.usefixtures("scores")
def test_a_range_that_optuna_refuses_is_named(fdl):
    done = fdl(*SEARCH, "3", "train", "--each", "lr=0..1:log")
    assert "`--each lr=0..1:log`" in done.err
    assert done.exit == 1


def test_without_optuna_the_error_says_how_to_install_it(scores, fdl):
    (scores / "hidden").mkdir()
    (scores / "hidden/optuna.py").write_text("raise ImportError")
    done = fdl(
        *SEARCH, "3", "train", "--each", "lr=0..1", env={"PYTHONPATH": str(scores / "hidden")}
    )
    assert done.exit == 1
    assert "`--search` needs Optuna, which is not installed" in done.err
    assert "pip install 'flodl[search]'" in done.err


def test_a_dry_run_of_the_continuation_counts_the_trials_that_are_left(scores, fdl):
    assert fdl(*SEARCH, "1", "train", "--each", "lr=0.1..1").exit == 0
    (record,) = scores.rglob("sweep.json")
    # An interrupted search has fewer runs than trials.
    record.write_text(json.dumps(json.loads(record.read_text()) | {"trials": 3}))
    done = fdl("--dry-run", "sweep", "resume")
    assert (done.exit, done.out, done.err) == (0, "2 more trials by tpe:1\n", "")
    assert len(json.loads(record.read_text())["runs"]) == 1


def test_a_dry_run_shows_the_ends_of_the_ranges(scores, fdl):
    done = fdl("-n", *SEARCH, "9", "train", "--each", "lr=0.1..1")
    assert done.exit == 0, done.err
    assert "9 trials by tpe:1" in done.out
    assert "python score.py --lr 0.1" in done.out
    assert "python score.py --lr 1" in done.out
    assert not (scores / "runs").exists()
