"""``fdl --on slurm``, on a real cluster of three nodes, with and without accounting."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.fdl.batch.test_slurm import COUNTS, WAITS, started
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


class Call:
    """A call of fdl that goes on meanwhile; its job runs."""

    def __init__(self, real, folder, *words, running=True):
        self.real, self.folder = real, folder
        self.process = started(words or ["train"], folder.parent, real.variables)
        self.said = self.process.stderr.readline()
        self.job = re.search(r"job (\d+)", self.said)[1]
        if running:
            wait_for((folder / "ready").exists)

    def ends(self, seconds=60):
        """Its exit code and its messages; soon after the event that ends it."""
        began = time.monotonic()
        with self.process:
            _, err = self.process.communicate(timeout=seconds)
        print(f"noticed after {time.monotonic() - began:.1f} s")
        return self.process.returncode, self.said + err


def test_output_and_exit_code_of_a_job(real, project, fdl):
    manifest = "commands: {t: {run: 'echo on $SLURM_JOB_ID; echo bad >&2; exit 7'}}\n"
    folder = project({"a b/fdl.yml": f"slurm: {{time: 60}}\n{manifest}"})
    done = fdl("--on", "slurm", "t", cwd=folder / "a b", env=real.variables)
    assert done.exit == 7, done.err
    assert re.fullmatch(r"on \d+\n", done.out)
    assert "bad\n" in done.err
    assert "sacct" not in done.err.lower()
    assert "accounting" not in done.err.lower()


def test_what_sbatch_refuses(real, program, fdl):
    program(COUNTS, "slurm: {partition: nowhere}\n")
    done = fdl("--on", "slurm", "train", env=real.variables)
    assert done.exit == 1
    assert "train/fdl.yml:2:8: sbatch refused the job: " in done.err
    assert "invalid partition name" in done.err.lower()


def test_a_job_that_somebody_cancels(real, program):
    call = Call(real, program(WAITS))
    real.run("scancel", call.job)
    code, err = call.ends()
    assert code == 130, err
    assert f"job {call.job} was ended by the cluster: CANCELLED" in err


def test_an_interrupt_cancels_the_job(real, program):
    call = Call(real, program(WAITS))
    call.process.send_signal(signal.SIGINT)
    code, err = call.ends()
    assert code == 130
    assert f"canceled job {call.job}" in err
    wait_for(lambda: real.state(call.job) == "CANCELLED")


def test_a_job_whose_nodes_another_one_needs_is_over(real, program):
    call = Call(real, program(WAITS, "slurm: {partition: cancel}\n"))
    real.take_all_nodes("urgent")
    code, err = call.ends()
    assert code == 1, err
    assert f"job {call.job} was ended by the cluster: PREEMPTED" in err


def test_a_job_that_is_queued_again_goes_on(real, program):
    text = "import os, time\nopen('ready', 'a').write('.')\n"
    text += "time.sleep(0 if os.environ.get('SLURM_RESTART_COUNT') else 60)\n"
    call = Call(real, program(text, "slurm: {partition: requeue}\n"))
    real.take_all_nodes("urgent")
    code, err = call.ends(120)
    assert code == 0, err
    assert f"job {call.job} waits: BeginTime" in err
    assert (call.folder / "ready").read_text() == ".."


IGNORES = """
import signal, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready", "w")
time.sleep(600)
"""


# SLURM looks at limits once in a minute, and gives the program half a minute more.
@pytest.mark.timeout(500)
def test_a_job_at_its_time_limit(plain_cluster, program):
    call = Call(plain_cluster, program(IGNORES, "slurm: {time: 2}\n"))
    code, err = call.ends(400)
    assert code == 1, err
    assert f"job {call.job} was ended by the cluster: TIMEOUT" in err


def test_a_suspended_job_has_not_ended(real, program):
    call = Call(real, program("import time\nopen('ready', 'w')\ntime.sleep(3)\n"))
    real.run("scontrol", "suspend", call.job)
    lines = iter(call.process.stderr.readline, "")
    assert any(f"job {call.job} is suspended" in line for line in lines)
    real.run("scontrol", "resume", call.job)
    code, err = call.ends()
    assert code == 0, err


def test_a_node_that_fails(plain_cluster, program):
    text = "import os, time\nopen('ready', 'a').write(os.environ['SLURMD_NODENAME'] + chr(10))\n"
    text += "time.sleep(0 if os.environ.get('SLURM_RESTART_COUNT') else 60)\n"
    call = Call(plain_cluster, program(text))
    first = wait_for(lambda: (call.folder / "ready").read_text().split())[0]
    plain_cluster.lose(first)
    try:
        code, err = call.ends(120)
        assert code == 0, err
        assert len(set((call.folder / "ready").read_text().split())) == 2
    finally:
        plain_cluster.repair(first)


def test_a_job_that_the_cluster_has_forgotten(real, program):
    call = Call(real, program(WAITS))
    call.process.send_signal(signal.SIGSTOP)
    real.run("scancel", call.job)
    wait_for(lambda: call.job not in real.run("squeue", "-h", "--states=all"), 120)
    call.process.send_signal(signal.SIGCONT)
    code, err = call.ends()
    if "accounting_storage/slurmdbd" in real.run("scontrol", "show", "config"):
        assert (code, "ended by the cluster: CANCELLED" in err) == (130, True), err
    else:
        assert (code, "is no longer in the queue, and has left no result" in err) == (1, True), err


def test_a_full_queue_and_a_call_that_was_killed(real, program, fdl):
    def queued():
        return json.loads(fdl("runs", "list", "--json", env=real.variables).out)["queued"]

    for node in ("node1", "node2", "node3"):
        real.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        call = Call(real, program("open('done', 'w')\n"), running=False)
        lines = iter(call.process.stderr.readline, "")
        assert any(f"job {call.job} waits: " in line for line in lines)
        call.process.kill()
        call.ends()
        (one,) = queued()
        assert (one["id"], one["state"], one["name"]) == (call.job, "PENDING", "train")
        assert one["reason"]
    finally:
        for node in ("node1", "node2", "node3"):
            real.run("scontrol", "update", f"nodename={node}", "state=resume")
    wait_for((call.folder / "done").exists)
    wait_for(lambda: not queued())


def test_a_sweep_with_a_failure_and_a_suspended_run(real, program):
    text = "import argparse, pathlib, time\nparser = argparse.ArgumentParser()\n"
    text += "parser.add_argument('--lr', type=float, default=0.1)\n"
    text += "lr = parser.parse_args().lr\npathlib.Path('ready').touch()\n"
    text += "time.sleep(4)\nraise SystemExit(3 if lr == 0.3 else 0)\n"
    call = Call(real, program(text), "train", "--each", "lr=0.1,0.2,0.3")
    real.run("scontrol", "suspend", f"{call.job}_0")
    # The others end meanwhile.
    lines = [call.process.stderr.readline() for _ in range(2)]
    assert sorted(line.split(": ")[1] for line in lines) == ["done\n", "failed\n"], lines
    real.run("scontrol", "resume", f"{call.job}_0")
    code, err = call.ends()
    assert code == 3, err
    assert "2 of 3 runs done" in err


ONE_FAILS = """
import os, sys, time
open("ready", "w")
if os.environ["RANK"] == "1":
    time.sleep(2)
    sys.exit(3)
