"""Settings that cannot work are refused before the first step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Trainer
from flodl.data import Batch
from flodl.errors import RunDirectoryError, StateError
from flodl.graph import NamedInputModule
from flodl.train import Callback, RunDirectory, TrainerBuilder
from tests.rows import each_row
from tests.waiting import wait_for

from .programs import line, network, sgd, squared_error, training


def never(*_: Any) -> Any:
    raise AssertionError("nothing may be made")


def untouched() -> TrainerBuilder:
    """A training that fails the test when it makes anything."""
    builder = Trainer.builder(lambda _: never(), sgd, squared_error).dataset(line())
    return builder.batch_size(3).num_epochs(2).device("cpu")


# --- A run directory ------------------------------------------------------------------------------


@each_row(
    ("call", "change"),
    [
        ("keep_best", lambda b: b.keep_best()),
        ("checkpoint_every", lambda b: b.checkpoint_every(2)),
        ("checkpoint_steps", lambda b: b.checkpoint_steps(2)),
    ],
)
def test_what_writes_into_a_run_directory_needs_one(call: str, change: Any) -> None:
    remedy = r"add \.run_dir\(RunDirectory\.create\('runs'\)\)"
    with pytest.raises(ValueError, match=rf"\.{call}\(…\) writes into a run directory.*{remedy}"):
        change(untouched()).run()


def test_a_checkpoint_fn_needs_none() -> None:
    versions: list[int] = []
    builder = training(epochs=4).checkpoint_every(2)
    builder.checkpoint_fn(lambda version, _: versions.append(version)).run()
    assert versions == [2, 4]


def test_ranks_beside_the_first_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**launched, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("flodl.train.runner.run", lambda plan: plan)
    plan: Any = untouched().checkpoint_steps(2).resume("none").run()
    assert plan.checkpoint_steps == 2
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="writes into a run directory"):
        untouched().checkpoint_steps(2).run()


# --- Resuming -------------------------------------------------------------------------------------


def test_a_run_is_resumed_by_its_directory(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    training(epochs=2).run_dir(run).run()
    for source in (run.path, str(run.path), os.fspath(run.last_checkpoint)):
        resumed = training(epochs=4).resume(source).run()
        assert len(resumed.poll_metrics()) == 4
        assert [one.epoch for one in resumed.poll_metrics()] == []


def test_a_folder_of_runs_is_refused_with_the_newest_of_them(tmp_path: Path) -> None:
    runs = [RunDirectory.create(tmp_path) for _ in range(2)]
    for moment, run in enumerate(runs):
        training(epochs=1).run_dir(run).run()
        os.utime(run.last_checkpoint, (moment, moment))
    with pytest.raises(RunDirectoryError, match=f"several runs.*such as {runs[1].path}$"):
        untouched().resume(tmp_path).run()


def test_a_checkpoint_that_is_not_there_is_refused_and_the_run_left_alone(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    wait_for((run.path / "packages.txt").exists)  # it is written on a thread
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    for source in (tmp_path / "none.fdl", run.path):
        with pytest.raises(RunDirectoryError, match=r"no checkpoint .* to resume from: name a run"):
            untouched().run_dir(run).resume(source).run()
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before
    assert json.loads((run.path / "run.json").read_text())["state"] == "running"


# --- Metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("watcher", "change"),
    [
        ("keep_best", lambda b: b.keep_best("acuracy")),
        ("early_stop", lambda b: b.early_stop("acuracy")),
    ],
)
def test_an_unknown_metric_ends_the_training_after_the_first_epoch(
    watcher: str, change: Any, tmp_path: Path
) -> None:
    epochs: list[int] = []

    def evaluate(_: nn.Module) -> dict[str, float]:
        epochs.append(1)
        return {"accuracy": 0.5, "f1": 0.4}

    builder = change(training(epochs=3).eval_fn(evaluate)).run_dir(RunDirectory.create(tmp_path))
    with pytest.raises(ValueError, match=rf"{watcher} watches 'acuracy'") as failure:
        builder.run()
    told = str(failure.value)
    assert "it has 'loss', 'accuracy', 'f1' (did you mean 'accuracy'?)" in told
    assert "return others from eval_fn" in told
    assert len(epochs) == 1


# --- Data -----------------------------------------------------------------------------------------


def test_a_data_set_smaller_than_a_batch_is_told_of_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sizes: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        sizes.append(len(batch["x"]))
        return squared_error(model, batch)

    training(train_fn).batch_size(64).run()
    assert sizes == [10, 10]
    told = capfd.readouterr().err
    assert told.count("batch_size=64 is larger than the data set (10 samples)") == 1
    with pytest.raises(ValueError, match=r"choose \.batch_size\(10\) or less, or leave drop_last"):
        untouched().batch_size(64).loader_options(drop_last=True).run()


class Add(NamedInputModule):
    """Adds what it said in the call before."""

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        return x + 0.5 * refs["before"]


def remembering(_: Any = None) -> nn.Module:
    flow = FlowBuilder.from_(nn.Linear(1, 4)).through(Add()).using("before").tag("before")
    return flow.through(nn.Linear(4, 1)).build()


def steps_of(builder: TrainerBuilder) -> int:
    steps: list[int] = []

    class Count(Callback):
        def on_step_end(self, run: Any) -> None:
            steps.append(run.global_step)

    builder.callbacks(Count()).run()
    return len(steps)


def graph_training(train_fn: Any = squared_error, n: int = 10) -> TrainerBuilder:
    builder = Trainer.builder(remembering, sgd, train_fn).dataset(line(n)).batch_size(4)
    return builder.num_epochs(2).device("cpu").engine("eager")


def resetting(model: Any, batch: Batch) -> Tensor:
    model.reset_state()
    return squared_error(model, batch)


def through_another(model: Any, batch: Batch) -> Tensor:
    return resetting(model, batch)


class Resetting:
    def __call__(self, model: Any, batch: Batch) -> Tensor:
        model.reset_state()
        return squared_error(model, batch)


def test_a_graph_that_remembers_and_a_short_last_batch_are_refused_at_once() -> None:
    seen: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(1)
        return squared_error(model, batch)

    with pytest.raises(ValueError, match=r"carries 'before'.* has 2 samples .* 4: ") as failure:
        graph_training(train_fn).run()
    assert seen == []
    for remedy in (".loader_options(drop_last=True)", "reset_state()", "drop_last=False"):
        assert remedy in str(failure.value)
    with pytest.raises(ValueError, match="has 5 samples where the others have 4"):
        graph_training(n=9).run()


@each_row("n", [3, 5, 8])
def test_a_graph_that_remembers_trains_where_all_batches_are_alike(n: int) -> None:
    assert steps_of(graph_training(n=n)) == 2 * max(1, n // 4)


@each_row("train_fn", [resetting, through_another, Resetting()])
def test_a_graph_that_is_reset_may_have_batches_of_any_size(train_fn: Any) -> None:
    assert steps_of(graph_training(train_fn)) == 6


def test_the_short_batch_may_be_left_out_or_asked_for() -> None:
    assert steps_of(graph_training().loader_options(drop_last=True)) == 4
    with pytest.raises(RuntimeError, match="size of tensor a"):
        steps_of(graph_training().loader_options(drop_last=False))


# --- The live page --------------------------------------------------------------------------------


def test_a_port_that_does_not_exist_is_refused_where_it_is_written() -> None:
    with pytest.raises(StateError, match="ports are 0 to 65535"):
        untouched().live(70_000)


def test_the_defaults_are_accepted() -> None:
    torch.manual_seed(0)
    builder = Trainer.builder(network, sgd, squared_error).dataset(line()).batch_size(3)
    assert len(builder.num_epochs(1).device("cpu").run().poll_metrics()) == 1
