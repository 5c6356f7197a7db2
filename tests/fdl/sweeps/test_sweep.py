"""Sweeps that run: their directories, failures, interruptions and comparison."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fdl.run_directory.test_real_runs import FILES, wait_for
from tests.fdl.sweeps.conftest import states
from tests.fdl.terminal import PATIENCE


@contextmanager
def started(root: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Type a sweep in a project that goes on meanwhile; at the end it is stopped."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-m", "fdl", *args], cwd=root, start_new_session=True, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "CI": "1", "PATH": path},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()


def test_each_run_has_a_directory_with_its_values_log_and_record(scores, fdl):
    done = fdl("--jobs", "2", "train", "--each", "lr=0.5,0.25", "--each", "seed=1..2")
    assert done.exit == 0, done.err
    (folder,) = scores.glob("runs/train/*")
    names = [f"lr={lr},seed={seed}" for lr in ("0.5", "0.25") for seed in (1, 2)]
    assert states(scores) == dict.fromkeys(names, "done")
    run = folder / "lr=0.25,seed=2"
    assert "lr 0.25 seed 2 model small\n" in (run / "training.log").read_text()
    record = json.loads((run / "run.json").read_text())
    assert record["argv"][-4:] == ["--lr", "0.25", "--seed", "2"]
    assert (record["state"], record["exit_code"]) == ("complete", 0)
    assert json.loads((run / "config.json").read_text())["lr"]["value"] == 0.25


@pytest.mark.usefixtures("scores")
@pytest.mark.slow
def test_the_comparison_stands_at_the_end(fdl):
    done = fdl("--quiet", "train", "--each", "lr=0.5,0.25")
    table = done.out[done.out.index("lr=0.5") :]
    assert "0.0625 @1" in table
    assert "0 @1*" in table


@pytest.mark.parametrize("words", [("--dry-run", "sweep", "run"), ("sweep", "run", "--dry-run")])
def test_a_dry_run_of_a_sweep_of_the_manifest_shows_its_runs(scores, fdl, words):
    shown = fdl(*words, "rates")
    assert shown.exit == 0, shown.err
    names = [line for line in shown.out.splitlines() if not line.startswith(" ")]
    assert names == [f"lr={lr},seed={seed}" for lr in ("0.5", "0.25") for seed in (1, 2)]
    assert not (scores / "runs").exists()
    assert not list(scores.rglob("sweep.json"))


def test_failed_runs_are_kept_and_the_others_go_on(scores, fdl):
    done = fdl("train", "--each", "seed=13,1")
    assert done.exit == 3
    assert states(scores) == {"seed=13": "failed", "seed=1": "done"}
    assert "1 of 2 runs failed" in done.err
    (folder,) = scores.glob("runs/train/*")
    assert f"fdl sweep resume {folder.name} --retry failed" in done.err
    record = json.loads((folder / "seed=13/run.json").read_text())
    assert (record["state"], record["error"]) == ("failed", "exit code 3")
    shown = fdl("sweep", "show").out
    assert "seed=13  failed" in shown


def test_a_dry_run_of_the_continuation_shows_what_is_left_and_runs_nothing(scores, fdl):
    fdl("train", "--each", "seed=13")
    (record,) = scores.rglob("sweep.json")
    before = record.read_bytes()
    for words in (("--dry-run", "sweep", "resume"), ("sweep", "resume", "--dry-run")):
        shown = fdl(*words, "--retry", "failed")
        assert shown.exit == 0, shown.err
        name, command = shown.out.splitlines()
        assert name == "seed=13"
        assert command == "  python score.py --seed 13"
    nothing = fdl("--dry-run", "sweep", "resume")
    assert (nothing.exit, nothing.out) == (0, "")
    assert "has no unfinished runs" in nothing.err
    assert record.read_bytes() == before
    assert states(scores) == {"seed=13": "failed"}


@pytest.mark.slow
def test_failed_runs_run_again_only_if_asked(scores, fdl):
    fdl("train", "--each", "seed=13,1")
    (done_log,) = scores.glob("runs/train/*/seed=1/training.log")
    before = done_log.read_text()
    (scores / "mended").touch()
    again = fdl("sweep", "resume")
    assert again.exit == 1
    assert "has no unfinished runs" in again.err
    assert states(scores)["seed=13"] == "failed"
    assert fdl("sweep", "resume", "--retry", "failed").exit == 0
    assert states(scores) == {"seed=13": "done", "seed=1": "done"}
    assert done_log.read_text() == before


@pytest.mark.slow
def test_an_interrupted_sweep_continues(project, fdl):
    root = project(
        {
            "fdl.yml": "commands: {wait: {run: sh wait.sh}}",
            "wait.sh": 'echo "$2" >> started; while [ ! -e go ]; do sleep 0.01; done',
        }
    )
    with started(root, "wait", "--each", "n=1..3") as process:
        wait_for((root / "started").exists)
        locked = fdl("sweep", "resume")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert "another process runs the sweep" in locked.err
    assert process.returncode == 143
    assert "3 of 3 runs are not finished" in err
    assert states(root) == {"n=1": "stopped", "n=2": "waiting", "n=3": "waiting"}
    (root / "go").touch()
    assert fdl("sweep", "resume", "last").exit == 0
    assert (root / "started").read_text().split() == ["1", "1", "2", "3"]
    assert set(states(root).values()) == {"done"}


def test_a_run_that_was_killed_with_its_sweep_runs_again(scores, fdl):
    fdl("train", "--each", "seed=1,2")
    (file,) = scores.rglob("sweep.json")
    content = json.loads(file.read_text())
    content["runs"][1].update(state="running", code=None)
    file.write_text(json.dumps(content))
    record = file.parent / "seed=2/run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "state": "running", "pid": 0}))
    done = fdl("sweep", "resume")
    assert done.exit == 0
    assert "seed 2 " in done.out
    assert "seed 1 " not in done.out


def test_a_run_that_ended_after_its_sweep_was_killed_does_not_run_again(scores, fdl):
    fdl("train", "--each", "seed=1,13")
    (file,) = scores.rglob("sweep.json")
    content = json.loads(file.read_text())
    for row in content["runs"]:
        row.update(state="running", code=None, seconds=0.0)
    file.write_text(json.dumps(content))
    assert "has no unfinished runs" in fdl("--dry-run", "sweep", "resume").err
    done = fdl("sweep", "resume")
    assert (done.exit, "has no unfinished runs" in done.err) == (1, True)
    rows = json.loads(file.read_text())["runs"]
    assert [(row["state"], row["code"]) for row in rows] == [("done", 0), ("failed", 3)]


def test_a_run_that_cannot_be_started_can_still_be_continued(scores, fdl):
    fdl("train", "--each", "seed=1")
    (file,) = scores.rglob("sweep.json")
    file.write_text(file.read_text().replace('"done"', '"stopped"'))
    run = file.parent / "seed=1"
    (run / "last.fdl").touch()
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "state": "interrupted"}))
    config = {"resume": {"value": None, "origin": "default"}}
    (run / "config.json").write_text(json.dumps(config))
    program = scores / "train/score.py"
    text = program.read_text()
    program.write_text(text.replace("args =", 'parser.add_argument("--resume")\nargs ='))
    before = fdl("--dry-run", "sweep", "resume").out
    assert "--resume" in before
    program.rename(program.with_suffix(".txt"))
    assert fdl("sweep", "resume").exit == 1
    program.with_suffix(".txt").rename(program)
    assert fdl("--dry-run", "sweep", "resume", "--retry", "failed").out == before


@pytest.mark.slow
def test_a_sweep_of_the_manifest_has_its_name(scores, fdl):
    assert fdl("sweep", "run", "rates").exit == 0
    assert fdl("sweep", "run", "rates").exit == 0
    assert sorted(path.name for path in scores.glob("runs/train/quick/*")) == ["rates", "rates-2"]
    record = json.loads((scores / "runs/train/quick/rates/lr=0.5,seed=1/run.json").read_text())
    assert record["argv"][2:] == ["--model", "big", "--lr", "0.5", "--seed", "1"]
    listed = fdl("sweep", "list").out
    assert "rates-2" in listed
    assert "4 done" in listed


def test_a_wrong_sweep_of_the_manifest_is_refused_with_its_place(project, fdl):
    files = {
        "fdl.yml": "commands: {t: {run: echo}}\nsweeps:\n  a: {command: t, each: {lr: 3..1..1}}\n"
    }
    project(files)
    assert "no sweep `b`" in fdl("sweep", "run", "b").err
    assert "never ends" in fdl("sweep", "run", "a").err
    project({"fdl.yml": files["fdl.yml"].replace("3..1..1", "'a,,b'")})
    assert "fdl.yml:3:30: `--each lr=a,,b` has no value" in fdl("sweep", "run", "a").err
    project({"fdl.yml": files["fdl.yml"].replace("each", "eech")})
    assert "fdl.yml:3:19" in fdl("sweep", "run", "a").err


@pytest.mark.parametrize("name", ["a/b", "..", ".a"])
def test_a_sweep_of_the_manifest_has_the_name_of_a_directory(project, fdl, name):
    root = project({"fdl.yml": f"commands: {{t: {{run: echo}}}}\nsweeps: {{{name}: "
                               "{command: t, each: {n: 1..2}}}\n"})  # fmt: skip
    refused = fdl("sweep", "run", name)
    assert refused.exit == 1
    assert refused.err.startswith("error: fdl.yml:2:")
    assert f": no sweep can be called `{name}`" in refused.err
    assert not (root / "runs").exists()


@pytest.mark.parametrize("how", ["missing", "wrong"])
def test_a_sweep_is_not_continued_from_a_damaged_file(scores, fdl, how):
    fdl("train", "--each", "seed=1")
    (file,) = scores.rglob("sweep.json")
    content = json.loads(file.read_text())
    for key in content.keys() - {"runs", "command", "started", "launch"}:
        spoiled = {**content, key: ...} if how == "missing" else {**content, key: [1]}
        file.write_text(json.dumps({k: v for k, v in spoiled.items() if v is not ...}))
        done = fdl("sweep", "resume")
        assert done.exit == 1
        assert f"/sweep.json is damaged: `{key}` is missing or wrong" in done.err


def test_a_sweep_that_is_null_is_not_there(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo}}\nsweeps: {gone: ~}\n"})
    refused = fdl("sweep", "run", "gone").err
    assert refused.startswith("error: the manifest has no sweep `gone`\nhint: sweeps: {gone:")
    assert "gone" not in fdl("__complete", "bash", "--", "sweep", "run", "").out


def test_a_declared_argument_of_a_script_varies_as_its_variable(project, fdl):
    args = "{lr: 1, who: {positional: true}}"
    project({"fdl.yml": f"commands: {{t: {{run: 'echo $lr \"$@\"', args: {args}}}}}\n"})
    words = ("t", "you", "--each", "lr=2,3", "--", "-x")
    plans = json.loads(fdl("-n", "--json", *words).out)["jobs"]
    assert [plan["env"]["lr"] for plan in plans] == ["2", "3"]
    assert {plan["argv"][-1] for plan in plans} == {'set -- you\necho $lr "$@" -x'}
    assert "`fdl t` has no setting `rl`" in fdl("t", "you", "--each", "rl=2").err


def test_needed_commands_run_once_before_the_sweep(project, fdl):
    root = project(
        {
            "fdl.yml": """
            commands:
              data: {run: echo made >> made}
              train: {run: cat made, needs: data}
            """
        }
    )
    assert fdl("train", "--each", "n=1", "--", "made").exit != 2
    assert (root / "made").read_text() == "made\n"


def test_metrics_of_a_table_count_too(project, fdl):
    project(
        {
            "fdl.yml": "commands: {t: {run: sh t.sh}}",
            "t.sh": 'printf "step,loss\\n1,9\\n2,$2\\n" > "$FDL_RUN_DIR/metrics.csv"',
        }
    )
    assert fdl("t", "--each", "n=3,4").exit == 0
    rows = json.loads(fdl("runs", "list", "--json").out)["runs"]
    assert sorted(row["metrics"]["loss"] for row in rows) == [3.0, 4.0]


def test_a_typed_folder_holds_the_sweep(project, fdl):
    root = project(
        {
            "fdl.yml": "commands: {train: {path: train}}",
            "train/fdl.yml": "entry: echo\noutput: {dir: out}",
        }
    )
    done = fdl("-n", "train", "--output", "mine", "--each", "lr=1")
    assert f"--lr 1 --output {root}/mine/" in done.out


@pytest.mark.slow
def test_an_interrupted_training_is_resumed_from_its_checkpoint(project, torch_fdl):
    root = project(FILES)
    with started(root, "train", "--epochs", "12", "--each", "lr=0.1,0.2") as process:
        [checkpoint] = wait_for(lambda: list(root.glob("out/train/*/lr=0.1/last.fdl")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert "2 of 2 runs are not finished" in err
    assert states(root) == {"lr=0.1": "stopped", "lr=0.2": "waiting"}
    done = torch_fdl("sweep", "resume", timeout=120)
    assert done.exit == 0, done.err
    again = json.loads(checkpoint.with_name("run.json").read_text())
    assert again["resumed_from"] == str(checkpoint)
    assert (again["state"], again["epochs"]) == ("complete", 12)
    rows = checkpoint.with_name("metrics.csv").read_text().splitlines()[1:]
    assert [int(row.partition(",")[0]) for row in rows] == list(range(1, 13))
    assert len(list(root.glob("out/train/*/lr=*/**/run.json"))) == 2
    assert "loss" in done.out


@pytest.mark.usefixtures("scores")
def test_flags_of_a_sweep_need_each(fdl):
    done = fdl("--zip", "train")
    assert done.exit == 1
    assert "belong to a sweep" in done.err
