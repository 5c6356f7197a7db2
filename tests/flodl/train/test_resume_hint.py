"""Which command continues an interrupted training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flodl.errors import DistributedError, WorkersFailed
from flodl.ranks.launch.launcher import Launched, mark_begun
from flodl.train import RunDirectory
from flodl.train.run.resume import add_hint, extend_error, extend_failure
from tests.rows import each_row

LAUNCHERS = ("FDL_PLAN", "RANK", "WORLD_SIZE", "SLURM_PROCID", "JOB_COMPLETION_INDEX")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "-O", "main.py", "--lr", "0.1"])


def plan(argv: list[str], typed: int, **more: Any) -> str:
    known = {"kind": "entry", "command": ["train"], "argv": argv, "typed": typed}
    return json.dumps({**known, **more})


def hint(tmp_path: Path, config: dict[str, Any] | None = None) -> list[str]:
    run = RunDirectory.create(tmp_path, config={"resume": None} if config is None else config)
    stop = KeyboardInterrupt()
    add_hint(stop, run, tmp_path / "last.fdl")
    return getattr(stop, "__notes__", [])


@pytest.mark.parametrize(
    ("handed_down", "command"),
    [
        (plan(["main.py", "--epochs", "5"], 0), "fdl train --resume last"),
        (plan(["main.py", "--lr", "0.1"], 2), "fdl train --lr 0.1 --resume last"),
        (plan(["main.py"], 0, command=["train", "quick"]), "fdl train quick --resume last"),
        (plan(["main.py"], 0, env="ci"), "fdl --env ci train --resume last"),
        (plan(["main.py"], 0, kept=["--ranks", "2"]), "fdl train --ranks 2 --resume last"),
        (plan(["main.py", "--resume", "runs/a", "-n", "3"], 4), "fdl train -n 3 --resume last"),
        (plan(["main.py", "--resume=last"], 1), "fdl train --resume last"),
        (plan(["main.py", "--resume", "--lr", "1"], 3), "fdl train --lr 1 --resume last"),
        (plan(["main.py", "--name", "my run"], 2), "fdl train --name 'my run' --resume last"),
        (
            plan(["main.py", "-a", "--mode", "slow"], 3, unchecked=2),
            "fdl train -a -- --mode slow --resume last",
        ),
        ("no JSON", "python3 -O main.py --lr 0.1 --resume last"),
        (plan(["sh", "-c", "x"], 0, kind="run"), "python3 -O main.py --lr 0.1 --resume last"),
        ("", "python3 -O main.py --lr 0.1 --resume last"),
    ],
)
def test_it_is_the_command_that_was_typed(
    handed_down: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FDL_PLAN", handed_down)
    assert hint(tmp_path) == [f"continue with: {command}"]


def test_a_rank_of_another_launcher_does_not_know_the_whole_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, text)
    assert hint(tmp_path) == ["continue with: the same command and --resume last"]


def test_a_program_without_the_option_gets_no_command(tmp_path: Path) -> None:
    assert hint(tmp_path, {"lr": 0.1}) == []


def test_without_a_checkpoint_there_is_no_command(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={"resume": None})
    for stop, where in ((KeyboardInterrupt(), run), (KeyboardInterrupt(), None)):
        add_hint(stop, where, None)
        assert not hasattr(stop, "__notes__")


def place(rank: int = 0, *, restarts_left: int = 0, node: int = 0) -> Launched:
    return Launched(
        rank=rank,
        world_size=3,
        local_rank=rank,
        local_world_size=3,
        node=node,
        run_id="night",
        restart=0,
        restarts_left=restarts_left,
        source="torchrun",
        address="",
        port=0,
    )


def extended(run: RunDirectory | None, launched: Launched) -> str:
    error = DistributedError("rank 2 is lost")
    extend_error(error, run, launched)
    return str(error)


@each_row("rank", [0, 1])
def test_a_rank_that_lost_another_names_the_last_checkpoint_and_the_command(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FDL_PLAN", plan(["main.py"], 0, kept=["--ranks", "3"]))
    run = RunDirectory.create("runs", config={"resume": None})
    assert extended(run, place(rank)) == "rank 2 is lost"  # there is no checkpoint yet
    run.last_checkpoint.touch()
    assert extended(run, place(rank)) == (
        f"rank 2 is lost; the last checkpoint is runs/{run.path.name}/last.fdl\n"
        "continue with: fdl train --ranks 3 --resume last"
    )


def test_a_program_without_the_option_is_told_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create("runs")
    run.last_checkpoint.touch()
    told = f"rank 2 is lost; the last checkpoint is runs/{run.path.name}/last.fdl"
    assert extended(run, place()) == told


@each_row(
    "launched",
    [place(2), place(2, restarts_left=1), place(1, node=1)],
    ids=["rank 0 or 1 tells it", "also of a restart", "it may not see the folder"],
)
def test_other_ranks_add_nothing(launched: Launched, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={"resume": None})
    run.last_checkpoint.touch()
    assert extended(run, launched) == "rank 2 is lost"
    assert extended(None, place()) == "rank 2 is lost"


def test_a_restart_is_announced_in_place_of_a_command_once_the_training_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert extended(RunDirectory.create(tmp_path), place(1, restarts_left=3)) == "rank 2 is lost"
    mark_begun()
    run = RunDirectory.create(tmp_path, config={"resume": None})
    run.last_checkpoint.touch()
    told = "rank 2 is lost; the launcher starts all ranks again (1 of 3)"
    assert extended(run, place(1, restarts_left=3)) == told


@pytest.mark.parametrize("kept", [None, "runs/last.fdl"])
def test_the_failure_of_own_ranks_names_the_command_if_a_checkpoint_is_there(
    kept: str | None, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path, config={"resume": None})
    error = WorkersFailed("rank 1 ended", last_checkpoint=kept)
    extend_failure(error, run)
    command = "\ncontinue with: python3 -O main.py --lr 0.1 --resume last" if kept else ""
    assert str(error) == f"rank 1 ended{command}"
