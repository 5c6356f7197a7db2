"""``output.keep``: the rule in the manifest by which ``fdl runs prune`` chooses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fdl.app import app
from tests.fdl.run_directory.trails import trail

NAMES = [f"2026-01-0{day}T10-00-00" for day in range(1, 7)]
LOSSES = [0.5, 0.1, 0.4, 0.2, 0.3]


@pytest.fixture
def keeping(project):
    """Five measured runs with checkpoints and one without a metric, under a rule."""

    def make(rule, folder="out", losses=LOSSES):
        top = project(
            {"fdl.yml": f"entry: python main.py\noutput: {{dir: {folder}, keep: {rule}}}"}
        )
        place = top / folder
        for number, name in enumerate(NAMES):
            metrics = {"val_loss": [losses[number]]} if number < len(losses) else {}
            trail(place / name, metrics=metrics, config={"seed": 1 + number // 3})
            for kind in ("last", "best"):
                (place / name / f"{kind}.fdl").write_bytes(b"x" * 500)
        return place

    return make


@pytest.fixture
def prune(tmp_path, monkeypatch):
    """Type ``fdl runs prune --yes`` in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda: CliRunner().invoke(app, ["runs", "prune", "--yes"])


def days(folder):
    return [int(path.name[9]) for path in sorted(folder.iterdir())]


def saved(folder):
    """The days of the runs that have a checkpoint."""
    return [int(path.parent.name[9]) for path in sorted(folder.glob("*/best.fdl"))]


@pytest.mark.parametrize(
    ("rule", "left", "with_checkpoints"),
    [
        ("{best: 2, by: val_loss}", [2, 4, 6], [2, 4, 6]),
        ("{best: 2, by: 'val_loss:max'}", [1, 3, 6], [1, 3, 6]),
        ("{best: 1, by: val_loss, newest: 3}", [2, 4, 5, 6], [2, 4, 5, 6]),
        ("{best: 1, by: val_loss, group: seed}", [2, 4, 6], [2, 4, 6]),
        ("{newest: 2}", [5, 6], [5, 6]),
        ("{best: 3, by: val_loss, checkpoints: 1}", [2, 4, 5, 6], [2, 6]),
        ("{checkpoints: 2, by: val_loss}", [1, 2, 3, 4, 5, 6], [2, 4, 6]),
        ("{checkpoints: 2}", [1, 2, 3, 4, 5, 6], [5, 6]),
        ("{newest: 3, checkpoints: 1}", [4, 5, 6], [6]),
        ("{checkpoints: 0}", [1, 2, 3, 4, 5, 6], []),
    ],
)
def test_prune_without_a_condition_follows_the_manifest(keeping, fdl, rule, left, with_checkpoints):
    folder = keeping(rule)
    assert fdl("runs", "prune", "--yes").exit == 0
    assert (days(folder), saved(folder)) == (left, with_checkpoints)


def test_nothing_goes_before_somebody_agrees(keeping, fdl):
    folder = keeping("{best: 3, by: val_loss, checkpoints: 1}")
    assert fdl("runs", "list").exit == 0
    asked = fdl("runs", "prune")
    assert (asked.exit, asked.err) == (1, "nothing was removed; --yes removes without asking\n")
    assert fdl("runs", "prune", "--dry-run").out == asked.out
    assert (days(folder), saved(folder)) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    assert fdl("runs", "prune", "--yes").exit == 0
    again = fdl("runs", "prune", "--yes")
    assert (again.exit, again.err) == (0, "no run and no checkpoint to remove\n")


def test_the_list_names_the_rule(keeping, fdl):
    keeping("{best: 4, by: val_loss, checkpoints: 3}")
    lines = [" ".join(line.split()) for line in fdl("runs", "prune").out.splitlines()]
    rule = "fdl.yml:2:33"
    assert lines[0].startswith(f"out/{NAMES[0]} complete ")
    assert lines[0].endswith(f"by {rule}")
    assert lines[1].startswith("1 run ")
    assert lines[2:] == [
        f"out/{NAMES[2]} last.fdl, best.fdl 1.0 kB",
        "2 checkpoints 1.0 kB",
    ]


def test_conditions_on_the_command_line_replace_the_rule(keeping, fdl):
    folder = keeping("{best: 0, by: val_loss}")
    assert fdl("runs", "prune", "--keep", "4", "--yes").exit == 0
    assert days(folder) == [3, 4, 5, 6]


def test_only_what_is_named_goes(keeping, fdl):
    folder = keeping("{best: 1, by: val_loss}")
    assert fdl("runs", "prune", f"out/{NAMES[0]}", "--yes").exit == 0
    assert days(folder) == [2, 3, 4, 5, 6]


def test_what_somebody_needs_stays(keeping, fdl):
    folder = keeping("{newest: 0, checkpoints: 0}", losses=())
    for name in NAMES[:-1]:
        record = json.loads((folder / name / "run.json").read_text())
        (folder / name / "run.json").write_text(json.dumps({**record, "state": "running"}))
    (folder / NAMES[5] / "run.json").write_text("{")
    assert fdl("runs", "prune", "--yes").exit == 0
    assert (days(folder), saved(folder)) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])


