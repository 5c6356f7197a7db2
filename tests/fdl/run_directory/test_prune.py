"""``fdl runs prune``: the best runs stay, and only checkpoints go that nobody resumes from."""

from __future__ import annotations

import pytest

from tests.fdl.run_directory.trails import trail

NAMES = [f"2026-01-0{day}T10-00-00" for day in range(1, 7)]
LOSSES = [0.5, 0.1, 0.4, 0.2, 0.3]


@pytest.fixture
def runs(project):
    """Five runs in two groups of seeds, and one without a metric."""
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    for name, loss, seed in zip(NAMES, LOSSES, (1, 1, 1, 2, 2), strict=False):
        trail(folder / name, metrics={"val_loss": [loss]}, config={"seed": seed})
    trail(folder / NAMES[5], metrics={}, config={})
    return folder


def left(folder):
    """The days of the runs that are there."""
    return [int(path.name[9]) for path in sorted(folder.iterdir())]


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("*.fdl"))


@pytest.mark.parametrize(
    ("words", "days"),
    [
        (["--keep-best", "2", "--by", "val_loss"], [2, 4, 6]),
        (["--keep-best", "2", "--by", "val_loss:max"], [1, 3, 6]),
        (["--keep-best", "1", "--by", "val_loss", "--group", "seed"], [2, 4, 6]),
        (["--keep-best", "1", "--by", "val_loss", "--keep", "3"], [2, 4, 5, 6]),
        (["--keep-best", "1", "--by", "val_loss", "--where", "seed = 1"], [2, 4, 5, 6]),
        (["--keep-best", "1", "--by", "val_loss", "--older-than", "99999w"], [1, 2, 3, 4, 5, 6]),
        (["--keep-best", "0", "--by", "val_loss"], [6]),
        (["--where", "val_loss > 0.25"], [2, 4, 6]),
    ],
)
def test_the_best_runs_stay(runs, fdl, words, days):
    assert fdl("runs", "prune", *words, "--dry-run").exit == 0
    assert left(runs) == [1, 2, 3, 4, 5, 6]
    session = fdl("runs", "prune", *words, "--yes")
    assert session.exit == 0
    assert left(runs) == days


def test_without_anybody_to_ask_nothing_goes(runs, fdl):
    session = fdl("runs", "prune", "--keep-best", "4", "--by", "val_loss")
    assert session.exit == 1
    assert [line.split()[:2] for line in session.out.splitlines()] == [
        [f"out/{NAMES[0]}", "complete"],
        ["1", "run"],
    ]
    assert "nothing was removed" in session.err
    assert len(left(runs)) == 6


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "no condition says which runs or checkpoints to remove"),
        (["--keep-best", "2"], "--keep-best and --by belong together"),
        (["--by", "val_loss"], "--keep-best and --by belong together"),
        (["--group", "seed"], "--keep-best and --by belong together"),
        (["--keep-best", "-1", "--by", "val_loss"], "--keep-best takes 0 or more, not -1"),
        (["--keep-best", "1", "--by", "val_los"], "did you mean `val_loss`?"),
        (["--keep-best", "1", "--by", "val_loss", "--group", "sed"], "did you mean `seed`?"),
        (["--checkpoints", "lost"], "`lost` is not a kind of checkpoint"),
        (["--checkpoints", ""], "--checkpoints names no kind"),
        (["--where", "val_loss <"], "`<` needs a value"),
    ],
)
def test_what_makes_no_sense_is_refused(runs, fdl, words, problem):
    session = fdl("runs", "prune", "--yes", *words)
    assert session.exit in (1, 2)
    assert problem in session.err
    assert len(left(runs)) == 6


def fill(folder, *kinds):
    for kind in kinds:
        (folder / f"{kind}.fdl").write_bytes(b"x" * 1000)


def test_checkpoints_go_and_the_runs_stay(runs, fdl):
    fill(runs / NAMES[0], "last", "best", "model", "mine")
    fill(runs / NAMES[1], "best")
    session = fdl("runs", "prune", "--checkpoints", "best")
    assert [line.split() for line in session.out.splitlines()] == [
        [f"out/{NAMES[0]}", "last.fdl,", "model.fdl", "2.0", "kB"],
        ["2", "checkpoints", "2.0", "kB"],
    ]
    assert session.exit == 1
    assert len(checkpoints(runs / NAMES[0])) == 4
    session = fdl("runs", "prune", "--checkpoints", "best", "--yes")
    assert session.err == "removed 2 checkpoints, 2.0 kB freed\n"
    assert checkpoints(runs / NAMES[0]) == ["best.fdl", "mine.fdl"]
    assert len(left(runs)) == 6
    assert "no checkpoint to remove" in fdl("runs", "prune", "--checkpoints", "best", "--yes").err


def test_the_best_runs_keep_their_checkpoints(runs, fdl):
    for name in NAMES:
        fill(runs / name, "best", "model")
    words = ["--keep-best", "2", "--by", "val_loss", "--checkpoints", "none", "--yes"]
    assert fdl("runs", "prune", *words).exit == 0
    kept = [name for name in NAMES if checkpoints(runs / name)]
    assert kept == [NAMES[1], NAMES[3], NAMES[5]]


def test_runs_of_one_name_in_two_sweeps_are_told_apart(project, fdl):
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    stopped = trail(folder / "first" / NAMES[0], "interrupted")
    # A sweep continues a run in its own folder.
    again = folder / "second" / NAMES[0]
    trail(again, resumed_from=str(again / "last.fdl"))
    fill(stopped, "last")
    fill(again, "last")
    assert "resumed by" not in fdl("runs", "rm", str(stopped), "--dry-run").out
    assert fdl("runs", "prune", "--checkpoints", "none", "--yes").exit == 0
    assert (checkpoints(stopped), checkpoints(again)) == (["last.fdl"], [])


def test_a_checkpoint_to_resume_from_stays(project, fdl):
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    first, second, third, fourth, fifth, sixth = (folder / name for name in NAMES)
    source = "out/{}/last.fdl"
    trail(first, "interrupted")  # nobody continues it
    trail(second, "failed")  # the third one continued it and is complete
    trail(third, resumed_from=source.format(second.name))
    trail(fourth, "interrupted")  # the fifth one has not yet saved anything
    trail(fifth, "running", resumed_from=source.format(fourth.name))
    trail(sixth, "running")
    for run in (first, second, third, fourth, sixth):
        fill(run, "last", "model")
    session = fdl("runs", "prune", "--checkpoints", "model", "--yes")
    assert session.exit == 0
    assert session.err == "removed 2 checkpoints, 2.0 kB freed\n"
    assert [bool(checkpoints(run)) for run in (first, second, third)] == [True] * 3
    assert [(run / "last.fdl").exists() for run in (first, second, third, fourth, sixth)] == [
        True, False, False, True, True,
    ]  # fmt: skip
    session = fdl("runs", "prune", "--checkpoints", "none", "--dry-run")
    assert f"out/{first.name}  model.fdl  1.0 kB  last.fdl stays: to resume from" in session.out
    # The running run starts again from the fourth one, if its launcher restarts it.
    assert fdl("runs", "prune", "--where", "age > 0", "--yes").exit == 0
    assert sorted(path.name for path in folder.iterdir()) == [NAMES[3], NAMES[4], NAMES[5]]
