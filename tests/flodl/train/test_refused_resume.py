"""A resume that asks for something else than its checkpoint has, and what it leaves behind."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from flodl import Trainer
from flodl.errors import CheckpointError
from flodl.nn.schedule import StepDecay
from flodl.train import RunDirectory, TrainerBuilder
from flodl.train.callbacks import Callback, TrainingRun

from .programs import line, network, squared_error


class LowerRate(Callback):
    """Changes the learning rate while it trains, as an act does."""

    def on_step_end(self, run: TrainingRun) -> None:
        run.optimizer.param_groups[0]["lr"] = 0.001


def settings(origin: str = "command line", **values: Any) -> dict[str, Any]:
    """The configuration as a program with typed arguments records it."""
    return {name: {"value": value, "origin": origin} for name, value in values.items()}


def training(run: RunDirectory, *, epochs: int, steps: int = 0, **optimizer: Any) -> TrainerBuilder:
    """A training of three batches per epoch."""
    builder = Trainer.builder(network, partial(torch.optim.AdamW, **optimizer), squared_error)
    builder.dataset(line(9)).batch_size(3).num_epochs(epochs).device("cpu").engine("eager")
    return builder.checkpoint_steps(steps).run_dir(run) if steps else builder.run_dir(run)


def begun(root: Path, *, epochs: int = 1, config: Any = None, **optimizer: Any) -> Path:
    """Train; return the checkpoint."""
    run = RunDirectory.create(root, config=config or {})
    training(run, epochs=epochs, **optimizer).run()
    return run.last_checkpoint


def folders(root: Path) -> list[str]:
    return sorted(one.name for one in root.iterdir())


def refusal(root: Path, source: Path, config: Any, *, epochs: int, **optimizer: Any) -> str:
    """Return the message of a refused resume, which leaves no run behind."""
    before = folders(root)
    run = RunDirectory.create(root, config=config, resume=source)
    with pytest.raises(CheckpointError) as refused, run:
        training(run, epochs=epochs, **optimizer).run()
    assert folders(root) == before
    return str(refused.value)


def test_another_learning_rate_than_that_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    source = begun(tmp_path, config=settings(lr=0.003, epochs=1), lr=0.003)
    said = refusal(tmp_path, source, settings(lr=0.1, epochs=2), epochs=2, lr=0.1)
    assert said == (
        f"checkpoint {source} was trained with lr 0.003, and this run asks for lr 0.1; a resumed "
        "training continues with the values of its checkpoint: use --lr 0.003, or change it while "
        "it runs with fdl runs tell last lr=0.1"
    )


@pytest.mark.parametrize(
    ("name", "before", "now", "remedy"),
    [
        ("weight_decay", 0.01, 0.1, "use --weight-decay 0.01, or begin a new run without resume"),
        ("betas", [0.9, 0.99], [0.8, 0.99], "use betas=[0.9, 0.99], or begin a new run"),
    ],
)
def test_so_is_every_other_setting_of_the_optimizer(
    name: str, before: Any, now: Any, remedy: str, tmp_path: Path
) -> None:
    source = begun(tmp_path, config=settings(**{name: before}), **{name: before})
    said = refusal(tmp_path, source, settings(**{name: now}), epochs=2, **{name: now})
    assert f"trained with {name} {before}, and this run asks for {name} {now}" in said
    assert remedy in said


def test_a_program_without_options_is_told_the_setting(tmp_path: Path) -> None:
    source = begun(tmp_path, config={"lr": 0.003}, lr=0.003)
    assert "use lr=0.003, or" in refusal(tmp_path, source, {"lr": 0.1}, epochs=2, lr=0.1)


def test_a_rate_that_was_changed_while_it_trained_goes_on(tmp_path: Path) -> None:
    config = settings(lr=0.003)
    run = RunDirectory.create(tmp_path, config=config)
    training(run, epochs=1, lr=0.003).callbacks(LowerRate()).run()
    # The origin of a value is not the value.
    config = settings("train/fdl.yml:9:7", lr=0.003)
    again = RunDirectory.create(tmp_path, config=config, resume=run.last_checkpoint)
    assert training(again, epochs=2, lr=0.003).run().poll_metrics()[-1].lr == 0.001


@pytest.mark.parametrize("config", [{}, settings(epochs=1)])
def test_a_checkpoint_without_a_record_of_the_setting_is_resumed(
    config: Any, tmp_path: Path
) -> None:
    source = begun(tmp_path, config=config, lr=0.003)
    run = RunDirectory.create(tmp_path, config=settings(lr=0.1), resume=source)
    assert training(run, epochs=2, lr=0.1).run().poll_metrics()[-1].lr == 0.003


def test_a_setting_that_only_has_the_name_of_one_of_the_optimizer_may_change(
    tmp_path: Path,
) -> None:
    source = begun(tmp_path, config=settings(eps=1e-5))
    run = RunDirectory.create(tmp_path, config=settings(eps=1e-3), resume=source)
    assert len(training(run, epochs=2).run().poll_metrics()) == 2


def test_a_schedule_sets_the_rate_of_a_resumed_training(tmp_path: Path) -> None:
    def scheduled(lr: float, epochs: int, resume: Path | None = None) -> TrainerBuilder:
        run = RunDirectory.create(tmp_path, config=settings(lr=lr), resume=resume)
        builder = training(run, epochs=epochs, lr=lr)
        return builder.scheduler(lambda _: StepDecay(lr, 10**9, 0.5))

    scheduled(0.003, 1).run()
    (first,) = tmp_path.iterdir()
    resumed = scheduled(0.1, 2, first / "last.fdl").run()
    assert resumed.poll_metrics()[-1].lr == 0.1


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (settings(epochs=2), "--epochs 4"),
        ({"num_epochs": 2}, "num_epochs=4"),
        ({}, ".num_epochs(4)"),
    ],
)
def test_a_checkpoint_with_more_epochs_than_asked_for_is_refused(
    config: Any, remedy: str, tmp_path: Path
) -> None:
    source = begun(tmp_path, epochs=3)
    assert refusal(tmp_path, source, config, epochs=2) == (
        f"checkpoint {source} has begun epoch 3, and this run asks for 2 epochs in all, so nothing "
        f"is left to train: use {remedy} or more, or begin a new run without resume"
    )


def test_so_is_one_inside_a_later_epoch(tmp_path: Path) -> None:
    class Cut(Callback):
        def on_step_end(self, run: TrainingRun) -> None:
            if run.global_step == 8:
                raise OSError("no power")

    run = RunDirectory.create(tmp_path)
    with pytest.raises(OSError, match="no power"):
        training(run, epochs=4, steps=1).callbacks(Cut()).run()
    said = refusal(tmp_path, run.last_checkpoint, settings(epochs=2), epochs=2)
    assert "has begun epoch 3, and this run asks for 2 epochs" in said
    assert "use --epochs 3 or more" in said
    resumed = RunDirectory.create(tmp_path, resume=run.last_checkpoint)
    assert len(training(resumed, epochs=3).run().poll_metrics()) == 3


def test_a_complete_training_says_that_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = begun(tmp_path, epochs=2)
    capfd.readouterr()
    training(RunDirectory.create(tmp_path, resume=source), epochs=2).run()
    said = " ".join("".join(capfd.readouterr()).split())
    assert "nothing is left to train: this run asks for 2 epochs in all" in said


def test_a_damaged_checkpoint_leaves_no_run_behind(tmp_path: Path) -> None:
    source = begun(tmp_path)
    source.write_bytes(source.read_bytes()[:-100])
    assert str(source) in refusal(tmp_path, source, {}, epochs=2)


def test_a_folder_with_a_file_of_the_program_stays(tmp_path: Path) -> None:
    source = begun(tmp_path, epochs=3)
    run = RunDirectory.create(tmp_path, resume=source)
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="has begun epoch 3"), run:
        training(run, epochs=2).run()
    assert (run.path / "notes.txt").read_text() == "mine"
    assert json.loads((run.path / "run.json").read_text())["state"] == "failed"
    assert (run.path / "config.json").exists()


def test_a_run_that_fails_for_another_reason_stays(tmp_path: Path) -> None:
    def broken(_: Any) -> torch.nn.Module:
        raise CheckpointError("the weights are missing")

    source = begun(tmp_path)
    run = RunDirectory.create(tmp_path, resume=source)
    builder = Trainer.builder(broken, torch.optim.AdamW, squared_error)
    builder.dataset(line(9)).batch_size(3).num_epochs(2).device("cpu").run_dir(run)
    with pytest.raises(CheckpointError, match="the weights are missing"), run:
        builder.run()
    assert json.loads((run.path / "run.json").read_text())["state"] == "failed"


def test_a_rate_without_an_effect_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = begun(tmp_path, lr=0.003)
    told = "lr stays 0.003, as in the checkpoint: lr=0.1 of this program has no effect"
    for rate, times in ((0.003, 0), (0.1, 1)):
        run = RunDirectory.create(tmp_path, resume=source)
        training(run, epochs=2, lr=rate).run()
        assert capfd.readouterr().out.count(told) == times
