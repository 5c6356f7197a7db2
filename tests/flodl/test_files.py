"""Temporary neighbours: killed processes leave them, the next save or resume removes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import fdl.base.files
from fdl.base.files import remove_leftovers, replacing, staging
from flodl import RunDirectory, Trainer
from flodl.checkpoint import save_checkpoint_file

# Loads the module alone: torch would take seconds.
WRITER = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
target = pathlib.Path(sys.argv[3])
with files.replacing(target) if sys.argv[2] == "file" else files.staging(target) as made:
    if sys.argv[2] == "file":
        made.write(b"half")
        made.flush()
    else:
        (made / "run.json").write_text("{}")
    print("begun", flush=True)
    time.sleep(60)
"""


@contextmanager
def writing(kind, target):
    """Another process in the midst of writing; killed at the end of the block at the latest."""
    command = [sys.executable, "-c", WRITER, fdl.base.files.__file__, kind, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def save(path):
    save_checkpoint_file(path, nn.Linear(2, 1).named_parameters(), [])


def test_the_next_save_removes_what_a_killed_one_left_whatever_file_it_was_for(tmp_path):
    with writing("file", tmp_path / "first.fdl") as process:
        kill(process)
        assert len(hidden(tmp_path)) == 1
        save(tmp_path / "second.fdl")
    assert hidden(tmp_path) == []
    assert (tmp_path / "second.fdl").is_file()


def test_the_file_of_a_living_process_stays_and_gets_its_name(tmp_path):
    with writing("file", tmp_path / "model.fdl"):
        (name,) = hidden(tmp_path)
        save(tmp_path / "other.fdl")
        assert hidden(tmp_path) == [name]
    with replacing(tmp_path / "one", durable=True) as one:
        one.write(b"1")
        save(tmp_path / "two.fdl")
    assert (tmp_path / "one").read_bytes() == b"1"


def test_nobody_takes_a_finished_file_for_a_leftover_before_it_has_its_name(tmp_path, monkeypatch):
    plain = Path.replace

    def replace(self, target):
        remove_leftovers(tmp_path)
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    save(tmp_path / "model.fdl")
    assert [path.name for path in tmp_path.iterdir()] == ["model.fdl"]


def test_files_of_other_hosts_are_removed_only_after_a_day_without_a_change(tmp_path):
    fresh = tmp_path / ".model.fdl.00000000-0123456789ab.tmp"
    stale = tmp_path / ".model.fdl.00000000-ba9876543210.tmp"
    foreign = tmp_path / ".notes.tmp"
    for path in (fresh, stale, foreign):
        path.write_bytes(b"half")
        long_ago = time.time() - 2 * 86400
        os.utime(path, (long_ago, long_ago) if path != fresh else None)
    save(tmp_path / "model.fdl")
    assert hidden(tmp_path) == [fresh.name, foreign.name]


def test_the_next_run_removes_the_folder_of_one_that_was_killed_while_it_began(tmp_path):
    with writing("folder", tmp_path) as process:
        kill(process)
        assert len(hidden(tmp_path)) == 1
        with writing("folder", tmp_path):
            (living,) = hidden(tmp_path)
            run = RunDirectory.create(tmp_path)
            assert hidden(tmp_path) == [living]
    assert (run.path / "run.json").is_file()


def test_a_folder_that_is_not_moved_away_is_removed(tmp_path):
    with staging(tmp_path) as made:
        (made / "file").write_text("content")
        assert hidden(tmp_path) == [made.name]
    assert list(tmp_path.iterdir()) == []


def test_resuming_removes_what_a_killed_save_left_beside_the_checkpoint(tmp_path):
    def builder(epochs):
        return (
            Trainer.builder(
                lambda _: nn.Linear(2, 1),
                lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
            )
            .dataset(torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1)))
            .batch_size(4)
            .num_epochs(epochs)
        )

    run = RunDirectory.create(tmp_path / "runs")
    builder(1).run_dir(run).run()
    with writing("file", run.last_checkpoint) as process:
        kill(process)
        assert len(hidden(run.path)) == 1
        builder(2).resume(run.last_checkpoint).run()
    assert hidden(run.path) == []


def test_a_hidden_folder_is_made_again_if_another_process_takes_it_for_a_leftover(
    tmp_path, monkeypatch
):
    make, made = Path.mkdir, []

    def raced(path, *args, **options):
        make(path, *args, **options)
        made.append(path)
        if len(made) == 1:
            remove_leftovers(tmp_path)  # as another process does before this one has its lock

    monkeypatch.setattr(Path, "mkdir", raced)
    with staging(tmp_path) as folder:
        assert folder.is_dir()
        remove_leftovers(tmp_path)
        assert folder.is_dir()
    assert len(made) == 2
    assert list(tmp_path.iterdir()) == []
