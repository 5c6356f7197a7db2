"""`fdl runs diff --bisect`: what is swapped, what is trained, and what that proves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl.base.errors import FdlError
from fdl.run.bisect import Finding, Repeats, _python_options, search, search_of
from fdl.runs.diff import compare
from fdl.runs.recipe import Recipe, copy_code, recipe_of, shown, swapped
from fdl.runs.run import Run
from fdl.runs.trace_file import Trace, read_trace
from tests.conftest import Fdl
from tests.fdl.run_directory.test_diff import Bench
from tests.flodl.train.test_step_trace import train
from tests.rows import each_row

# --- Words -------------------------------------------------------------------------------------


@each_row(
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


@each_row(
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


def test_the_variables_of_a_run_belong_to_its_recipe(tmp_path: Path) -> None:
    recorded = {
        "FACTOR": {"value": "2", "origin": "train/fdl.yml:4:10"},
        "PIN": {"value": "<secret>", "origin": "fdl.yml:2:8"},
    }
    assert recipe_of(run_with(tmp_path, variables=recorded), Trace(tmp_path)).variables == {
        "FACTOR": "2"
    }


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
    (top / "train/__pycache__").mkdir()
    (top / "train/__pycache__/main.cpython-311.pyc").write_bytes(b"of other code")
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
    assert not (inside / "__pycache__").exists()
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


@pytest.fixture
def with_submodule(repository: Path, tmp_path: Path) -> Path:
    """The repository with the submodule ``train/lib``, which has two commits."""
    lib = tmp_path / "lib"
    lib.mkdir()
    git(lib, "init", "-q", ".")
    for number in (1, 2):
        (lib / "helper.py").write_text(f"scale = {number}\n")
        git(lib, "add", "-A")
        git(lib, "commit", "-qm", str(number))
    allowed = ("-c", "protocol.file.allow=always")
    git(repository, *allowed, "submodule", "--quiet", "add", str(lib), "train/lib")
    git(repository / "train/lib", "checkout", "-q", "HEAD~")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "two")
    return repository


def test_a_submodule_has_the_commit_that_was_checked_out(
    with_submodule: Path, tmp_path: Path
) -> None:
    plain = copy_code(record_code(with_submodule, ""), with_submodule / "train", tmp_path / "a")
    assert (plain / "lib/helper.py").read_text() == "scale = 1\n"

    git(with_submodule / "train/lib", "checkout", "-q", "-")
    shutil.rmtree(with_submodule / "runs")
    run = record_code(with_submodule, git(with_submodule, "diff", "HEAD"))
    moved = copy_code(run, with_submodule / "train", tmp_path / "b")
    assert (moved / "lib/helper.py").read_text() == "scale = 2\n"

    (with_submodule / "train/lib/helper.py").write_text("scale = 3\n")
    shutil.rmtree(with_submodule / "runs")
    run = record_code(with_submodule, git(with_submodule, "diff", "HEAD"))
    with pytest.raises(FdlError, match="the changes in its submodule train/lib are not recorded"):
        copy_code(run, with_submodule / "train", tmp_path / "c")


# --- The search --------------------------------------------------------------------------------


class Trainings:
    """Real trainings in this process, in place of programs: words of a command line -> a run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.words: list[str] = []

    def run(self, words: str, **settings: Any) -> Run:
        """Train, and record these words as the command line."""
        path = train(self._root / words.replace(" ", "_"), epochs=1, **settings).path
        record = json.loads((path / "run.json").read_text())
        record |= {"argv": ["main.py", *words.split()], "start": ["python", "main.py"]}
        (path / "run.json").write_text(json.dumps(record))
        return Run(path, record)

    def search(self, left: Run, right: Run, **known: Run) -> Finding:
        """Search for the cause.

        Args:
            left: The first run.
            right: The second run.
            known: What a training with these words gives; ``__`` stands for a blank.
        """
        named = {name.replace("__", " "): run for name, run in known.items()}

        def again(recipe: Recipe) -> Trace:
            words = " ".join(recipe.words)
            self.words.append(words)
            return read_trace(named[words.replace("--", "").replace(".", "")].path)

        verdict = compare(left, right)
        return search(search_of(verdict), verdict, again, lambda _: None)