def test_a_checkpoint_to_resume_from_stays(keeping, fdl):
    folder = keeping("{checkpoints: 0}")
    record = json.loads((folder / NAMES[0] / "run.json").read_text())
    (folder / NAMES[0] / "run.json").write_text(json.dumps({**record, "state": "interrupted"}))
    assert fdl("runs", "prune", "--yes").exit == 0
    assert sorted(path.parent.name for path in folder.glob("*/*.fdl")) == [NAMES[0]]
    assert (folder / NAMES[0] / "last.fdl").exists()


def test_a_preset_has_a_rule_of_its_own(project, fdl):
    manifest = """
        entry: python main.py
        output: {dir: long, keep: {best: 1, by: loss}}
        commands:
          quick: {output: {dir: long/quick, keep: {best: 2}}}
          kept: {output: {dir: long/kept, keep: {best: null, by: null}}}
    """
    top = project({"fdl.yml": manifest})
    for folder in ("long", "long/quick", "long/kept"):
        for name, loss in zip(NAMES[:3], (0.3, 0.2, 0.1), strict=True):
            trail(top / folder / name, metrics={"loss": [loss]})
    assert fdl("runs", "prune", "--yes").exit == 0
    left = {folder: len(list((top / folder).glob("2026*"))) for folder in ("long", "long/quick")}
    assert left == {"long": 1, "long/quick": 2}


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("{best: 2}", "fdl.yml:2:33: `output.keep.best` needs `by`"),
        ("{newest: 2, by: loss}", "fdl.yml:2:42: `output.keep.by` needs `best` or `checkpoints`"),
        ("{checkpoints: 2, group: lr}", "fdl.yml:2:50: `output.keep.group` needs `by`"),
        ("{best: 2, by: 'x:max', every: 3}", "unknown key `output.keep.every`"),
        ("{best: -1, by: loss}", "fdl.yml:2:33: `output.keep.best` must be at least 0, not -1"),
        ("{best: few, by: loss}", 'must be a whole number, not the text "few"'),
        ("5", "fdl.yml:2:26: `output.keep` must be a mapping, not 5"),
        ("{best: 1, by: ':max'}", "fdl.yml:2:40: no metric is named"),
        ("{best: 1, by: val_los}", "fdl.yml:2:33: no run measured `val_los`"),
        ("{best: 1, by: val_loss, group: sed}", "did you mean `seed`?"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(keeping, prune, rule, problem):
    folder = keeping(rule)
    refused = prune()
    assert refused.exit_code == 1
    assert problem in refused.stderr
    assert days(folder) == [1, 2, 3, 4, 5, 6]


def test_nothing_goes_while_a_manifest_of_the_project_is_broken(project, prune):
    top = project(
        {
            "fdl.yml": "output: {dir: out, keep: {newest: 0}}\ncommands: {train: {path: train}}",
            "train/fdl.yml": "output: {dir: out/train, keep: 5}",
        }
    )
    trail(top / "out/train" / NAMES[0])
    refused = prune()
    assert refused.exit_code == 1
    assert "train/fdl.yml:1:32: `output.keep` must be a mapping" in refused.stderr
    assert (top / "out/train" / NAMES[0]).is_dir()


def test_two_rules_for_one_folder_are_refused(project, fdl):
    manifest = """
        entry: python main.py
        output: {dir: out, keep: {newest: 1}}
        commands:
          quick: {output: {keep: {newest: 2}}}
    """
    project({"fdl.yml": manifest})
    session = fdl("runs", "prune", "--yes")
    assert session.exit == 1
    assert (
        "fdl.yml:4:35: `output.keep` contradicts fdl.yml:2:35: both are about the runs in out"
        in session.err
    )


def test_a_rule_of_a_folder_that_a_variable_names_needs_its_value(project, fdl):
    project({"fdl.yml": 'output: {dir: "${NO_SUCH_FOLDER}", keep: {newest: 1}}'})
    session = fdl("runs", "prune", "--yes")
    assert session.exit == 1
    assert "fdl.yml:1:15" in session.err
    assert "NO_SUCH_FOLDER" in session.err


def test_a_rule_without_a_folder_is_refused(project, fdl):
    project({"fdl.yml": "output: {keep: {newest: 1}}"})
    session = fdl("runs", "prune", "--yes")
    assert "fdl.yml:1:25: `output.keep` does not say of which folder" in session.err


def test_a_rule_is_no_argument_of_the_program(project, fdl):
    manifest = """
        entry: echo
        output: {dir: out, keep: {newest: 1}}
        commands: {a: {training: {lr: 1}}}
    """
    project({"fdl.yml": manifest})
    assert fdl("a").out.split() == ["--lr", "1", "--output", "out"]
    assert "newest: 1" in fdl("config", "show").out


def test_without_a_rule_prune_says_what_to_write(project, fdl):
    project({"fdl.yml": "commands: {a: {run: 'true'}}"})
    session = fdl("runs", "prune")
    assert session.exit == 2
    assert "write `output.keep` into the manifest" in session.err
