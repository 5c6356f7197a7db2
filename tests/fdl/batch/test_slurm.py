"""``fdl --on slurm``, against a stand-in for the programs of a SLURM cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import typed
from tests.waiting import wait_for

COUNTS = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()
print("lr", args.lr, "job", "SLURM_JOB_ID" in os.environ, flush=True)
raise SystemExit(3 if args.fail or args.lr == 0.3 else 0)
"""
WAITS = """
import os, signal, sys, time
print("ready", flush=True)
open("ready", "a").write("%d\\n" % os.getpid())
time.sleep(60)
"""


def started(words, folder, cluster):
    """A call of fdl that goes on meanwhile."""
    line = ("-m", "fdl", "--on", "slurm", *words)
    process = subprocess.Popen(
        [sys.executable, *line],
        cwd=folder, env={**os.environ, **cluster, "CI": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    typed.note(line, folder, os.environ, lambda: (process.poll(), ""))
    return process


def state(cluster, id):
    return json.loads(Path(cluster["STAND_IN"], f"{id}.json").read_text())["state"]


def test_a_command_runs_as_a_job_and_its_output_and_exit_code_are_ours(project, slurm, tmp_path):
    project(
        {
            "fdl.yml": "slurm: {time: 60}\n"
            "commands: {t: {run: 'echo on $SLURM_JOB_ID; echo bad >&2; exit 7'}}\n"
        }
    )
    done = slurm("t")
    assert (done.exit, done.out) == (7, "on 101\n")
    assert "bad\n" in done.err
    assert re.search(r"job 101: fdl t; its log is .*101_0_log\.out", done.err)
    assert (tmp_path / ".fdl/slurm").stat().st_mode & 0o777 == 0o700


def test_no_result_is_loaded_that_came_with_the_project(project, slurm, tmp_path):
    """A result is a pickle, which runs code; the number of the next job can be guessed."""
    project({"fdl.yml": "slurm: {time: 60}\ncommands: {t: {run: exit 7}}\n"})
    brought = tmp_path / ".fdl/slurm"
    brought.mkdir(parents=True)
    for name in ("101_result.pkl", "101_0_result.pkl"):
        code = f"cos\nsystem\n(S'touch {tmp_path}/executed'\ntR."
        (brought / name).write_bytes(code.encode())
    done = slurm("t")
    assert done.exit == 7, done.err
    assert not (tmp_path / "executed").exists()


def test_the_folder_of_jobs_is_not_a_link(project, slurm, tmp_path):
    project({"fdl.yml": "slurm: {time: 60}\ncommands: {t: {run: exit 7}}\n"})
    for name in (".fdl/slurm", ".fdl"):
        (tmp_path / "outside").mkdir(mode=0o755, exist_ok=True)
        (tmp_path / ".fdl").mkdir(exist_ok=True)
        if name == ".fdl":
            shutil.rmtree(tmp_path / name)
        (tmp_path / name).symlink_to(tmp_path / "outside")
        done = slurm("t")
        assert done.exit == 1
        assert f"/{name}: it is a link to {tmp_path}/outside" in done.err
        assert not list((tmp_path / "outside").iterdir())
        assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o755


def test_settings_reach_sbatch_the_nearest_ones_win_and_a_dry_run_shows_them(
    program, slurm, cluster, tmp_path
):
    program(
        COUNTS,
        "slurm: {partition: cpu, time: 10, extra: {exclude: node7}}\n"
        'commands: {big: {options: {lr: 1}, slurm: {time: "1:30:00", mem: 4G, setup: [date]}}}\n',
    )
    shown = slurm("--dry-run", "train", "big")
    assert shown.exit == 0, shown.err
    flags = shown.out.split()
    for flag in ("--partition=cpu", "--time=90", "--mem=4G", "--exclude=node7", "--requeue"):
        assert flag in flags
    assert shown.out.splitlines()[1] == "fdl train big"
    assert not list(Path(cluster["STAND_IN"]).iterdir())
    done = slurm("train", "big", "--lr", "2")
    assert (done.exit, done.out) == (0, "lr 2.0 job True\n"), done.err
    (script,) = (tmp_path / ".fdl/slurm").glob("*/*_submission.sh")
    lines = script.read_text().splitlines()
    for flag in ("--partition=cpu", "--time=90", "--mem=4G", "--exclude=node7", "--signal=USR1@90"):
        assert f"#SBATCH {flag}" in lines
    assert any("srun" in line and "--kill-on-bad-exit=1" in line for line in lines)
    assert lines.index("date") < next(n for n, line in enumerate(lines) if "srun" in line)


def test_unequal_machines_are_components_of_one_job(program, slurm):
    program(
        COUNTS,
        "slurm: {time: 10, partition: cpu, cpus: 2, het: [{nodes: 2}, {cpus: 1, mem: 1G}]}\n"
        "ddp: {ranks: 1}\n",
    )
    shown = slurm("--dry-run", "train")
    assert shown.exit == 0, shown.err
    first, second = shown.out.splitlines()[0].split(" : ")
    assert {"--nodes=2", "--cpus-per-task=2", "--partition=cpu", "--time=10"} <= {*first.split()}
    assert {"--mem=1G", "--cpus-per-task=1", "--partition=cpu", "--time=10"} <= {*second.split()}
    assert "--nodes" not in second
    sweep = slurm("train", "--each", "lr=0.1,0.2")
    assert sweep.exit == 1
    assert "SLURM has no array of jobs whose machines differ" in sweep.err


def test_a_wrong_key_of_unequal_machines_is_named(program, slurm):
    program(COUNTS, "slurm: {time: 10, het: [{nodes: 2}, {gpu: 1}]}\n")
    done = slurm("train")
    assert done.exit == 1
    assert "train/fdl.yml:2:38: unknown key `slurm.het[1].gpu`" in done.err
    assert "`gpus`" in done.err


def test_what_sbatch_refuses_is_said_with_the_place_of_the_key(program, slurm):
    program(COUNTS, "slurm: {partition: nowhere}\n")
    done = slurm("train")
    assert done.exit == 1
    assert "train/fdl.yml:2:8: sbatch refused the job: " in done.err
    assert "invalid partition" in done.err.lower()
    assert "correct `slurm`" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "moon,,sun", "t"], "fdl --on HOST,HOST COMMAND"),
        (["--on", "slurm", "--gpus-each", "1", "t"], "slurm: {gpus: 1}"),
        (["--on", "slurm", "--jobs", "2", "t", "t"], "once for each"),
        (["--on", "slurm", "nothing"], "unknown command: nothing"),
        (["--on", "slurm", "t"], "fdl.yml:2:12: `fdl t` has no time limit"),
        (["--on", "slurm", "many"], "fdl.yml:3:25: `nodes: 2` starts one torchrun"),
    ],
)
def test_what_cannot_go_to_a_cluster_is_refused(project, fdl, cluster, words, said):
    project(
        {"fdl.yml": "commands:\n  t: {run: echo}\n  many: {run: e, slurm: {nodes: 2, time: 1}}\n"}
    )
    done = fdl(*words, env=cluster)
    assert done.exit != 0
    assert said in done.err
    assert not list(Path(cluster["STAND_IN"]).iterdir())


