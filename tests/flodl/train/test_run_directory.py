from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import torch

from flodl import log
from flodl.checkpoint import checkpoint_metadata, load_checkpoint_file
from flodl.errors import RunDirectoryError
from flodl.monitor import Monitor
from flodl.train import RunDirectory
from flodl.train.environment import git_commit

from .programs import network, training

NOBODY = 65534


def noon() -> datetime:
    return datetime(2026, 3, 1, 12, 30, 5)


def test_a_new_run_records_its_configuration_and_surroundings(tmp_path: Path) -> None:
    config = {"lr": {"value": 0.1, "origin": "train/fdl.yml:9:13"}, "data": tmp_path, "n": (1, 2)}
    run = RunDirectory.create(tmp_path / "runs", config=config, clock=noon)
    assert run.path == tmp_path / "runs" / "2026-03-01T12-30-05"
    assert sorted(p.name for p in run.path.iterdir()) == [
        "config.json",
        "environment.json",
        "run.json",
    ]
    assert json.loads((run.path / "config.json").read_text()) == {
        "lr": {"value": 0.1, "origin": "train/fdl.yml:9:13"},
        "data": str(tmp_path),
        "n": [1, 2],
    }
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["memory"] > 0
    assert {"python", "platform", "cpu", "cuda_devices", "flodl", "git_commit"} <= set(environment)
    record = json.loads((run.path / "run.json").read_text())
    assert record["state"] == "running"
    assert record["started"].startswith("2026-03-01T12:30:05")
    assert record["finished"] is None


def test_runs_of_the_same_second_get_names_of_their_own(tmp_path: Path) -> None:
    names = [RunDirectory.create(tmp_path, clock=noon).path.name for _ in range(3)]
    assert names == ["2026-03-01T12-30-05", "2026-03-01T12-30-05-2", "2026-03-01T12-30-05-3"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_a_name_taken_by_a_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "2026-03-01T12-30-05").write_text("mine")
    assert RunDirectory.create(tmp_path, clock=noon).path.name == "2026-03-01T12-30-05-2"
    assert (tmp_path / "2026-03-01T12-30-05").read_text() == "mine"


def test_a_complete_training_leaves_its_whole_trail(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={"lr": 0.1})
    handle = training(epochs=3).run_dir(run).run()

    record = json.loads((run.path / "run.json").read_text())
    assert (record["state"], record["epochs"], record["error"]) == ("complete", 3, None)
    assert datetime.fromisoformat(record["finished"]) >= datetime.fromisoformat(record["started"])
    for name in ("last.fdl", "model.fdl"):
        model = network()
        report = load_checkpoint_file(
            run.path / name, model.named_parameters(), model.named_buffers()
        )
        assert report.missing == []
        trained = handle.model.state_dict()
        assert all(torch.equal(t, trained[key]) for key, t in model.state_dict().items())
    facts = checkpoint_metadata(run.path / "model.fdl")
    assert facts["epoch"] == "3"
    assert json.loads(facts["metrics"])["loss"] == handle.poll_metrics()[-1].avg_loss

    table = (run.path / "metrics.csv").read_text().splitlines()
    assert table[0].startswith("epoch,duration_s,loss,")
    assert len(table) == 4
    assert "training complete" in (run.path / "training.log").read_text()
    page = (run.path / "report.html").read_text()
    assert run.path.name in page
    assert not [p for p in run.path.iterdir() if p.name.startswith(".")]


def test_every_checkpoint_carries_the_configuration_of_its_run(tmp_path: Path) -> None:
    config = {
        "lr": {"value": 0.1, "origin": "train/fdl.yml:9:13", "field": "training.lr"},
        "data": {"value": tmp_path, "origin": "command line"},
    }
    run = RunDirectory.create(tmp_path / "runs", config=config)
    training(epochs=1).run_dir(run).run()
    recorded = json.loads((run.path / "config.json").read_text())
    assert recorded["data"]["value"] == str(tmp_path)
    for name in ("last.fdl", "model.fdl"):
        assert json.loads(checkpoint_metadata(run.path / name)["config"]) == recorded
    bare = RunDirectory.create(tmp_path / "bare")
    training(epochs=1).run_dir(bare).run()
    assert "config" not in checkpoint_metadata(bare.path / "model.fdl")


