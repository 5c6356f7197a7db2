"""A rehearsal: the largest batches, every phase, the first error, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from flodl import DataSet, RunDirectory, Trainer
from flodl.train.rehearsal import Rehearsed

BIG = 500_000


@pytest.fixture
def result(tmp_path, monkeypatch):
    """Where the rehearsal writes; the program is told to rehearse."""
    file = tmp_path / "asked" / "rehearsal.json"
    file.parent.mkdir()
    monkeypatch.setenv("FLODL_REHEARSE", str(file))
    return file


def loss(model, batch):
    return functional.mse_loss(model(batch[0]), batch[1])


def trainer(data, train_fn=loss, model=None, **settings):
    made = Trainer.builder(
        (model or nn.Linear(4, 1)).to,
        lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        train_fn,
    )
    made.dataset(data).batch_size(16).num_epochs(7)
    for name, value in settings.items():
        getattr(made, name)(value)
    return made


def rehearsed(made, file: Path) -> dict:
    with pytest.raises(Rehearsed) as end:
        made.run()
    assert end.value.code == 0
    return json.loads(file.read_text())


def table(samples=100):
    x = torch.randn(samples, 4)
    return TensorDataset(x, x.sum(1, keepdim=True))


def test_every_phase_is_measured_and_the_epoch_is_estimated(result, tmp_path):
    evaluated = []

    def evaluate(model):
        evaluated.append(model.training)
        return {"accuracy": 0.5}

    runs = RunDirectory.create(tmp_path / "runs", config={"lr": 0.1})
    found = rehearsed(trainer(table(), eval_fn=evaluate, run_dir=runs), result)
    names = [phase["name"] for phase in found["phases"]]
    assert names == ["data", "forward", "backward", "optimizer", "evaluation", "checkpoint"]
    assert evaluated == [False]
    assert (found["batch_size"], found["batches"], found["epochs"]) == (16, 7, 7)
    assert found["parameters"] == 5
    assert found["step_seconds"] * 7 < found["epoch_seconds"] < found["total_seconds"]
    assert found["before_bytes"] <= found["peak_bytes"] < found["available_bytes"]
    assert found["run_bytes"] > 1000
    assert (found["failed_in"], found["error"]) == ("", "")
    assert not (tmp_path / "runs").exists(), "the run directory is beside the result"


def test_two_optimizer_steps_are_trained_and_nobody_is_told(result, capsys):
    seen = []

    def counted(model, batch):
        seen.append(len(batch[0]))
        return loss(model, batch)

    rehearsed(trainer(table(), counted, accumulate=3), result)
    assert seen == [16] * 6
    assert capsys.readouterr().out == ""


def test_a_batch_that_is_computed_in_pieces_is_rehearsed_in_pieces(result):
    seen = []

    def counted(model, batch):
        seen.append(len(batch[0]))
        return loss(model, batch)

    rehearsed(trainer(table(), counted, ddp={"micro_batch": 10}), result)
    assert seen == [10, 6, 10, 6]


def test_the_last_batch_of_one_sample_more_is_the_largest(result):
    seen = []

    def counted(model, batch):
        seen.append(len(batch[0]))
        return loss(model, batch)

    rehearsed(trainer(table(97), counted), result)
    assert seen == [17, 17]


class Texts(DataSet):
    """Sample 33 is long, so its batch is."""

    names = ("tokens", "label")

    def __len__(self) -> int:
        return 64

    def get(self, index: int) -> Sequence[Tensor]:
        return torch.ones(4), torch.tensor([float(index)])


def test_names_of_fields_and_two_batches_of_an_epoch_are_kept(result):
    seen = []

    def named(model, batch):
        seen.append(sorted(batch["label"].flatten().tolist()))
        return functional.mse_loss(model(batch["tokens"]), batch["label"])

    found = rehearsed(trainer(Texts(), named), result)
    assert len(seen) == 2
    assert not set(seen[0]) & set(seen[1])
    assert found["largest"] == "the largest of 4 batches"


def test_data_that_can_only_be_iterated_gives_its_first_batches(result):
    def endless():
        while True:
            yield torch.ones(4), torch.ones(1)

    found = rehearsed(trainer(endless, num_epochs=1), result)
    assert found["batches"] is None
    assert found["epoch_seconds"] is None
    assert found["step_seconds"] > 0


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ({"eval_fn": lambda _: 1 / 0}, "the evaluation"),
        ({"train_fn": lambda model, batch: model(batch[0]).sum() / (1 // 0)}, "the forward pass"),
    ],
)
def test_an_error_is_the_programs_own_with_the_phase(result, setting, where):
    with pytest.raises(ZeroDivisionError) as error:
        trainer(table(), **setting).run()
    found = json.loads(result.read_text())
    assert found["failed_in"] == where
    assert found["error"].startswith("ZeroDivisionError")
    assert f"rehearsal: this happened in {where}" in error.value.__notes__


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        big = self.inner(x).expand(-1, BIG).contiguous()
        return (big * big).mean(1, keepdim=True)


def test_memory_of_a_step_limits_the_batch(result):
    found = rehearsed(trainer(table(100_000), model=Wide()), result)
    needed = 16 * BIG * 4
    grown = found["peak_bytes"] - found["before_bytes"]
    assert grown > needed
    free = 0.9 * found["available_bytes"] - found["before_bytes"]
    assert found["largest_batch_size"] <= 16 * free / needed


def test_memory_that_was_freed_before_is_not_missing_in_the_step(result):
    # After this the C library takes such blocks from its heap. It keeps them when they are freed,
    # because something younger lies above them.
    torch.ones(16 * BIG + 100_000)
    blocks = [torch.ones(16 * BIG) for _ in range(8)]
    young = torch.ones(16 * BIG)
    del blocks
    found = rehearsed(trainer(table(), model=Wide()), result)
    assert found["peak_bytes"] - found["before_bytes"] > 16 * BIG * 4
    assert young.numel()


def test_weights_and_data_of_a_loop_of_ones_own_are_not_touched(result):
    with pytest.raises(ValueError, match="cannot be rehearsed"):
        Trainer.setup(nn.Linear(2, 1), None, torch.optim.Adam)
    assert not result.exists()
