"""Which runs `--each` makes, and their command lines."""

import json

import pytest

from fdl.run.sweeps.request import name_of


def behind(lines, count=2):
    return [line[-count:] for line in lines]


@pytest.mark.usefixtures("scores")
def test_the_runs_are_every_combination(command_lines):
    lines = command_lines("train", "--each", "lr=1e-3,3e-3", "--each", "seed=1..3")
    assert behind(lines, 4) == [
        ["--lr", lr, "--seed", seed] for lr in ("1e-3", "3e-3") for seed in ("1", "2", "3")
    ]


@pytest.mark.usefixtures("scores")
def test_zip_takes_the_values_side_by_side(fdl, command_lines):
    lines = command_lines("--zip", "train", "--each", "lr=0.1,0.2", "--each", "seed=1,2")
    assert behind(lines, 4) == [["--lr", "0.1", "--seed", "1"], ["--lr", "0.2", "--seed", "2"]]
    done = fdl("--zip", "train", "--each", "lr=0.1,0.2", "--each", "seed=1..3")
    assert done.exit == 1
    assert "`--zip` needs as many values of each key: lr has 2, seed has 3" in done.err


@pytest.mark.usefixtures("scores")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("1..3", ["1", "2", "3"]),
        ("10..2..-4", ["10", "6", "2"]),
        ("0.1..0.3..0.1", ["0.1", "0.2", "0.3"]),
        ("1e-3,0.30", ["1e-3", "0.30"]),
        ('"a,b",c', ["a,b", "c"]),
        ("true,false", ["true", "false"]),
        ("../data,./x", ["../data", "./x"]),
    ],
)
def test_values_keep_their_spelling(command_lines, values, expected):
    lines = command_lines("train", "--each", f"lr={values}")
    assert behind(lines) == [["--lr", value] for value in expected]


@pytest.mark.parametrize(
    ("each", "problem"),
    [
        ("lr", "`--each lr` is not KEY=VALUES"),
        ("=1", "`--each =1` is not KEY=VALUES"),
        ("lr=", "has no value, or an empty one"),
        ("lr=1,,2", "has no value, or an empty one"),
        ('lr="1', "has no value, or an empty one"),
        ("lr=1,2,1", "the value `1` is given twice"),
        ("lr=3..1", "the range 3..1 never ends with the step 1"),
        ("lr=1..3..0", "the range 1..3 never ends with the step 0"),
        ("lr=0.1..0.5", "a range of fractions needs a step, or a search"),
        ("lr=1..9:log", "`:log` is for a search"),
        ("lr=1..1000000000000", "more than 10000 values"),
        ("output.dir=a,b", "a sweep gives each run a folder of its own"),
        ("api-token=a,b", "the values are part of folder names, and this is a secret"),
        ("training.lrr=1,2", "`fdl train` has no setting `training.lrr`"),
    ],
)
def test_a_wrong_each_is_refused_before_anything_runs(scores, fdl, each, problem):
    done = fdl("train", "--each", each)
    assert done.exit == 1
    assert problem in done.err
    assert "hint:" in done.err
    assert not (scores / "runs").exists()


@pytest.mark.usefixtures("scores")
def test_a_key_cannot_be_there_twice(fdl):
    done = fdl("train", "--each", "lr=1,2", "--each", "lr=3")
    assert "`--each lr` is given twice" in done.err


@pytest.mark.usefixtures("scores")
def test_too_many_combinations_are_refused(fdl):
    done = fdl("train", "--each", "lr=1..1000", "--each", "seed=1..1000")
    assert "a sweep of 1000000 runs: the most is 10000" in done.err


@pytest.mark.usefixtures("strict")
def test_a_strict_program_refuses_a_key_that_it_does_not_have(fdl):
    done = fdl("train", "--each", "lrr=1,2")
    assert done.exit == 1
    assert "`--each lrr`: `fdl train` has no setting `lrr`" in done.err
    assert "did you mean `lr`?" in done.err


def test_a_value_that_the_program_refuses_ends_the_sweep_before_its_first_run(strict, fdl):
    done = fdl("train", "--each", "model=small,bog")
    assert done.exit == 1
    assert "invalid value `bog`" in done.err
    assert not (strict / "runs").exists()