@pytest.fixture
def trainings(tmp_path: Path) -> Trainings:
    return Trainings(tmp_path)


def test_the_candidate_that_gives_the_second_run_is_certain(trainings: Trainings) -> None:
    left, right = trainings.run("--clip 9 --lr 1"), trainings.run("--clip 8 --lr 2", lr=0.1)
    found = trainings.search(
        left,
        right,
        clip__9__lr__1=left,
        clip__8__lr__2=right,
        clip__9__lr__2=right,
        clip__8__lr__1=left,
    )
    assert found.certain == ("--lr 2",)
    assert "It alone turns the first run into the second one" in found.sentence
    assert trainings.words[:2] == ["--clip 9 --lr 1", "--clip 8 --lr 2"]


def test_two_candidates_can_be_the_cause_together(trainings: Trainings) -> None:
    left = trainings.run("--clip 9 --lr 1", max_grad_norm=9.0)
    right = trainings.run("--clip 8 --lr 2", max_grad_norm=0.01, lr=0.1)
    rate = trainings.run("--clip 9 --lr 2", max_grad_norm=9.0, lr=0.1)
    clip = trainings.run("--clip 8 --lr 1", max_grad_norm=0.01)
    found = trainings.search(
        left, right, clip__9__lr__1=left, clip__8__lr__2=right, clip__9__lr__2=rate,
        clip__8__lr__1=clip,
    )  # fmt: skip
    assert set(found.certain) == {"--clip 8", "--lr 2"}
    assert found.sentence == "Certain cause: --clip 8, --lr 2, together."


def test_what_the_first_difference_does_not_depend_on_is_no_cause(trainings: Trainings) -> None:
    left, right = trainings.run("--lr 1 --seed 1"), trainings.run("--lr 2 --seed 2", lr=0.1, seed=7)
    rate, seed = trainings.run("--lr 2 --seed 1", lr=0.1), trainings.run("--lr 1 --seed 2", seed=7)
    found = trainings.search(
        left, right, lr__1__seed__1=left, lr__2__seed__2=right, lr__2__seed__1=rate,
        lr__1__seed__2=seed,
    )  # fmt: skip
    assert found.certain == ("--seed 2",)  # the initial weights differ, and no rate changes them


def test_a_run_that_does_not_repeat_itself_ends_the_search(trainings: Trainings) -> None:
    left, right = trainings.run("--lr 1"), trainings.run("--lr 2", lr=0.1)
    third = trainings.run("--lr 3", lr=0.02)
    outside = trainings.search(left, right, lr__1=right, lr__2=right)
    assert (outside.certain, outside.sentence[:42]) == (
        (),
        "The cause is outside of the records: the r",
    )
    unstable = trainings.search(left, right, lr__1=third, lr__2=right)
    assert "The first run cannot be repeated here" in unstable.sentence


def test_a_variable_of_the_manifest_is_swapped(trainings: Trainings) -> None:
    left, right = trainings.run("--lr 1"), trainings.run("--lr 1.0", lr=0.1)
    for run, value in ((left, "1"), (right, "2")):
        found = {"FACTOR": {"value": value, "origin": "train/fdl.yml:4:10"}}
        run.record |= {"variables": found, "argv": ["main.py"]}
    verdict = compare(left, right)
    (cause,) = [one for one in verdict.causes if one.name == "variable FACTOR"]
    told = "variable FACTOR 1 (train/fdl.yml:4:10) against 2 (train/fdl.yml:4:10)"
    assert cause.sentence() == told
    plan = search_of(verdict)
    assert [one.name for one in plan.candidates] == ["FACTOR=2"]

    def again(recipe: Recipe) -> Trace:
        return read_trace((right if recipe.variables["FACTOR"] == "2" else left).path)

    assert search(plan, verdict, again, lambda _: None).certain == ("FACTOR=2",)


