"""``fdl runs show`` of a run that has stopped: the whole command that continues it."""

from __future__ import annotations

import pytest

from tests.fdl.run_directory.trails import trail

NAME = "2026-01-31T10-00-00"
FILES = {
    "fdl.yml": "commands: {train: }\n",
    "train/fdl.yml": """
        entry: python main.py
        training: {epochs: 10, lr: 0.003}
        output: {dir: runs/train}
        commands:
          quick: {training: {epochs: 3}, output: {dir: runs/quick}}
        """,
    "train/fdl.ci.yml": "training: {epochs: 1}\n",
}


@pytest.fixture
def stopped(project):
    """Write a run that was interrupted: ``stopped("fdl train")``."""
    root = project(FILES)

    def write(words, folder="runs/train", **record):
        launch = {"typed": words.split(), "cwd": str(root / "train"), "project_root": str(root)}
        given = {**launch, **record}
        run = trail(root / folder / NAME, "interrupted", config={"resume": None}, **given)
        (run / "last.fdl").write_bytes(b"")
        return root

    return write


def shown(fdl, cwd="."):
    done = fdl("runs", "show", f"{'..' if cwd == 'train' else cwd}/runs/train", cwd=cwd)
    assert (done.exit, done.err) == (0, "")
    return [line for line in done.out.splitlines() if line.startswith("resume with")]


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("fdl train", "fdl train"),
        ("fdl train --epochs 60", "fdl train --epochs 60"),
        ("fdl train quick --seed 3", "fdl train quick --seed 3"),
        ("fdl train --ranks 2", "fdl train --ranks 2"),
        ("fdl train --resume last --lr 1", "fdl train --lr 1"),
        ("fdl train --resume --lr 1 --resume=x", "fdl train --lr 1"),
        ("fdl --env ci train", "fdl --env ci train"),
    ],
)
def test_the_command_of_fdl_is_shown_as_it_was_typed(stopped, fdl, typed, command):
    root = stopped(typed)
    assert shown(fdl) == [f"resume with  {command} --resume runs/train/{NAME}"]
    command = f"cd {root} && {command}"
    assert shown(fdl, "train") == [f"resume with  {command} --resume runs/train/{NAME}"]


def test_a_program_that_was_started_by_hand_is_started_by_hand(stopped, fdl):
    root = stopped("python3 main.py --lr 1", project_root=None)
    command = f"python3 main.py --lr 1 --resume {root}/runs/train/{NAME}"
    assert shown(fdl, "train") == [f"resume with  {command}"]
    assert shown(fdl) == [f"resume with  cd {root}/train && {command}"]


@pytest.mark.parametrize(
    "record",
    [{"typed": None}, {"typed": ["fdl", "train", "--key", "<secret>"]}, {"project_root": None}],
    ids=str,
)
def test_a_record_that_does_not_say_enough_leaves_the_option(stopped, fdl, record):
    stopped("fdl train", **record)
    assert shown(fdl) == [f"resume with  --resume runs/train/{NAME}"]


def test_a_moved_project_continues_where_it_is_now(stopped, fdl, tmp_path):
    stopped("fdl train", project_root=str(tmp_path / "before"))
    assert shown(fdl) == [f"resume with  fdl train --resume runs/train/{NAME}"]


def test_a_program_whose_folder_is_gone_leaves_the_option(stopped, fdl, tmp_path):
    stopped("python3 main.py", project_root=None, cwd=str(tmp_path / "before"))
    assert shown(fdl) == [f"resume with  --resume runs/train/{NAME}"]