@pytest.mark.parametrize(("value", "fits"), [("90", True), ('"2-12:00:00"', True), ("0", False),
                                             ('"1:2:3:4"', False), ("soon", False)])  # fmt: skip
def test_a_time_limit_is_written_as_for_sbatch(project, fdl, cluster, value, fits):
    project({"fdl.yml": f"slurm: {{time: {value}}}\ncommands: {{t: {{run: echo}}}}\n"})
    done = fdl("--on", "slurm", "--dry-run", "t", env=cluster)
    assert (done.exit == 0) == fits
    assert fits or "fdl.yml:1:15" in done.err


def test_a_dry_run_of_a_job_prints_json_if_asked(project, fdl, cluster):
    project({"fdl.yml": "slurm: {time: 90}\ncommands: {t: {run: echo}}\n"})
    done = fdl("--on", "slurm", "--dry-run", "--json", "t", env=cluster)
    plan = json.loads(done.out)
    assert (plan["schema_version"], plan["command"], plan["slurm"]) == (1, ["t"], {"time": 90})


def test_without_a_cluster_and_without_submitit_the_next_step_is_named(project, fdl, tmp_path):
    project({"fdl.yml": "slurm: {time: 60}\ncommands: {t: {run: echo}}\n"})
    done = fdl("--on", "slurm", "t")
    assert (done.exit, "`sbatch` is not found" in done.err) == (1, True)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "submitit.py").write_text("raise ImportError\n")
    done = fdl("--on", "slurm", "t", env={"PYTHONPATH": str(hidden)})
    assert (done.exit, "pip install 'flodl[slurm]'" in done.err) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_job(program, cluster, number):
    folder = program(WAITS)
    process = started(["train"], folder.parent, cluster)
    with process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "canceled job 101" in err
    assert state(cluster, "101") == "CANCELLED by 0"
    pid = int((folder / "ready").read_text())
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize(
    ("event", "code", "said"),
    [
        ("cancel", 1, "job 101 was ended by the cluster: PREEMPTED"),
        pytest.param(
            "forgotten",
            1,
            "job 101 is no longer in the queue, and has left no result",
            marks=pytest.mark.slow,  # it waits until it has asked several times
        ),
        ("recorded", 130, "job 101 was ended by the cluster: CANCELLED"),
    ],
)
def test_a_job_that_the_cluster_ended(program, cluster, event, code, said):
    process = started(["train"], program(WAITS).parent, cluster)
    queue = Path(cluster["STAND_IN"])
    with process:
        assert process.stdout.readline() == "ready\n"
        if event == "cancel":
            (queue / event).touch()
        else:
            (queue / "forget").touch()
            if event == "recorded":
                (queue / "accounting").touch()
            subprocess.run(["scancel", "101"], env={**os.environ, **cluster}, check=True)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert said in err
    assert "accounting" not in err, "what sacct said"