def test_the_number_of_ranks_is_swapped(trainings: Trainings) -> None:
    left, right = trainings.run("--lr 1"), trainings.run("--lr 1.0", lr=0.1)
    for run, count in ((left, 2), (right, 3)):
        run.record |= {"launched_ranks": count, "argv": ["main.py"]}
    verdict = compare(left, right)
    plan = search_of(verdict)
    assert [one.name for one in plan.candidates] == ["3 ranks"]

    def again(recipe: Recipe) -> Trace:
        return read_trace((right if recipe.ranks == 3 else left).path)

    assert search(plan, verdict, again, lambda _: None).certain == ("3 ranks",)


def test_nothing_is_searched_if_the_runs_agree(trainings: Trainings) -> None:
    left, right = trainings.run("--lr 1"), trainings.run("--lr 1.0")
    with pytest.raises(FdlError, match="the runs agree"):
        search_of(compare(left, right))


# --- Records that somebody else has written -----------------------------------------------------


def test_nothing_is_executed_before_somebody_agrees(
    trainings: Trainings, tmp_path: Path, fdl: Fdl
) -> None:
    runs = [trainings.run("--clip 9 --lr 1"), trainings.run("--clip 9 --lr 2", lr=0.1)]
    sent = {"start": ["touch", "executed"], "argv": ["main.py"], "cwd": str(tmp_path)}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for run in runs:
        (run.path / "run.json").write_text(json.dumps(run.record | sent))
    words = ["runs", "diff", *(str(one.path) for one in runs), "--bisect"]
    done = fdl(*words)
    assert f"  runs, in {tmp_path}: touch executed\n" in done.err
    assert "error: nothing was started: the records of the runs say what is executed" in done.err
    assert "fdl -y runs diff A B --bisect" in done.err
    done = fdl("-y", *words, cwd="elsewhere")
    assert f"a run was trained in {tmp_path}, not inside {elsewhere}" in done.err
    assert f"cd {tmp_path}, and type the command again" in done.err
    assert not list(tmp_path.rglob("executed"))


# --- The programs that are repeated -------------------------------------------------------------


def recipe(folder: Path, program: str) -> Recipe:
    (folder / "main.py").write_text(program)
    return Recipe(start=(sys.executable, "main.py"), words=("--lr", "1"), cwd=folder,
                  project_root="", code=None, threads=2, engine=None, ranks=1)  # fmt: skip


@each_row(("words", "options"), [
    (["main.py", "-u"], []),
    (["-u", "-X", "dev", "main.py"], ["-u", "-X", "dev"]),
    (["-Xdev", "-m", "package"], ["-Xdev"]),
])  # fmt: skip
def test_options_of_python_go_before_the_launcher(words: list[str], options: list[str]) -> None:
    assert _python_options(words) == (options, words[len(options) :])


def test_a_program_is_told_what_to_repeat_and_its_failure_is_shown(tmp_path: Path) -> None:
    program = (
        "import os, sys\nprint(sys.argv[1:], open(os.environ['FLODL_REPEAT']).read())\n"
        "print('FDL_PLAN' in os.environ)\nsys.exit(3)"
    )
    (tmp_path / "work").mkdir()
    with pytest.raises(FdlError) as raised:
        Repeats(tmp_path / "work", 7).train(recipe(tmp_path, program))
    told = str(raised.value)
    assert "a repeated training ended with exit code 3; its last lines:" in told
    assert '[\'--lr\', \'1\'] {"steps": 7, "engine": null, "threads": 2}\n  False' in told


def test_a_program_gets_the_variables_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTOR", "of today")
    monkeypatch.setenv("GONE", "of today")
    program = "import os, sys\nprint(os.environ['FACTOR'], 'GONE' in os.environ)\nsys.exit(3)"
    (tmp_path / "work").mkdir()
    told = replace(recipe(tmp_path, program), variables={"FACTOR": "2", "GONE": None})
    with pytest.raises(FdlError, match="2 False"):
        Repeats(tmp_path / "work", 7).train(told)


