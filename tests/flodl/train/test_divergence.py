from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.checkpoint import load_checkpoint_file
from flodl.data import Batch
from flodl.errors import DivergedError
from flodl.train import RunDirectory
from flodl.train.step.step_values import LossLog

from .programs import line, network, sgd, squared_error, training


def poisoned(at: int, value: float = float("nan")) -> Any:
    """A training step whose loss is ``value`` at the given call, counted from 0."""
    calls: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(0)
        loss = squared_error(model, batch)
        return loss * value if len(calls) == at + 1 else loss

    return train_fn


def state_of(path: Path) -> nn.Module:
    model = network()
    report = load_checkpoint_file(path, model.named_parameters(), model.named_buffers())
    assert report.missing == []
    return model


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_loss_that_is_not_finite_names_epoch_step_and_the_last_good_checkpoint(
    tmp_path: Path, value: float, shown: str
) -> None:
    run = RunDirectory.create(tmp_path)
    with pytest.raises(DivergedError) as failure:
        training(poisoned(7, value), epochs=5).run_dir(run).run()

    error = failure.value
    assert (error.epoch, error.step) == (2, 1)
    assert f"the loss is {shown} at epoch 2, step 1 (both counted from 0)" in str(error)
    assert f"the last good checkpoint is {run.path / 'last.fdl'} (after 2 complete" in str(error)
    assert "Lower the learning rate" in str(error)

    kept = state_of(run.path / "last.fdl")
    two_epochs = training(epochs=2).run().model
    for name, tensor in kept.state_dict().items():
        assert torch.equal(tensor, two_epochs.state_dict()[name])
    assert not (run.path / "model.fdl").exists()
    record = json.loads((run.path / "run.json").read_text())
    assert (record["state"], record["epochs"]) == ("diverged", 2)
    assert record["error"].startswith("DivergedError: the loss is")
    assert "diverged after 2 epochs in" in (run.path / "training.log").read_text()


def test_divergence_in_the_first_epoch_says_that_there_is_no_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    with pytest.raises(DivergedError, match=r"step 0 .*; nothing was saved"):
        training(poisoned(0)).run_dir(run).run()
    assert not (run.path / "last.fdl").exists()


def test_the_parameters_are_untouched_by_the_step_that_diverged() -> None:
    model = network()
    with pytest.raises(DivergedError):
        (
            Trainer.builder(lambda _: model, sgd, poisoned(4))
            .dataset(line(10))
            .batch_size(3)
            .num_epochs(2)
            .device("cpu")
            .run()
        )
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_parameters_broken_by_the_last_step_are_noticed_and_never_saved(tmp_path: Path) -> None:
    calls: list[int] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(0)
        loss = squared_error(model, batch)
        if len(calls) == 6:
            # sqrt has an infinite slope at 0: the loss is finite, its gradient is not.
            loss = loss + (model[0].weight * 0).sqrt().sum()  # type: ignore[index]
        return loss

    run = RunDirectory.create(tmp_path)
    with pytest.raises(DivergedError, match=r"0\.weight hold values .* epoch 1, step 2") as failure:
        training(train_fn).run_dir(run).run()
    assert (failure.value.epoch, failure.value.step) == (1, 2)
    assert all(bool(t.isfinite().all()) for t in state_of(run.path / "last.fdl").parameters())


@pytest.mark.parametrize("where", ["host", "device"])
def test_both_ways_of_keeping_losses_find_the_first_bad_one(where: str) -> None:
    def log() -> LossLog:
        return LossLog(3) if where == "host" else LossLog(3, on_device=True)

    good = log()
    for value in (1.0, 2.0, 6.0):
        good.add(torch.tensor(value))
    good.check()
    assert good.mean() == 3.0

    bad = log()
    with pytest.raises(DivergedError, match="the loss is inf at epoch 3, step 2") as failure:  # noqa: PT012
        for value in (1.0, 2.0, float("inf"), float("nan")):
            bad.add(torch.tensor(value))
        bad.check()
    assert (failure.value.epoch, failure.value.step) == (3, 2)


def test_losses_on_a_device_are_not_read_before_the_epoch_ends() -> None:
    log = LossLog(0, on_device=True)
    loss = torch.tensor(float("nan"))
    log.add(loss)
    loss.zero_()  # what is kept is the value of that moment
    log.add(loss)
    with pytest.raises(DivergedError, match="step 0"):
        log.mean()
