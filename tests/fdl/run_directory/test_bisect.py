"""`fdl runs diff --bisect`: what is swapped, what is trained, and what that proves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fdl.errors import FdlError
from fdl.run_directory.code_copy import copy_code
from fdl.run_directory.recipe import recipe_of, shown, swapped
from fdl.run_directory.run import Run
from fdl.run_directory.trace_file import Trace
from tests.fdl.run_directory.test_diff import Bench

# --- Words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "other", "name", "expected"),
    [
        ("--lr 0.1 --seed 1", "--lr 0.2 --seed 1", "lr", "--lr 0.2 --seed 1"),
        ("--lr=0.1 data", "--lr 0.2 data", "lr", "--lr 0.2 data"),
        ("--seed 1", "--seed 1 --clip 3", "clip", "--seed 1 --clip 3"),
        ("--seed 1 --clip 3", "--seed 1", "clip", "--seed 1"),
        ("--amp", "--no-amp", "amp", "--no-amp"),
        ("--shift -1 --lr 2", "--shift -0.5 --lr 3", "shift", "--shift -0.5 --lr 2"),
        ("--layers 3 4 --lr 2", "--layers 5 --lr 2", "layers", "--layers 5 --lr 2"),
        ("a b --lr 2", "c --lr 2", "", "c --lr 2"),
    ],
)
def test_one_option_is_swapped(words: str, other: str, name: str, expected: str) -> None:
    assert " ".join(swapped(words.split(), other.split(), name)) == expected


def test_of_a_repeated_option_the_last_is_shown() -> None:
    assert shown(["--lr", "0.1", "--lr=0.2"]) == "--lr=0.2"


def run_with(folder: Path, **record: object) -> Run:
    facts = {"state": "complete", "argv": ["main.py", "--lr", "1"], "cwd": str(folder),
             "start": ["python", "main.py"], **record}  # fmt: skip
    return Run(folder, facts)


def test_a_recipe_is_what_the_record_says(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps({"threads": 3}))
    recipe = recipe_of(run_with(tmp_path, launched_ranks=2), Trace(tmp_path))
    assert (recipe.start, recipe.words) == (("python", "main.py"), ("--lr", "1"))
    assert (recipe.threads, recipe.ranks, recipe.code) == (3, 2, None)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"start": None}, "does not say how its program was started"),
        ({"argv": ["main.py", "--key", "<secret>"]}, "has a secret"),
        ({"cwd": "/not/here"}, "does not exist here"),
    ],
)
def test_a_run_that_cannot_be_repeated_says_why(
    tmp_path: Path, record: dict[str, object], why: str
) -> None:
    with pytest.raises(FdlError, match=why):
        recipe_of(run_with(tmp_path, **record), Trace(tmp_path))


# --- Code --------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "project"
    (top / "train").mkdir(parents=True)
    (top / "train/main.py").write_text("one = 1\n")
    (top / ".gitignore").write_text("data\n")
    git(top, "init", "-q", ".")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "one")
    (top / "data").mkdir()
    (top / "data/x.bin").write_bytes(b"abc")
    return top


def record_code(top: Path, changes: str, truncated: str = "no") -> Path:
    run = top / "runs/2026-01-31T10-00-00"
    run.mkdir(parents=True)
    commit = git(top, "rev-parse", "HEAD").strip()
    head = f"# flodl code 1\n# commit: {commit}\n# program: main.py\n# truncated: {truncated}\n"
    (run / "code.diff").write_text(head + changes)
    return run


def test_the_code_of_a_run_is_put_together_and_nothing_else_changes(
    repository: Path, tmp_path: Path
) -> None:
    program = repository / "train/main.py"
    program.write_text("one = 2\n")
    run = record_code(repository, git(repository, "diff", "HEAD"))
    program.write_text("today = 3\n")
    status, branches = git(repository, "status", "--short"), git(repository, "worktree", "list")
    inside = copy_code(run, program.parent, tmp_path / "copy")
    assert inside == tmp_path / "copy/train"
    assert (inside / "main.py").read_text() == "one = 2\n"
    assert (tmp_path / "copy/data/x.bin").read_bytes() == b"abc"
    assert not (tmp_path / "copy/runs").exists()
    assert program.read_text() == "today = 3\n"
    assert git(repository, "status", "--short") == status
    assert git(repository, "worktree", "list") == branches


@pytest.mark.parametrize("hidden", ["truncated", "secret", "commit"])
def test_code_that_is_not_recorded_in_full_is_refused(
    repository: Path, tmp_path: Path, hidden: str
) -> None:
    run = record_code(repository, "", "1024 KiB" if hidden == "truncated" else "no")
    code = (run / "code.diff").read_text()
    if hidden == "secret":
        code += 'diff --git a/k.py b/k.py\n+key = "<secret>"\n'
    if hidden == "commit":
        code = code.replace(git(repository, "rev-parse", "HEAD").strip(), "0" * 40)
    (run / "code.diff").write_text(code)
    with pytest.raises(FdlError, match="cannot be put together again"):
        copy_code(run, repository / "train", tmp_path / "copy")


# --- Real trainings ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bisect"))


def bisected(bench: Bench, left: str, right: str):
    """What a search finds, and its lines."""
    done = bench.fdl("runs", "diff", left, right, "--bisect", "--json", timeout=900)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)["bisect"], done.stderr


@pytest.mark.slow
def test_a_search_is_certain_and_leaves_nothing(bench: Bench) -> None:
    program = bench.folder / "train/main.py"
    before = program.read_text()
    base = bench.train("base")
    program.write_text(before.replace("SCALE = 1.0", "SCALE = 1.5"))
    code = bench.train("code")
    program.write_text(before)
    rate = bench.train("lr", "--lr", "0.2", "--clip", "1e8")
    both = bench.train("both", "--lr", "0.2", "--dropout", "0.5")
    files = sorted(path for path in bench.folder.rglob("*") if ".git/" not in str(path))

    found, told = bisected(bench, base, rate)
    assert found["certain"] == ["--lr 0.2"]
    assert "At most " in told
    assert "  the first run again: the same as the first run\n" in told
    found, _ = bisected(bench, base, code)
    assert found["certain"] == ["the code of the second run"]
    found, _ = bisected(bench, base, both)
    assert found["certain"] == ["--dropout 0.5"]  # the first step has no other cause
    assert files == sorted(path for path in bench.folder.rglob("*") if ".git/" not in str(path))


@pytest.mark.slow
def test_what_lies_outside_of_the_records_is_said(bench: Bench) -> None:
    base = bench.train("old")
    file = bench.folder / "train/x.pt"
    before = file.read_bytes()
    bench.change_sample(5)
    try:
        other = bench.train("new", "--clip", "1e8")
        found, told = bisected(bench, base, other)
    finally:
        file.write_bytes(before)
    assert found["certain"] == []
    assert "the first run again: not the same as the first run" in told


@pytest.mark.slow
def test_a_dry_run_trains_nothing(bench: Bench) -> None:
    left, right = bench.train("dry-a"), bench.train("dry-b", "--lr", "0.3")
    done = bench.fdl("runs", "diff", left, right, "--bisect", "--dry-run")
    assert done.returncode == 1
    assert "  the first run with --lr 0.3\n" in done.stderr
    assert "again:" not in done.stderr
