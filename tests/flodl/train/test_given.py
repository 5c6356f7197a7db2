"""Models and optimizers that a program makes before its training."""

from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.train import RunDirectory, TrainerBuilder
from flodl.train.settings.user_parts import GivenParts

from .programs import line, network, sgd, squared_error


def made() -> nn.Module:
    torch.manual_seed(3)
    return network()


def training(model: Any, optimizer: Any) -> TrainerBuilder:
    builder = Trainer.builder(model, optimizer, squared_error).dataset(line()).batch_size(3)
    return builder.num_epochs(2).device("cpu").engine("eager")


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in theirs)


def by_functions(epochs: int = 2) -> nn.Module:
    model = made()
    return training(lambda _: model, sgd).num_epochs(epochs).run().model


def test_a_model_that_is_given_itself_is_trained_in_place() -> None:
    model = made()
    handle = training(model, sgd).run()
    assert handle.model is model
    assert same(model, by_functions())


def test_an_optimizer_over_its_parameters_is_used_itself() -> None:
    model = made()
    optimizer = sgd(list(model.parameters()))
    training(model, optimizer).run()
    assert same(model, by_functions())
    assert optimizer.state[model[0].weight]["momentum_buffer"].any()


def test_an_optimizer_over_some_of_its_parameters_trains_those() -> None:
    model = made()
    before = copy.deepcopy(model[0].weight)
    training(model, torch.optim.SGD(model[4].parameters(), lr=0.1)).run()
    assert torch.equal(model[0].weight, before)
    assert not same(model, made())


def test_a_second_run_goes_on_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    model = made()
    builder = training(model, sgd)
    builder.run()
    assert "earlier run()" not in capfd.readouterr().err
    first = copy.deepcopy(model)
    builder.run()
    assert not same(model, first)
    told = capfd.readouterr().err
    assert told.count("has been in an earlier run() and continues from its present values") == 1
    assert "lambda device: Sequential(…)" in told


def test_another_builder_with_a_trained_model_says_so_too(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = made()
    for _ in range(2):
        training(model, sgd).run()
    assert capfd.readouterr().err.count("earlier run()") == 1


def test_functions_begin_anew_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    builder = training(lambda _: made(), sgd)
    assert same(builder.run().model, builder.run().model)
    assert "earlier run()" not in capfd.readouterr().err


def test_a_resumed_training_of_a_given_model_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = by_functions(epochs=4)
    run = RunDirectory.create(tmp_path)
    training(made(), sgd).run_dir(run).run()
    model = network()
    optimizer = sgd(list(model.parameters()))
    training(model, optimizer).num_epochs(4).resume(run.path).run()
    assert same(model, whole)


def test_an_optimizer_needs_the_model_it_was_made_for() -> None:
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wanted = r"lambda parameters: torch\.optim\.AdamW\(parameters, lr=0\.01\)"
    with pytest.raises(ValueError, match=rf"made before the model.*{wanted}"):
        training(lambda _: made(), optimizer)
    with pytest.raises(ValueError, match=rf"holds 6 tensors that are not parameters.*{wanted}"):
        training(made(), optimizer)


class Renewed(nn.Linear):
    """Gets new parameters when it moves, as modules do on some devices."""

    def to(self, *_: Any, **__: Any) -> nn.Module:  # type: ignore[override]
        self.weight = nn.Parameter(self.weight.detach().clone())
        return self


def test_an_optimizer_of_another_model_is_refused_where_a_function_makes_it() -> None:
    elsewhere = made()
    with pytest.raises(
        ValueError, match=r"the SGD holds no parameter of the model that is trained"
    ):
        training(lambda _: made(), lambda _: sgd(list(elsewhere.parameters()))).run()


def test_an_optimizer_that_lost_its_parameters_in_the_move_is_refused() -> None:
    model = Renewed(1, 1)
    builder = training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"got new parameters when it moved.*lambda parameters: "):
        builder.run()


def test_a_given_optimizer_sets_up_a_loop_of_ones_own() -> None:
    model = made()
    optimizer = sgd(list(model.parameters()))
    assert Trainer.setup(model, None, optimizer, device="cpu").optimizer is optimizer
    with pytest.raises(ValueError, match="not parameters of the model"):
        Trainer.setup(made(), None, optimizer, device="cpu")


def test_a_copy_in_another_process_has_memory_of_its_own() -> None:
    model = made()
    optimizer = sgd(list(model.parameters()))
    sent = ForkingPickler.dumps(GivenParts(model, optimizer))
    given = pickle.loads(sent)
    copied = given.model_on(torch.device("cpu"))
    assert same(copied, model)
    assert given.optimizer_over(list(copied.parameters())) is not optimizer
    with torch.no_grad():
        copied[0].weight.add_(1.0)
    assert not same(copied, model)


class Net(nn.Linear):
    def __init__(self, features: int = 1) -> None:
        super().__init__(features, 1)


class OnDevice(nn.Linear):
    def __init__(self, device: torch.device) -> None:
        super().__init__(1, 1, device=device)


def no_argument() -> nn.Module:
    return made()


def loss_of_three(model: nn.Module, batch: Any, rate: float) -> Tensor:
    return rate * squared_error(model, batch)


def test_what_is_neither_a_part_nor_a_function_is_refused_at_once() -> None:
    assert training(OnDevice, sgd).run().model.in_features == 1
    with pytest.raises(ValueError, match=r"the model is the class Net: give a model, Net\(…\)"):
        training(Net, sgd)
    with pytest.raises(ValueError, match=r"model cannot be called as model\(device\).*lambda dev"):
        training(no_argument, sgd)
    with pytest.raises(ValueError, match=r"optimizer=0\.1: it must be a function, or an optim"):
        training(made(), 0.1)
    with pytest.raises(ValueError, match=r"train_fn cannot be called as train_fn\(model, batch\)"):
        Trainer.builder(network, sgd, loss_of_three)
    with pytest.raises(ValueError, match=r"no values \(device 'meta'\).*lambda device: Linear"):
        training(nn.Linear(1, 1, device="meta"), sgd)


def test_a_head_is_told_to_give_its_graph() -> None:
    class Head:
        graph = nn.Linear(1, 1)

    with pytest.raises(ValueError, match=r"give its \.graph"):
        training(Head(), sgd)
