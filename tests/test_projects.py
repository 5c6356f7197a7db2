"""A whole project, used from the terminal the way its owner would."""

import json

import pytest
import yaml


@pytest.fixture
def vision(fdl, fixture_project):
    """``fdl …`` typed in the vision project, or in a folder of it."""
    root = fixture_project("vision")

    def run(*words, folder=".", **options):
        return fdl(*words, cwd=root / folder, **options)

    return run


def test_the_project_page_lists_what_there_is(vision):
    page = vision()
    assert page.exit == 0
    rows = [line.split(maxsplit=1) for line in page.out.splitlines()]
    assert ["train", "Train the classifier"] in rows
    assert ["tools", "What surrounds the training"] in rows
    assert ["count", "sh count.sh"] in rows


def test_a_preset_reaches_the_program_and_every_value_knows_its_place(vision):
    done = vision("train", "quick", "--seed", "7", env={"VISION_WIDTH": "128"})
    assert done.exit == 0, done.err
    said = json.loads(done.out)
    assert (said["cwd"], said["root"]) == ("train", "vision")
    assert {name: (one["value"], one["origin"]) for name, one in said["args"].items()} == {
        "epochs": (1, "train/fdl.yml:10:24"),
        "seed": (7, "command line"),
        "batches": (100, "train/fdl.yml:11:39"),
        "model": ("linear", "train/fdl.yml:11:22"),
        "verbose_loss": (True, "train/fdl.yml:11:58"),
        "output": ("runs", "train/fdl.yml:6:8"),
        "width": (128, "env VISION_WIDTH"),
    }


def test_the_plan_is_what_runs(vision):
    plan = json.loads(vision("--dry-run", "--json", "train", "quick").out)
    assert plan["argv"] == [
        *("python", "main.py", "--epochs", "1", "--seed", "42", "--output", "runs"),
        *("--batches", "100", "--model", "linear", "--verbose-loss"),
    ]
    assert [flag["field"] for flag in plan["flags"]] == [
        *("training.epochs", "training.seed", "output.dir"),
        *("options.batches", "options.model", "options.verbose_loss"),
    ]


def test_three_levels_down_and_inside_a_folder_mean_the_same(vision):
    assert vision("tools", "report", "last", "--all").out == "report --limit 1 --all\n"
    assert vision("report", "last", "--all", folder="tools").out == "report --limit 1 --all\n"
    assert vision("last", "--all", folder="tools/report").out == "report --limit 1 --all\n"


def test_a_value_that_the_program_does_not_take_is_refused_before_it_starts(vision):
    done = vision("train", "quick", "--model", "vit")
    assert done.exit == 1
    assert "invalid value `vit` for `--model` -- allowed: resnet, linear" in done.err
    assert "Usage: fdl train quick [OPTIONS]" in done.err


def test_words_arrive_one_by_one_and_the_exit_code_comes_back(vision):
    done = vision("count", "--", "two words", "$HOME", "it's", "")
    assert done.exit == 3
    assert done.out == "4 arguments\n<two words>\n<$HOME>\n<it's>\n<>\n"
    assert vision("greet", "--", "--", "world").out == "hello\n--\nworld\n"


def test_config_show_prints_the_manifest_it_read(vision):
    shown = vision("config", "show", folder="train")
    assert shown.exit == 0
    assert yaml.safe_load(shown.out)["commands"]["quick"]["options"]["model"] == "linear"
    (line,) = [line for line in shown.out.splitlines() if "seed:" in line]
    assert line.split() == ["seed:", "42", "#", "fdl.yml:4"]
