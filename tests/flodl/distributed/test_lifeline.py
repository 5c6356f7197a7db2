"""Ranks end within seconds once what launched them is killed, and leave no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from flodl import checkpoint_metadata
from flodl.ranks.launch.launcher import _line_to, end_with_launcher
from tests.flodl.distributed.jobs import ROOT, runs
from tests.waiting import wait_for

PROGRAM = Path(__file__).parent / "programs" / "linger.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
WITHIN = 20.0
"""Seconds, on a machine that is busy; the launcher is looked at twice in one."""

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="processes have no parents elsewhere"),
    pytest.mark.timeout(180),
]


@contextmanager
def launched(folder: Path, command: list[str]) -> Iterator[psutil.Process]:
    """Start a launcher, and wait until two ranks train; whatever happens, nothing stays behind."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT
    )
    launcher = psutil.Process(process.pid)
    family: list[psutil.Process] = []
    try:
        wait_for(
            lambda: len(list(folder.glob("pid-*"))) == 2 or process.poll() is not None,
            seconds=90,
            what="the ranks have not begun",
        )
        assert process.poll() is None, (folder / "log").read_text()
        family = launcher.children(recursive=True)
        yield launcher
    finally:
        with suppress(psutil.NoSuchProcess):
            launcher.suspend()
            family += launcher.children(recursive=True)
        for one in [*family, launcher]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        log.close()


def kill_and_check(launcher: psutil.Process, folder: Path) -> None:
    """Kill the launcher; everything that it started ends, the processes of the loaders as well."""
    family = [one.pid for one in launcher.children(recursive=True)]
    ranks = [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    assert set(ranks) < set(family)
    assert all(psutil.Process(rank).children() for rank in ranks), "no rank has a loader process"
    launcher.kill()
    wait_for(
        lambda: not any(map(runs, family)),
        WITHIN,
        f"{[pid for pid in family if runs(pid)]} run on\n{(folder / 'log').read_text()}",
    )


@pytest.mark.slow
def test_ranks_of_a_killed_torchrun_end_with_a_checkpoint(tmp_path: Path) -> None:
    with launched(tmp_path, [*TORCHRUN, str(PROGRAM), str(tmp_path), "0.02"]) as launcher:
        kill_and_check(launcher, tmp_path)
        kept = next((tmp_path / "runs").glob("*/last.fdl"), None)
        assert kept is not None, (tmp_path / "log").read_text()
        assert int(checkpoint_metadata(kept)["epoch"]) == 0


@pytest.mark.slow
def test_ranks_that_hang_in_a_step_end_with_a_killed_torchrun(tmp_path: Path) -> None:
    with launched(tmp_path, [*TORCHRUN, str(PROGRAM), str(tmp_path), "600"]) as launcher:
        kill_and_check(launcher, tmp_path)


@pytest.mark.slow
def test_ranks_of_a_killed_program_that_started_them_end(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "600", "2"]
    with launched(tmp_path, command) as launcher:
        kill_and_check(launcher, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="who started torchrun is known from /proc")
@pytest.mark.parametrize("seconds", ["0.02", pytest.param("600", marks=pytest.mark.slow)])
def test_ranks_and_torchrun_end_with_a_killed_fdl(tmp_path: Path, seconds: str) -> None:
    entry = f"{sys.executable} {PROGRAM} {tmp_path} {seconds}"
    (tmp_path / "fdl.yml").write_text(
        f"entry: {entry}\ncommands: {{train: {{ddp: {{ranks: 2, max_restarts: 3}}}}}}\n"
    )
    with launched(tmp_path, [sys.executable, "-m", "fdl", "train"]) as launcher:
        kill_and_check(launcher, tmp_path)
        assert len(list(tmp_path.glob("pid-*"))) == 2, "the ranks were started again"


def test_a_rank_is_watched_only_where_its_launcher_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda _: pytest.fail("a thread was started"))
    end_with_launcher({"RANK": "0", "WORLD_SIZE": "2"})


@pytest.mark.skipif(sys.platform != "linux", reason="who started torchrun is known from /proc")
def test_the_line_of_processes_up_to_fdl_is_empty_where_fdl_is_not_above() -> None:
    above = psutil.Process(os.getppid()).ppid()
    assert _line_to(str(os.getppid()), os.getpid()) == [(os.getpid(), os.getppid())]
    if above > 1:
        line = [(os.getpid(), os.getppid()), (os.getppid(), above)]
        assert _line_to(str(above), os.getpid()) == line
    assert _line_to("999999999", os.getpid()) == []
    assert _line_to("", os.getpid()) == []