def test_ctrl_c_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)"
    (tmp_path / "work").mkdir()
    told = recipe(tmp_path, program)
    wait = subprocess.Popen.wait

    def interrupted(child: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
                time.sleep(0.02)
            raise KeyboardInterrupt
        return wait(child, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Repeats(tmp_path / "work", 7).train(told)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# --- Real trainings ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bisect"))


def bisected(bench: Bench, left: str, right: str):
    """What a search finds, and its lines."""
    done = bench.fdl("-y", "runs", "diff", left, right, "--bisect", "--json", timeout=900)
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
    # Data that git tracks comes from the commit, so it is what it was.
    bench.git("rm", "-q", "--cached", "train/x.pt")
    bench.git("commit", "-qm", "Leave the data to the disk")
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


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A project with a submodule, a variable in its manifest, and an engine named by a file."""
    bench = Bench(tmp_path_factory.mktemp("parts"))
    lib = bench.folder.parent / "library"
    lib.mkdir(exist_ok=True)
    git(lib, "init", "-q", ".")
    for number in (1, 2):
        (lib / "helper.py").write_text(f"SCALE = {number}.0\n")
        git(lib, "add", "-A")
        git(lib, "commit", "-qm", str(number))
    program = bench.folder / "train/main.py"
    text = program.read_text().replace(
        "SCALE = 1.0",
        "import os\nsys.path.insert(0, 'lib')\nimport helper\n"
        "SCALE = helper.SCALE * float(os.environ['FACTOR'])",
    )
    program.write_text(text.replace('.engine("eager")', '.engine(open("engine.txt").read())'))
    (bench.folder / "train/engine.txt").write_text("eager")
    (bench.folder / ".gitignore").write_text("engine.txt\n")
    manifest = bench.folder / "train/fdl.yml"
    manifest.write_text(manifest.read_text() + 'env: {FACTOR: "1"}\n')
    allowed = ("-c", "protocol.file.allow=always")
    git(bench.folder, *allowed, "submodule", "--quiet", "add", str(lib), "train/lib")
    git(bench.folder / "train/lib", "checkout", "-q", "HEAD~")
    git(bench.folder, "add", "-A")
    git(bench.folder, "commit", "-qm", "parts")
    return bench


@pytest.mark.slow
def test_variables_submodules_engine_and_ranks_are_swapped(parts: Bench) -> None:
    base = parts.train("base")

    manifest = parts.folder / "train/fdl.yml"
    before = manifest.read_text()
    manifest.write_text(before.replace('FACTOR: "1"', 'FACTOR: "3"'))
    variable = parts.train("variable")
    manifest.write_text(before)
    _, document = parts.diff(base, variable)
    causes = {one["name"]: one for one in document["causes"]}
    assert causes["variable FACTOR"]["left_origin"].startswith("train/fdl.yml:3:")
    found, _ = bisected(parts, base, variable)
    assert found["certain"] == ["FACTOR=3"]

    git(parts.folder / "train/lib", "checkout", "-q", "-")
    submodule = parts.train("submodule")
    git(parts.folder / "train/lib", "checkout", "-q", "HEAD~")
    found, _ = bisected(parts, base, submodule)
    assert found["certain"] == ["the code of the second run"]

    engine = parts.folder / "train/engine.txt"
    engine.write_text("compiled")
    compiled = parts.train("compiled", "--dropout", "0.0")
    engine.write_text("eager")
    if parts.diff(base, compiled)[0]:
        found, _ = bisected(parts, base, compiled)
        assert found["certain"] == ["engine compiled"], found

    two, three = (parts.train(f"ranks-{count}", "--ranks", count) for count in "23")
    found, _ = bisected(parts, two, three)
    assert found["certain"] == ["3 ranks"]
