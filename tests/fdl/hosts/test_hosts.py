"""``fdl --on HOST,HOST``: real ssh between two network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fdl.hosts.hosts import Hosts
from tests.waiting import wait_for

Make = Callable[..., Path]

ENTRY = f"entry: {sys.executable} main.py\n"
RANK = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if "--fail" in sys.argv and os.environ["RANK"] == "1":
    sys.exit("no more")
while "--wait" in sys.argv or "--fail" in sys.argv:
    time.sleep(0.1)
"""
TRAIN = {"fdl.yml": "commands:\n  train: {path: t}\n", "t/fdl.yml": ENTRY, "t/main.py": RANK}
SLEEP = {"fdl.yml": "commands:\n  nap: {run: 'echo at $(pwd); sleep 1000 & sleep 1000'}\n"}


class Typed:
    """fdl, while it runs: what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.texts = ["", ""]
        self._threads = [threading.Thread(target=self._read, args=(place,)) for place in (0, 1)]
        for thread in self._threads:
            thread.start()

    def _read(self, place: int) -> None:
        stream = (self.process.stdout, self.process.stderr)[place]
        assert stream is not None
        for line in stream:
            self.texts[place] += line

    def wait_for(self, text: str, seconds: float = 90) -> None:
        wait_for(lambda: text in "".join(self.texts) or self.process.poll() is not None, seconds)
        assert text in "".join(self.texts), self.texts

    def end(self) -> int:
        code = self.process.wait(90)
        for thread, stream in zip(
            self._threads, (self.process.stdout, self.process.stderr), strict=True
        ):
            thread.join()
            assert stream is not None
            stream.close()
        return code


def is_left(two: Hosts, name: str, word: str) -> bool:
    """Whether a process of a host has a word in its command line."""
    for pid in two.pids(name):
        try:
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def test_ranks_run_on_hosts_in_their_order_and_each_line_names_host_and_rank(
    two: Hosts, project: Make
) -> None:
    folder = project(TRAIN)
    code, out, err = two.fdl("train", "--on", "beta,alpha", cwd=folder)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["alpha | 1 | rank 1 of 2", "beta  | 0 | rank 0 of 2"]
    assert "beta   rank 0  ok" in err


def test_a_dry_run_shows_the_command_of_each_host_and_connects_to_none(
    two: Hosts, project: Make
) -> None:
    folder = project(TRAIN, beta=", gpus: 2")
    code, out, _ = two.fdl("--on", "alpha,beta", "-n", "train", cwd=folder)
    assert code == 0
    first, second = out.splitlines()
    assert first.endswith("fdl train --nodes 2 --rdzv HOST:PORT'  # host 0: alpha")
    assert "CUDA_VISIBLE_DEVICES=0,1 fdl train" in second


def test_a_plan_checks_the_hosts_and_shows_the_ranks(two: Hosts, project: Make) -> None:
    folder = project(TRAIN)
    code, _, err = two.fdl("plan", "--on", "alpha,beta", "train", cwd=folder)
    assert code == 0, err
    assert err.splitlines()[-2:] == ["rank 0  alpha  cpu", "rank 1  beta  cpu"]


def test_every_finding_of_every_host_has_the_command_that_mends_it(
    two: Hosts, project: Make
) -> None:
    folder = project(TRAIN, beta=", gpus: 4")
    (folder.parent / "beta/t/main.py").write_text("old")
    code, out, err = two.fdl("--on", "alpha,beta,gone", "train", cwd=folder)
    assert (code, out) == (1, "")
    assert "t/main.py differs from here (1 of 3 files)" in err
    assert "hint: beta: fdl --sync --on alpha,beta,gone train" in err
    assert "its name gone does not resolve to an address" in err
    assert "nothing was started: beta, gone cannot take part" in err


def test_a_folder_that_is_missing_is_made_by_sync(two: Hosts, project: Make) -> None:
    folder = project({"fdl.yml": "commands:\n  here: {run: pwd}\n"}, copied=False)
    (folder / "untracked").touch()
    code, _, err = two.fdl("--on", "beta", "here", cwd=folder)
    assert code == 1
    assert f"there is no folder {folder.parent}/beta" in err
    assert "fdl --sync --on beta here" in err
    code, out, err = two.fdl("here", "--on", "beta", "--sync", cwd=folder)
    assert (code, out) == (0, f"beta | {folder.parent}/beta\n"), err
    assert sorted(one.name for one in (folder.parent / "beta").iterdir()) == [".fdl", "fdl.yml"]


def test_a_missing_interpreter_is_named(two: Hosts, project: Make) -> None:
    folder = project(SLEEP)
    text = (folder / "fdl.yml").read_text().replace(sys.executable, ".venv/bin/python")
    (folder / "fdl.yml").write_text(text)
    (folder.parent / "beta/fdl.yml").write_text(text)
    code, _, err = two.fdl("--on", "beta", "nap", cwd=folder)
    assert code == 1
    assert f"there is no .venv/bin/python in {folder.parent}/beta" in err
    assert "python3 -m venv .venv" in err


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM, signal.SIGKILL],
)
def test_nothing_survives_on_a_host_when_fdl_ends(
    two: Hosts, project: Make, number: signal.Signals
) -> None:
    folder = project(SLEEP)
    typed = Typed(two.popen("--on", "beta", "nap", cwd=folder))
    typed.wait_for(f"at {folder.parent}/beta")
    os.kill(typed.process.pid, number)
    code = typed.end()
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not is_left(two, "beta", "sleep"), 60)
    wait_for(lambda: not is_left(two, "beta", "fdl"), 60)


@pytest.mark.slow
def test_one_rank_that_fails_ends_all_hosts(two: Hosts, project: Make) -> None:
    folder = project(TRAIN)
    code, out, err = two.fdl("train", "--on", "alpha,beta", "--fail", cwd=folder)
    assert code == 1
    assert "beta  | 1 | no more" in err
    assert "beta (rank 1): it has failed with exit code 1; fdl ends alpha" in err
    assert "hint: fdl --on alpha,beta train --fail" in err
    assert "rank 0 of 2" in out
    wait_for(lambda: not is_left(two, "alpha", "main.py"), 60)


def test_a_sweep_does_not_run_on_hosts(two: Hosts, project: Make) -> None:
    folder = project(TRAIN)
    code, _, err = two.fdl("--on", "beta", "train", "--each", "lr=1,2", cwd=folder)
    assert code == 1
    assert "a sweep runs on this machine or on a cluster" in err