def test_a_monitor_of_ones_own_writes_into_the_run_directory_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path)
    training().run_dir(run).monitor(Monitor(2)).run()
    assert "epoch 2/2  loss=" in capfd.readouterr().out
    assert "epoch 2/2  loss=" in (run.path / "training.log").read_text()


def test_without_a_monitor_the_epochs_are_told_and_quiet_silences_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training().run_dir(RunDirectory.create(tmp_path)).run()
    said = capfd.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["epoch", "epoch", "training"]
    assert said.err == ""
    monkeypatch.setattr(log, "_level", log.Verbosity.QUIET)
    training().run_dir(RunDirectory.create(tmp_path)).run()
    assert capfd.readouterr() == ("", "")


def test_checkpoints_are_kept_as_often_as_asked(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    training(epochs=5).checkpoint_every(2).run_dir(run).run()
    assert checkpoint_metadata(run.path / "last.fdl")["epoch"] == "4"
    assert checkpoint_metadata(run.path / "model.fdl")["epoch"] == "5"


def test_a_failing_training_is_recorded_with_its_error(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    with pytest.raises(ZeroDivisionError):
        training(lambda *_: 1 / 0).run_dir(run).run()
    record = json.loads((run.path / "run.json").read_text())
    assert record["state"] == "failed"
    assert record["error"] == "ZeroDivisionError: division by zero"


def test_an_error_before_the_training_is_recorded_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size"), RunDirectory.create(tmp_path) as run:
        training().run_dir(run).batch_size(0)
    record = json.loads((run.path / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("failed", 0)
    assert record["error"].startswith("ValueError: batch_size=0")


def test_the_context_leaves_alone_what_the_trainer_recorded(tmp_path: Path) -> None:
    def fails_later() -> None:
        with run:
            training().run_dir(run).run()
            raise OSError("after the training")

    run = RunDirectory.create(tmp_path)
    with pytest.raises(OSError, match="after"):
        fails_later()
    assert json.loads((run.path / "run.json").read_text())["state"] == "complete"


def test_a_folder_that_vanishes_does_not_stop_the_epochs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "runs")
    epochs: list[int] = []

    def remove(epoch: int, _: object) -> None:
        epochs.append(epoch)
        if epoch == 1:
            shutil.rmtree(run.path)
            run.path.write_text("in the way")

    with pytest.raises(RuntimeError, match=r"cannot write checkpoint .*model\.fdl"):
        training(epochs=3).epoch_fn(remove).run_dir(run).run()
    assert epochs == [0, 1, 2]
    assert "last.fdl" in capfd.readouterr().err


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A folder that this process cannot write, also when the tests run as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_root_that_cannot_be_written_is_refused_before_any_training(sealed: Path) -> None:
    for root in (sealed, sealed / "runs"):
        with pytest.raises(RunDirectoryError) as refusal:
            RunDirectory.create(root)
        assert f"cannot write the run directory {root}: Permission denied" in str(refusal.value)
        assert "make it writable or choose another output directory" in str(refusal.value)
    assert list(sealed.iterdir()) == []


def test_a_file_in_the_way_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("mine")
    for root in (tmp_path / "runs", tmp_path / "runs" / "deeper"):
        with pytest.raises(RunDirectoryError, match="a file is in the way: remove it or choose"):
            RunDirectory.create(root)
    assert (tmp_path / "runs").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_the_commit_is_read_without_starting_git(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert git_commit(inner) is None  # a repository without a commit
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{commit} refs/heads/main\n")
    assert git_commit(inner) == commit
    (git / "refs/heads/main").write_text("f" * 40 + "\n")
    assert git_commit(inner) == "f" * 40
    (git / "HEAD").write_text(commit + "\n")
    assert git_commit(inner) == commit


def test_under_fdl_a_relative_root_counts_from_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path / "train")
    monkeypatch.setenv("FDL_PROJECT_ROOT", str(tmp_path))
    assert RunDirectory.create("runs/a").path.parent == tmp_path / "runs/a"
    assert RunDirectory.create(tmp_path / "b").path.parent == tmp_path / "b"
    monkeypatch.delenv("FDL_PROJECT_ROOT")
    assert RunDirectory.create("runs").path.parent == Path("runs")