time.sleep(300)
"""


def test_two_nodes_are_free_soon_after_one_rank_has_failed(real, program):
    call = Call(real, program(ONE_FAILS, "slurm: {nodes: 2}\nddp: {ranks: 1, max_restarts: 0}\n"))
    code, err = call.ends(120)
    assert code == 3, err
    assert real.state(call.job) in ("FAILED", "CANCELLED")
    wait_for(real.is_idle, 10)


def test_the_scaffold_trains_on_two_nodes(plain_cluster, fdl, tmp_path):
    assert fdl("init", "demo", env=plain_cluster.variables).exit == 0
    manifest = tmp_path / "demo/fdl.yml"
    manifest.write_text(manifest.read_text() + "\nslurm: {time: 10, nodes: 2}\nddp: {ranks: 1}\n")
    done = fdl("--on", "slurm", "train", cwd="demo", env=plain_cluster.variables, timeout=300)
    assert done.exit == 0, done.err
    (record,) = (tmp_path / "demo/runs").glob("**/run.json")
    assert json.loads(record.read_text())["state"] == "complete"


SHOWS_NODE = """
import os, sys
node = os.environ["SLURMD_NODENAME"]
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", node, flush=True)
if "--fail" in sys.argv and os.environ["RANK"] == "2":
    sys.exit(3)
"""
UNEQUAL = (
    "slurm: {cpus: 4, het: [{nodes: 1}, {nodes: 2, cpus: 2}]}\nddp: {ranks: 1, max_restarts: 0}\n"
)


def test_a_job_of_unequal_nodes(real, program, fdl):
    program(SHOWS_NODE, UNEQUAL)
    done = fdl("--on", "slurm", "train", env=real.variables, timeout=120)
    assert done.exit == 0, done.err
    lines = sorted(line for line in done.out.splitlines() if "of 3 on" in line)
    assert [line.split()[1] for line in lines] == ["0", "1", "2"], done.out
    assert len({line.split()[5] for line in lines}) == 3
    failed = fdl("--on", "slurm", "train", "--", "--fail", env=real.variables, timeout=120)
    assert failed.exit == 3, failed.err


def test_an_interrupt_cancels_all_components_of_a_job(real, program):
    call = Call(real, program(WAITS, UNEQUAL))
    call.process.send_signal(signal.SIGINT)
    code, err = call.ends()
    assert code == 130, err
    assert f"canceled job {call.job}" in err
    wait_for(real.is_idle, 90)