def test_a_suspended_job_has_not_ended(program, cluster):
    waits = "while not os.path.exists('go'): time.sleep(0.01)"
    folder = program(f"import os, time\nprint('ready', flush=True)\n{waits}\n")
    process = started(["train"], folder.parent, cluster)
    with process:
        assert process.stdout.readline() == "ready\n"
        (Path(cluster["STAND_IN"]) / "suspend").touch()
        assert any("job 101 is suspended" in line for line in iter(process.stderr.readline, ""))
        (folder / "go").touch()
        (Path(cluster["STAND_IN"]) / "suspend").unlink()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_a_waiting_job_is_listed_and_goes_on_when_the_connection_is_lost(
    program, cluster, fdl, tmp_path
):
    folder = program("open('done', 'w')\n")
    hold = tmp_path / "cluster/queue/hold"
    hold.touch()
    process = started(["train"], folder.parent, cluster)
    with process:
        wait_for(lambda: list(tmp_path.glob(".fdl/slurm/*/101.json")))
        listed = fdl("runs", "list", env=cluster)
        assert "101" in listed.out
        assert "pending" in listed.out
        assert "Resources" in listed.out
        (one,) = json.loads(fdl("runs", "list", "--json", env=cluster).out)["queued"]
        assert one == {"id": "101", "state": "PENDING", "reason": "Resources", "name": "train",
                       "directory": ""}  # fmt: skip
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    hold.unlink()
    wait_for((folder / "done").exists)
    # The job ends a moment after its program has written the file. It leaves a run.
    wait_for(lambda: not json.loads(fdl("runs", "list", "--json", env=cluster).out)["queued"])
    (run,) = json.loads(fdl("runs", "list", "--json", env=cluster).out)["runs"]
    assert run["state"] == "complete"


