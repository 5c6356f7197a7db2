from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from flodl import Trainer
from flodl.checkpoint import load_checkpoint_file
from flodl.errors import ShapeMismatch, StateError
from flodl.train import RunDirectory
from flodl.train.observers.ema import WeightAverage
from tests.rows import each_row

from .programs import line, network, sgd, squared_error, training


def floating(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items() if t.is_floating_point()}


def train_a_little(model: nn.Module, after_step: Any, steps: int = 5) -> None:
    optimizer = sgd(list(model.parameters()))
    for _ in range(steps):
        model(torch.randn(4, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()


def test_the_average_is_that_of_torch_to_the_bit() -> None:
    model = network()
    ours = WeightAverage(model, 0.9)
    multi_avg = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
    theirs = AveragedModel(model, multi_avg_fn=multi_avg, use_buffers=True)

    def both() -> None:
        ours.update()
        theirs.update_parameters(model)

    train_a_little(model, both)
    expected = floating(theirs.module)
    assert set(ours.state_dict()["tensors"]) == set(expected)
    for name, tensor in ours.state_dict()["tensors"].items():
        assert torch.equal(tensor, expected[name]), name
    assert ours.updates == 5


def test_applied_swaps_the_weights_in_place_and_back() -> None:
    model = network()
    average = WeightAverage(model, 0.5)
    train_a_little(model, average.update)
    before, places = floating(model), [p.data_ptr() for p in model.parameters()]
    with average.applied():
        inside = floating(model)
        assert [p.data_ptr() for p in model.parameters()] == places
        with pytest.raises(RuntimeError, match="has the average already"), average.applied():
            pass
    assert all(torch.equal(inside[n], t) for n, t in average.state_dict()["tensors"].items())
    assert any(not torch.equal(inside[name], before[name]) for name in before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in floating(model).items())


def test_the_weights_come_back_after_an_error() -> None:
    model = network()
    average = WeightAverage(model, 0.5)
    train_a_little(model, average.update)
    before = floating(model)

    def fail() -> None:
        assert any(not torch.equal(t, before[name]) for name, t in floating(model).items())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), average.applied():
        fail()
    assert all(torch.equal(tensor, before[name]) for name, tensor in floating(model).items())


def test_a_saved_average_goes_on_as_if_nothing_had_happened() -> None:
    model = network()
    average = WeightAverage(model, 0.9)
    train_a_little(model, average.update, steps=2)
    state = {**average.state_dict()}
    state["tensors"] = {name: tensor.clone() for name, tensor in state["tensors"].items()}

    restored = WeightAverage(model, 0.9)
    restored.load_state_dict(state)

    def both() -> None:
        average.update()
        restored.update()

    train_a_little(model, both, steps=2)
    assert restored.updates == average.updates == 4
    for name, tensor in restored.state_dict()["tensors"].items():
        assert torch.equal(tensor, average.state_dict()["tensors"][name])


def test_the_average_of_another_model_is_refused_and_changes_nothing() -> None:
    average = WeightAverage(nn.Linear(2, 2), 0.9)
    other = WeightAverage(nn.Linear(3, 2), 0.9)
    before = [tensor.clone() for tensor in other.state_dict()["tensors"].values()]
    with pytest.raises(ShapeMismatch, match="does not fit the model at weight;"):
        other.load_state_dict(average.state_dict())
    after = list(other.state_dict()["tensors"].values())
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


@each_row("decay", [-0.1, 1.0, 2.0, float("nan")])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="must be at least 0 and below 1"):
        WeightAverage(network(), decay)
    with pytest.raises(ValueError, match="must be at least 0 and below 1"):
        training().ema(decay)


def test_the_average_is_what_is_evaluated_saved_and_handed_out(tmp_path: Path) -> None:
    evaluated: list[dict[str, Tensor]] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        evaluated.append(floating(model))
        return {}

    run = RunDirectory.create(tmp_path)
    handle = (
        Trainer.builder(network, sgd, squared_error)
        .dataset(line(10))
        .batch_size(3)
        .num_epochs(2)
        .device("cpu")
        .ema(0.5)
        .eval_fn(evaluate)
        .run_dir(run)
        .run()
    )
    plain = training().run()
    assert all(
        torch.equal(one, other)
        for one, other in zip(handle.join().params, plain.join().params, strict=True)
    )

    averaged, saved = network(), network()
    handle.average().load_into(averaged)
    load_checkpoint_file(run.path / "model.fdl", saved.named_parameters(), saved.named_buffers())
    for name, tensor in floating(averaged).items():
        assert torch.equal(tensor, evaluated[-1][name]), name
        assert torch.equal(tensor, saved.state_dict()[name]), name
    assert not torch.equal(next(averaged.parameters()), next(handle.model.parameters()))


def test_asking_for_an_average_that_nobody_made_is_refused() -> None:
    with pytest.raises(StateError, match=r"averaged no weights; ask for it with .ema"):
        training().run().average()
