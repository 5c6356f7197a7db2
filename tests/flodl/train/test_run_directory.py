from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
import torch

from flodl import log
from flodl.checkpoint import checkpoint_metadata, load_checkpoint_file
from flodl.environment import git_commit
from flodl.errors import RunDirectoryError
from flodl.monitor import Monitor
from flodl.train import RunDirectory

from .programs import network, training

NOBODY = 65534


def noon() -> datetime:
    return datetime(2026, 3, 1, 12, 30, 5)


def test_a_new_run_records_its_configuration_and_surroundings(tmp_path: Path) -> None:
    config = {"lr": {"value": 0.1, "origin": "train/fdl.yml:9:13"}, "data": tmp_path, "n": (1, 2)}
    run = RunDirectory.create(tmp_path / "runs", config=config, clock=noon)
    assert run.path == tmp_path / "runs" / "2026-03-01T12-30-05"
    assert {"config.json", "environment.json", "run.json"} <= {p.name for p in run.path.iterdir()}
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
    assert " epochs in " in (run.path / "training.log").read_text()
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
    run = RunDirectory.create(tmp_path)
    training().run_dir(run).run()
    said = capfd.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == [
        "epoch",
        "epoch",
        "2",
        "time:",
    ]
    assert said.out.splitlines()[2].startswith("  2 epochs in ")
    assert said.out.splitlines()[2].endswith(f", {run.typed}")
    assert run.path.samefile(run.typed)
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
            # Again where the checkpoint that is being written makes the folder anew.
            while not run.path.is_file():
                with suppress(OSError):
                    run.path.rename(tmp_path / secrets.token_hex())
                    run.path.write_text("in the way")

    with pytest.raises(RuntimeError, match=r"cannot write checkpoint .*model\.fdl"):
        training(epochs=3).epoch_fn(remove).run_dir(run).run()
    assert epochs == [0, 1, 2]
    assert "last.fdl" in capfd.readouterr().err


# --- Continuing another run ------------------------------------------------------------------


def run_of(root: Path, hour: int, state: str | None, *, checkpoint: bool = True) -> RunDirectory:
    """A run that began at an hour and ended in a state, or not at all."""
    run = RunDirectory.create(root, clock=lambda: datetime(2026, 3, 1, hour))
    if checkpoint:
        run.last_checkpoint.write_bytes(b"state")
    if state is not None:
        run.finish(state, epochs=1)  # type: ignore[arg-type]
    return run


def test_last_continues_the_newest_run_that_has_a_checkpoint_and_is_not_complete(
    tmp_path: Path,
) -> None:
    run_of(tmp_path, 9, "failed")
    killed = run_of(tmp_path, 10, None)
    run_of(tmp_path, 11, "complete")
    run_of(tmp_path, 12, None, checkpoint=False)
    (tmp_path / "2027-01-01T00-00-00").mkdir()
    (tmp_path / "2027-01-01T00-00-00" / "last.fdl").write_bytes(b"no run.json beside it")

    run = RunDirectory.create(tmp_path, resume="last")
    assert run.resume_source() == killed.last_checkpoint
    assert run.path != killed.path
    record = json.loads((run.path / "run.json").read_text())
    assert record["resumed_from"] == str(killed.last_checkpoint)
    assert json.loads((killed.path / "run.json").read_text())["state"] == "running"


def test_last_does_not_continue_a_run_twice(tmp_path: Path) -> None:
    killed = run_of(tmp_path, 9, None)
    successor = RunDirectory.create(tmp_path, resume="last", clock=lambda: datetime(2026, 3, 1, 10))
    assert RunDirectory.create(tmp_path, resume="last").resume_source() == killed.last_checkpoint
    successor.last_checkpoint.write_bytes(b"further")
    assert RunDirectory.create(tmp_path, resume="last").resume_source() == (
        successor.last_checkpoint
    )
    successor.finish("complete", epochs=2)
    with pytest.raises(RunDirectoryError, match="all of them are complete"):
        RunDirectory.create(tmp_path, resume="last")
    run = RunDirectory.create(tmp_path, resume=killed.path)
    assert run.resume_source() == killed.last_checkpoint, "it can still be named"


def test_last_continues_a_run_that_went_on_in_its_own_folder(tmp_path: Path) -> None:
    """As a sweep does it; then it was interrupted again."""
    run = run_of(tmp_path, 9, "interrupted")
    record = json.loads((run.path / "run.json").read_text())
    record["resumed_from"] = str(run.last_checkpoint)
    (run.path / "run.json").write_text(json.dumps(record))
    assert RunDirectory.create(tmp_path, resume="last").resume_source() == run.last_checkpoint


def test_of_ten_runs_of_one_second_the_one_that_saved_last_is_continued(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, 9, "interrupted") for _ in range(11)]
    for number, run in enumerate(runs):
        os.utime(run.last_checkpoint, ns=(0, number))
    assert RunDirectory.create(tmp_path, resume="last").resume_source() == runs[-1].last_checkpoint


def test_a_run_or_a_checkpoint_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_of(tmp_path / "runs", 9, "complete")
    for name in (done.path, str(done.path), done.last_checkpoint, done.path.name):
        run = RunDirectory.create(tmp_path / "runs", resume=name)
        assert run.resume_source() == done.last_checkpoint
    monkeypatch.setenv("FDL_PROJECT_ROOT", str(tmp_path))
    run = RunDirectory.create("runs", resume=f"runs/{done.path.name}")
    assert run.resume_source() == done.last_checkpoint


def test_nothing_to_resume_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no run to resume under .*: none has a last\.fdl"):
        RunDirectory.create(tmp_path, resume="last")
    run_of(tmp_path, 9, "complete")
    with pytest.raises(RunDirectoryError, match="all of them are complete; begin a new one"):
        RunDirectory.create(tmp_path, resume="last")
    with pytest.raises(RunDirectoryError, match=r"there is no checkpoint .*typo to resume from"):
        RunDirectory.create(tmp_path, resume=tmp_path / "typo")
    assert [p.name for p in tmp_path.iterdir()] == ["2026-03-01T09-00-00"]


def test_a_run_names_its_process_and_begins_anew_unless_told_otherwise(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    assert run.resume_source() is None
    record = json.loads((run.path / "run.json").read_text())
    assert record["resumed_from"] is None
    assert (record["pid"], record["host"]) == (os.getpid(), socket.gethostname())
    if Path("/proc/self/stat").exists():
        assert record["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert (
            0
            < record["process_started"]
            < time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        )


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
    # A linked work tree has its own HEAD, and the branches of the repository.
    (git / "worktrees/linked").mkdir(parents=True)
    (git / "worktrees/linked/HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees/linked/commondir").write_text("../..\n")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/.git").write_text(f"gitdir: {git / 'worktrees/linked'}\n")
    assert git_commit(tmp_path / "linked") == "f" * 40
    (git / "modules/part").mkdir(parents=True)
    (git / "modules/part/HEAD").write_text("e" * 40 + "\n")
    (inner / ".git").write_text("gitdir: ../../.git/modules/part\n")
    assert git_commit(inner) == "e" * 40  # of the submodule


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
