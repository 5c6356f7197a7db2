"""``fdl.local.yml``: an overlay that applies by itself where it exists, in every folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Fdl, Project

FILES = {
    "fdl.yml": "commands: {train: }\n",
    "train/fdl.yml": """entry: echo
training: {lr: 1, epochs: 9, seed: 3}
commands: {quick: {training: {epochs: 3}}}
""",
    "train/fdl.ci.yml": "training: {lr: 2, epochs: 1}\n",
}
LOCAL = "training:\n  lr: 5\ncommands:\n  mine: {training: {epochs: 2}}\n"


@pytest.fixture
def root(project: Project) -> Path:
    return project(FILES)


def test_it_applies_by_itself_over_the_manifest_and_over_named_overlays(
    root: Path, fdl: Fdl
) -> None:
    assert fdl("train").out == "--epochs 9 --lr 1 --seed 3\n"
    (root / "train/fdl.local.yml").write_text(LOCAL)
    for words, out in (
        (["train"], "--epochs 9 --lr 5 --seed 3\n"),
        (["train", "mine"], "--epochs 2 --lr 5 --seed 3\n"),
        (["--env", "ci", "train"], "--epochs 1 --lr 5 --seed 3\n"),
        # Its place can be named, so that another overlay wins over it.
        (["--env", "local,ci", "train"], "--epochs 1 --lr 2 --seed 3\n"),
        (["--env", "ci,local", "train"], "--epochs 1 --lr 5 --seed 3\n"),
        (["--env", "local", "train"], "--epochs 9 --lr 5 --seed 3\n"),
    ):
        done = fdl("-q", *words)
        assert (done.out, done.exit) == (out, 0), (words, done.err)
    # A changed or removed file makes the cache stale.
    (root / "train/fdl.local.yml").write_text(LOCAL.replace("lr: 5", "lr: 77"))
    assert fdl("train").out == "--epochs 9 --lr 77 --seed 3\n"
    (root / "train/fdl.local.yml").unlink()
    assert fdl("train").out == "--epochs 9 --lr 1 --seed 3\n"


def test_its_values_have_their_place_and_its_presets_complete(root: Path, fdl: Fdl) -> None:
    (root / "train/fdl.local.yml").write_text(LOCAL)
    shown = fdl("config", "show", cwd="train").out
    assert "lr: 5 # fdl.local.yml:2 (overrides fdl.yml:2)" in " ".join(shown.split()), shown
    assert "train/fdl.local.yml:2:7" in fdl("-n", "train").out
    assert "train/fdl.local.yml:2:7" in fdl("why", "training.lr", "train").out
    assert "mine" in fdl("train", "--help").out
    presets = fdl("__complete", "bash", "--", "train", "").out.splitlines()
    assert [one.strip() for one in presets if one.strip() in ("mine", "quick")] == ["quick", "mine"]
    # It is no environment to choose.
    assert "local" not in fdl("__complete", "bash", "--", "--env", "").out
    assert "local" not in fdl("--help").out
    files = fdl("__complete", "bash", "--", "config", "set", "a", "1", "--where", "train/").out
    assert "train/fdl.local.yml" in files


@pytest.mark.parametrize(
    ("words", "file", "line"),
    [
        ("training.lr 8", "train/fdl.local.yml", "  lr: 8"),
        # A new value is for everybody unless another file is named.
        ("training.batch_size 8", "train/fdl.yml", "batch_size: 8"),
        ("training.batch_size 8 --where local", "train/fdl.local.yml", "  batch_size: 8"),
    ],
)
def test_config_set_changes_it_where_it_wins_or_is_named(
    root: Path, fdl: Fdl, words: str, file: str, line: str
) -> None:
    (root / "train/fdl.local.yml").write_text(LOCAL)
    done = fdl("config", "set", *words.split(), cwd="train")
    assert done.exit == 0, done.err
    assert line in (root / file).read_text()


def test_a_command_of_its_name_is_the_command(project: Project, fdl: Fdl) -> None:
    files = {"fdl.yml": "commands: {local: {run: echo here}}\n", "fdl.local.yml": ""}
    project(files)
    assert fdl("local").out == "here\n"


def test_a_mistake_in_it_has_its_line(root: Path, fdl: Fdl) -> None:
    (root / "train/fdl.local.yml").write_text("training:\n  lr: 5\ntrainig: 1\n")
    done = fdl("train")
    assert done.exit == 1
    assert "train/fdl.local.yml:3:1: unknown key `trainig`" in done.err
