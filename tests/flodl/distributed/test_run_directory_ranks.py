from __future__ import annotations

import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flodl.errors import RunDirectoryError, WorkersFailed
from flodl.monitor import EpochMetrics, Monitor
from flodl.ranks.launch.start_ranks import launch_ranks
from flodl.train import RunDirectory
from flodl.train.run import run_directory, run_records
from tests.flodl.train.programs import training


def launched(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """Become a process that torchrun has just started."""
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29501",
        "TORCHELASTIC_RUN_ID": "night",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    for name, value in {**environ, **changes}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(run_records, "_runs", Counter())


def record_of(run: RunDirectory) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run.path / "run.json").read_text())
    return record


def end_process(run: RunDirectory) -> None:
    """Let the run look as if its process had been killed."""
    record = record_of(run)
    record["pid"] = 2**22 + 1
    (run.path / "run.json").write_text(json.dumps(record))


def test_only_rank_0_makes_a_folder_and_records_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch)
    first = RunDirectory.create(tmp_path, config={"lr": 0.1})
    launched(monkeypatch, RANK="1", LOCAL_RANK="1")
    second = RunDirectory.create(tmp_path, config={"lr": 0.1})
    assert (first.writes, second.writes) == (True, False)
    assert [folder.name for folder in tmp_path.iterdir()] == [first.path.name]
    assert second.path == first.path
    assert second.config == first.config == {"lr": 0.1}
    assert (record_of(first)["launch"], record_of(first)["restarts"]) == ("night", 0)


def test_the_object_of_another_rank_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch)
    first = RunDirectory.create(tmp_path)
    launched(monkeypatch, RANK="1", LOCAL_RANK="1")
    second = RunDirectory.create(tmp_path)
    run_directory._programs[first.path].wait()
    before = {path.name: path.read_bytes() for path in first.path.iterdir()}
    monitor = Monitor(1)
    second.attach(monitor)
    monitor.log(0, 1.0, EpochMetrics(0, 1.0, {}, 1.0, 1.0, [1.0]))
    monitor.finish()
    second.add_environment({"engine": "eager"})
    second.add_record({"samples": 3})
    second.finish("complete", epochs=3)
    with pytest.raises(KeyError), second:
        raise KeyError("mine")
    assert second.resume_source() is None
    assert {path.name: path.read_bytes() for path in first.path.iterdir()} == before


def test_another_rank_waits_for_the_folder_of_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, MASTER_PORT="29500")
    RunDirectory.create(tmp_path)  # by an earlier launch of the same name
    launched(monkeypatch, RANK="1", LOCAL_RANK="1")
    second = RunDirectory.create(tmp_path)
    paths: list[Path] = []
    waiting = threading.Thread(target=lambda: paths.append(second.path))
    waiting.start()
    time.sleep(0.2)
    assert not paths
    launched(monkeypatch)
    first = RunDirectory.create(tmp_path)
    waiting.join(timeout=30)
    assert paths == [first.path]


def test_a_folder_that_cannot_be_seen_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, RANK="1", LOCAL_RANK="1")
    monkeypatch.setattr(run_directory, "_PATIENCE", 0.1)
    with pytest.raises(RunDirectoryError, match="FLODL_RUN_DIR"):
        _ = RunDirectory.create(tmp_path).path
    monkeypatch.setenv("FLODL_RUN_DIR", str(tmp_path / "there"))
    assert RunDirectory.create(tmp_path).path == tmp_path / "there"


@pytest.mark.parametrize("run_id", ["night", "none"], ids=["named", "nameless"])
def test_a_restart_goes_on_in_the_same_folder_from_its_own_checkpoint(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, TORCHELASTIC_RUN_ID=run_id)
    source = tmp_path / "before.fdl"
    source.touch()
    run = RunDirectory.create(tmp_path / "runs", resume=source)
    started = record_of(run)["started"]
    run.finish("interrupted", epochs=1, error="stopped with the others")

    launched(monkeypatch, TORCHELASTIC_RUN_ID=run_id, TORCHELASTIC_RESTART_COUNT="1")
    again = RunDirectory.create(tmp_path / "runs", resume=source)
    assert again.path == run.path
    assert again.resume_source() == source  # it had written no checkpoint of its own
    assert again.restart_source() is None
    record = record_of(again)
    assert (record["state"], record["error"], record["finished"]) == ("running", None, None)
    assert (record["restarts"], record["started"]) == (1, started)

    run.last_checkpoint.touch()
    launched(monkeypatch, TORCHELASTIC_RUN_ID=run_id, TORCHELASTIC_RESTART_COUNT="2")
    third = RunDirectory.create(tmp_path / "runs", resume=source)
    assert third.resume_source() == third.restart_source() == run.last_checkpoint
    assert record_of(third)["restarts"] == 2


def test_several_runs_of_one_program_are_told_apart_by_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch)
    runs = [RunDirectory.create(tmp_path) for _ in range(2)]
    runs[0].finish("complete", epochs=1)
    launched(monkeypatch, TORCHELASTIC_RESTART_COUNT="1")
    again = [RunDirectory.create(tmp_path).path for _ in range(3)]
    assert again[:2] == [run.path for run in runs]
    assert again[2] not in again[:2]