def test_a_sweep_is_a_job_array(program, slurm, fdl, cluster, tmp_path):
    program(COUNTS, "slurm: {partition: cpu}\n")
    done = slurm("--jobs", "2", "train", "--each", "lr=0.1,0.2,0.3,0.4")
    assert done.exit == 3, done.err
    assert "job 101: 4 runs" in done.err
    assert "lr=0.3: failed" in done.err
    assert "3 of 4 runs done" in done.err
    (script,) = (tmp_path / ".fdl/slurm").glob("*/*_submission.sh")
    assert "#SBATCH --array=0-3%2" in script.read_text()
    (sweep,) = (tmp_path / "runs/train").iterdir()
    for rate in ("0.1", "0.2", "0.3", "0.4"):
        assert (sweep / f"lr={rate}/training.log").read_text() == f"lr {rate} job True\n"
    again = fdl("--on", "slurm", "sweep", "resume", "--retry", "failed", env=cluster)
    assert (again.exit, "job 102: 1 runs" in again.err) == (3, True), again.err


def test_a_sweep_is_continued_as_it_was_begun(program, slurm, fdl, tmp_path):
    program(COUNTS)
    assert slurm("train", "--each", "lr=0.3,0.30").exit == 3
    assert slurm("sweep", "resume", "--retry", "failed").exit == 3
    scripts = [one.read_text() for one in tmp_path.glob(".fdl/slurm/*/*_submission.sh")]
    arrays = [line for text in scripts for line in text.splitlines() if "--array" in line]
    assert (len(arrays), len({*arrays})) == (2, 1), arrays
    for flags, said in (
        (("--on", "alpha,beta"), "a sweep runs on this machine or on a cluster, not on hosts"),
        (("--on", "slurm", "--gpus-each", "1"), "slurm: {gpus: 1}"),
    ):
        done = fdl(*flags, "sweep", "resume", "--retry", "failed")
        assert done.exit != 0
        assert said in done.err


def test_a_dry_run_of_a_job_is_one_json_document(program, slurm):
    program(COUNTS)
    shown = slurm("--dry-run", "--json", "train", "--lr", "0.2")
    assert shown.exit == 0, shown.err
    assert json.loads(shown.out)["argv"][-2:] == ["--lr", "0.2"]


def test_what_a_sweep_needs_runs_once_and_before_it(project, slurm):
    folder = project(
        {
            "fdl.yml": "slurm: {time: 60}\n"
            "commands:\n  data: {run: echo made >> made}\n  train: {needs: data}\n",
            "train/fdl.yml": f"entry: {sys.executable} train.py\n",
            "train/train.py": COUNTS,
        }
    )
    assert slurm("train", "--each", "lr=0.1,0.2").exit == 0
    assert (folder / "made").read_text() == "made\n"


def test_a_search_cannot_be_an_array(program, slurm):
    program(COUNTS)
    words = ("--search", "random", "--trials", "2", "--goal", "a:min", "train", "--each", "lr=1..2")
    done = slurm(*words)
    assert (done.exit, "leave out `--on slurm`" in done.err) == (1, True), done.err


@pytest.mark.slow
def test_an_interrupted_sweep_is_canceled_and_not_submitted_twice(program, cluster, tmp_path, fdl):
    folder = program(COUNTS)
    (tmp_path / "cluster/queue/hold").touch()
    process = started(["train", "--each", "lr=0.1,0.2"], folder.parent, cluster)
    with process:
        wait_for(lambda: list(tmp_path.glob(".fdl/slurm/*/101_1.json")))
        busy = subprocess.run(
            [sys.executable, "-c", TWICE.format(folder=str(tmp_path))],
            env={**os.environ, **cluster}, capture_output=True, text=True,
        )  # fmt: skip
        assert "lr=0.1 is job 101_0 in the queue" in busy.stdout, busy.stderr
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "canceled job 101" in err
    assert "2 of 2 runs are not finished" in err
    (tmp_path / "cluster/queue/hold").unlink()
    assert fdl("--on", "slurm", "sweep", "resume", env=cluster).exit == 0


TWICE = """
from pathlib import Path
from types import SimpleNamespace
from fdl.run.batch.slurm import _refuse_twice
from fdl.base.errors import FdlError
(folder,) = Path("{folder}/runs/train").glob("*/lr=0.1")
try:
    _refuse_twice([SimpleNamespace(name="lr=0.1", directory=str(folder))], "{folder}")
except FdlError as problem:
    print(problem.message)
"""