def test_flags_are_given_or_left_out(project, command_lines):
    options = "{fast: {type: bool}, slow: {type: bool, negatives: [--no-slow]}}"
    project(
        {
            "fdl.yml": "commands: {train: {path: train}}",
            "train/fdl.yml": f"entry: sh t.sh\nschema: {{options: {options}}}",
        }
    )
    lines = command_lines("train", "--each", "fast=true,false", "--each", "slow=true,false")
    assert [line[2:] for line in lines] == [
        ["--fast", "--slow"], ["--fast", "--no-slow"], ["--slow"], ["--no-slow"],
    ]  # fmt: skip


def test_a_flag_that_the_manifest_sets_cannot_be_turned_off(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: {path: train}}",
            "train/fdl.yml": "entry: echo\ncommands: {q: {options: {fast: true}}}",
        }
    )
    done = fdl("train", "q", "--each", "options.fast=true,false")
    assert "the manifest sets `--fast`, and no flag turns it off" in done.err


@pytest.mark.usefixtures("scores")
def test_dotted_settings_become_their_flags(command_lines, project):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: python a.py\n"})
    lines = command_lines("train", "--each", "training.batch_size=8", "--each", "options.a_b=x")
    assert lines[0][2:] == ["--batch-size", "8", "--a-b", "x"]


def test_a_hydra_program_gets_assignments(project, command_lines):
    project(
        {
            "fdl.yml": "commands: {train: {path: train}}",
            "train/fdl.yml": "entry: echo\nschema: {style: hydra, options: {lr: {type: float}}}",
        }
    )
    lines = command_lines("train", "--each", "lr=1,2", "--each", "model.depth=3")
    assert behind(lines) == [["lr=1", "model.depth=3"], ["lr=2", "model.depth=3"]]


def test_arguments_of_a_run_command_stand_behind_its_own(project, command_lines):
    project({"fdl.yml": "commands: {count: {run: python count.py}}"})
    lines = command_lines("count", "--each", "n=1,2", "--", "--all")
    assert [line[-1] for line in lines] == [f"python count.py --all --n {n}" for n in "12"]


@pytest.mark.usefixtures("scores")
def test_each_may_stand_before_the_command(command_lines):
    assert command_lines("--each", "lr=1,2", "train") == command_lines("train", "--each", "lr=1,2")


def test_a_program_keeps_an_each_of_its_own(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: {path: train}}",
            "train/fdl.yml": "entry: echo\nschema: {options: {each: {type: string}}}",
        }
    )
    assert fdl("train", "--each", "lr=1,2").out == "--each lr=1,2\n"
    done = fdl("--dry-run", "--each", "x=1,2", "train", "--each", "y")
    assert done.out.splitlines()[1::2] == ["  echo --each y --x 1", "  echo --each y --x 2"]


@pytest.mark.usefixtures("scores")
def test_words_after_the_dashes_belong_to_the_program(command_lines):
    (line,) = command_lines("train", "--each", "lr=1", "--", "--each", "lr=2")
    assert line[2:] == ["--lr", "1", "--each", "lr=2"]


@pytest.mark.usefixtures("scores")
def test_a_run_of_a_sweep_is_the_command_line_that_a_user_would_type(fdl):
    swept = json.loads(fdl("--dry-run", "--json", "train", "quick", "--each", "lr=1,2").out)
    typed = json.loads(fdl("--dry-run", "--json", "train", "quick", "--lr", "2").out)
    swept["jobs"][1].pop("schema_version")
    typed.pop("schema_version")
    assert swept["jobs"][1] == typed


def test_only_the_folder_of_the_run_is_another_one(project, fdl):
    root = project(
        {
            "fdl.yml": "commands: {train: {path: train}}",
            "train/fdl.yml": "entry: python t.py\noutput: {dir: out}\ntraining: {lr: 0.1}",
        }
    )
    (swept,) = json.loads(fdl("--dry-run", "--json", "train", "--each", "lr=1").out)["jobs"]
    folder = swept["argv"][-1]
    assert folder.startswith(f"{root}/out/")
    assert folder.endswith("/lr=1")
    typed = fdl("--dry-run", "--json", "train", "--lr", "1", "--output", folder)
    assert json.loads(typed.out) == swept


def test_names_are_safe_and_differ():
    odd = [name_of({"data": value}) for value in ("a/b", "a_b", "x" * 300, "x" * 301)]
    assert len(set(odd)) == 4
    assert all("/" not in name and len(name) < 110 for name in odd)
    assert odd[1] == "data=a_b"
    assert name_of({"lr": "0.123456789", "n": "2"}, 7) == "7,lr=0.1235,n=2"