def test_a_job_that_starts_anew_under_its_name_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch)
    run = RunDirectory.create(tmp_path, config={"lr": 0.1})
    end_process(run)
    launched(monkeypatch)
    again = RunDirectory.create(tmp_path, config={"lr": 0.1})
    assert again.path == run.path
    assert record_of(again)["restarts"] == 1
    assert record_of(again)["pid"] == os.getpid()


@pytest.mark.parametrize("why", ["complete", "alive", "configured otherwise", "nameless"])
def test_a_run_that_is_not_to_go_on_is_left_alone(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "none" if why == "nameless" else "night"
    launched(monkeypatch, TORCHELASTIC_RUN_ID=name)
    run = RunDirectory.create(tmp_path, config={"lr": 0.1})
    if why == "complete":
        run.finish("complete", epochs=1)
    if why != "alive":
        end_process(run)
    before = record_of(run)
    launched(monkeypatch, TORCHELASTIC_RUN_ID=name)
    other = RunDirectory.create(tmp_path, config={"lr": 0.2 if "otherwise" in why else 0.1})
    assert other.path != run.path
    assert record_of(run) == before


def test_a_run_directory_can_be_sent_to_the_ranks(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={"lr": {"value": 0.1, "origin": "fdl.yml:1:2"}})
    sent: RunDirectory = pickle.loads(pickle.dumps(run))
    assert (sent.path, sent.config, sent.writes) == (run.path, run.config, True)
    other = sent.for_rank(1)
    assert (other.path, other.config, other.writes) == (run.path, run.config, False)
    assert sent.for_rank(0) is sent


@pytest.mark.parametrize("state", ["interrupted", "failed"])
def test_the_failure_of_a_rank_takes_the_place_of_what_it_did_to_rank_0(
    state: Any, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path)
    sent: RunDirectory = pickle.loads(pickle.dumps(run))
    sent.add_record({"restarts": 2})
    sent.finish(state, epochs=3, error="Connection closed by peer")
    run.fail(WorkersFailed("rank 1 ended with signal SIGKILL\n\nOn rank 1: …", rank=1))
    record = record_of(run)
    assert (record["state"], record["epochs"], record["restarts"]) == ("failed", 3, 2)
    assert record["error"] == "rank 1 ended with signal SIGKILL"
    run.fail(ValueError("later"))
    assert record_of(run) == record


def train_and_vanish_once(run: RunDirectory) -> list[float]:
    """Three epochs; the first start is killed in the third, when two are on the disk."""
    mine = run.for_rank(0)

    def vanish(epoch: int, worker: object) -> None:
        del worker
        if epoch == 2 and mine.restart_source() is None:
            limit = time.monotonic() + 30
            while not _has_rows(mine.path / "metrics.csv", 2) or not mine.last_checkpoint.exists():
                assert time.monotonic() < limit
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    handle = training(epochs=3).run_dir(mine).epoch_fn(vanish).run()
    return [metrics.avg_loss for metrics in handle.poll_metrics()]


def _has_rows(path: Path, count: int) -> bool:
    return path.exists() and len(path.read_text().splitlines()) == count + 1


@pytest.mark.slow
def test_a_restart_neither_loses_nor_doubles_an_epoch(tmp_path: Path) -> None:
    whole = training(epochs=3).run_dir(RunDirectory.create(tmp_path / "whole")).run()
    run = RunDirectory.create(tmp_path / "runs")
    losses = launch_ranks(train_and_vanish_once, (run,), 1, max_restarts=1)[0]
    assert losses == [metrics.avg_loss for metrics in whole.poll_metrics()]
    record = record_of(run)
    assert (record["state"], record["epochs"], record["restarts"]) == ("complete", 3, 1)
    assert record["launch"]
    with (run.path / "metrics.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    log = (run.path / "training.log").read_text().splitlines()
    assert [line.split()[1] for line in log if line.startswith("epoch")] == ["1/3", "2/3", "3/3"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.path.name]


PROGRAM = """
import os, sys, time
from pathlib import Path
from flodl.train import RunDirectory

run = RunDirectory.create(sys.argv[1], config={"lr": 0.1})
path = run.path
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        sys.exit(1)
    (path / "last.fdl").touch()
    time.sleep(60)
print(os.environ["RANK"], run.writes, path.name, run.resume_source())
if run.writes:
    run.finish("complete", epochs=1)
time.sleep(0.5)
"""


@pytest.mark.slow
def test_torchrun_restarts_all_ranks_into_one_folder(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    runs = tmp_path / "runs"
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(program), str(runs)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = runs.iterdir()
    assert sorted(done.stdout.splitlines()) == [
        f"0 True {folder.name} {folder / 'last.fdl'}",
        f"1 False {folder.name} None",
    ]
    record = json.loads((folder / "run.json").read_text())
    assert (record["state"], record["restarts"]) == ("complete", 1)
    assert datetime.fromisoformat(record["started"]) <= datetime.fromisoformat(record["finished"])
