"""What fdl says when a host or its network fails: one paragraph, provoked for real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fdl.hosts.hosts import ROOT, Hosts
from tests.fdl.hosts.test_hosts import TRAIN, Typed, is_left
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

Make = Callable[..., Path]
ALPHA = "10.213.77.1"

LISTENS = "import socket, sys; s = socket.create_server(('', 29411)); print(flush=True); s.accept()"


def refused(two: Hosts, folder: Path, hosts: str = "alpha,beta") -> str:
    """What fdl prints instead of starting a training, in one line."""
    code, out, err = two.fdl("--on", hosts, "train", cwd=folder)
    assert (code, out) == (1, ""), err
    assert "Traceback" not in err
    return re.sub(r"\s+", " ", err)


def test_a_busy_port(two: Hosts, project: Make) -> None:
    folder = project(TRAIN, alpha=f", meet: '{ALPHA}:29411'")
    words = [*two.hosts["alpha"].within, sys.executable, "-c", LISTENS]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        said = refused(two, folder)
        program.kill()
    assert "alpha rank 0 port port 29411 of 10.213.77.1 is in use by another program" in said
    assert "hint: alpha: ssh alpha" in said
    assert "ss -ltnp" in said


def test_a_wrong_address(two: Hosts, project: Make) -> None:
    said = refused(two, project(TRAIN, alpha=", meet: '10.9.9.9:29411'"))
    assert "alpha rank 0 address 10.9.9.9 is not an address of this host: ssh reached it" in said
    assert "hint: alpha: correct `meet: 10.9.9.9:29411` of `hosts: alpha`" in said


def test_a_name_that_does_not_resolve(two: Hosts, project: Make) -> None:
    said = refused(two, project(TRAIN), "alpha,gone")
    assert "gone from rank 1 ssh its name gone does not resolve to an address" in said
    assert "hint: gone: getent hosts gone" in said


@pytest.mark.slow
def test_a_host_without_a_route(two: Hosts, project: Make) -> None:
    said = refused(two, project(TRAIN), "alpha,10.88.0.1")
    assert "10.88.0.1 from rank 1 ssh there is no route to 10.88.0.1" in said
    assert "hint: 10.88.0.1: ip route get 10.88.0.1" in said


@pytest.mark.slow
def test_another_version_of_a_package(two: Hosts, project: Make, tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "torch-1.0.dist-info").mkdir(parents=True)
    (old / "torch-1.0.dist-info/METADATA").write_text("Name: torch\nVersion: 1.0\n")
    folder = project(TRAIN)
    told = f"PYTHONPATH: {ROOT}}}"
    for name in ("alpha", "beta"):
        manifest = tmp_path / name / "fdl.yml"
        head, _, tail = manifest.read_text().rpartition(told)
        manifest.write_text(f"{head}PYTHONPATH: '{old}:{ROOT}'}}{tail}")
    said = refused(two, folder)
    assert re.search(r"beta rank 1 packages torch is 1\.0 here and 2\S+ on alpha", said)
    assert "-m pip install torch==2" in said


@pytest.mark.parametrize(
    ("meeting", "promised"),
    [
        ("gone.invalid:29411", "the name gone.invalid, where the machines meet, does not resolve"),
        pytest.param(
            "10.88.0.1:29411",
            "there is no route to 10.88.0.1:29411, where the machines meet",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_launcher_of_ones_own_says_why_it_cannot_meet_the_others(
    two: Hosts, project: Make, meeting: str, promised: str
) -> None:
    code, _, err = two.fdl("train", "--nodes", "2", "--rdzv", meeting, cwd=project(TRAIN))
    assert code == 1
    assert promised in err
    assert "hint: " in err
    assert "Traceback" not in err


@pytest.fixture
def training(two: Hosts, project: Make) -> Typed:
    """Two ranks that wait."""
    folder = project(TRAIN)
    typed = Typed(two.popen("--on", "alpha,beta", "train", "--wait", cwd=folder))
    for rank in (0, 1):
        typed.wait_for(f"rank {rank} of 2")
    return typed


@pytest.mark.slow
def test_a_killed_rank(two: Hosts, training: Typed) -> None:
    for pid in two.pids("beta"):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"main.py" in words and b"-u" in words[1:2]:
            os.kill(pid, signal.SIGKILL)
    training.wait_for("fdl ends alpha")
    assert training.end() == 137
    said = training.texts[1]
    assert "beta (rank 1): rank 1 was ended by SIGKILL: the memory may be full" in said
    assert "dmesg | tail -n 3" in said
    wait_for(lambda: not is_left(two, "alpha", "main.py"), 60)


@pytest.mark.slow
def test_a_stalled_rank(two: Hosts, training: Typed) -> None:
    (pid,) = [
        pid
        for pid in two.pids("beta")
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-u", b"main.py"]
    ]
    os.kill(pid, signal.SIGSTOP)
    training.wait_for("rank 1 is stalled")
    assert f"kill -CONT {pid}" in training.texts[1]
    os.kill(pid, signal.SIGCONT)
    os.kill(training.process.pid, signal.SIGINT)
    assert training.end() == 130


def test_a_killed_host(two: Hosts, training: Typed) -> None:
    two.kill("beta")
    try:
        assert training.end() == 1
    finally:
        two.start("beta")
    assert "beta (rank 1): the connection has ended with code 255" in training.texts[1]
    assert "hint: ssh beta uptime" in training.texts[1]
    wait_for(lambda: not is_left(two, "alpha", "main.py"), 60)


@pytest.mark.slow
def test_a_stalled_host(two: Hosts, training: Typed) -> None:
    two.signal("beta", signal.SIGSTOP)
    try:
        training.wait_for("it has said nothing for 12 s")
    finally:
        two.signal("beta", signal.SIGCONT)
    assert training.end() == 1
    assert "beta (rank 1): it has said nothing for 12 s: the host hangs" in training.texts[1]
    assert "hint: ping -c 1 beta" in training.texts[1]


@pytest.mark.slow
def test_a_late_host(two: Hosts, project: Make) -> None:
    late = "  late: {run: 'case $PWD in */beta) sleep 1000;; esac'}\n"
    files = {**TRAIN, "fdl.yml": f"commands:\n{late}  train: {{path: t, needs: late}}\n"}
    typed = Typed(two.popen("--on", "alpha,beta", "train", cwd=project(files)))
    typed.wait_for("beta (rank 1): it has not joined after 20 s, and alpha (rank 0) waits for it")
    os.kill(typed.process.pid, signal.SIGINT)
    assert typed.end() == 130
    assert "ps -fu" in typed.texts[1]
    wait_for(lambda: not is_left(two, "beta", "sleep"), 60)
