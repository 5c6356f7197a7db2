"""Programs that do unusual things in a step: every engine trains them as a plain loop does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from flodl import Trainer
from flodl.data import Batch
from flodl.train import Callback, RunDirectory
from flodl.train.observers.ema import WeightAverage
from flodl.train.step import (
    AutoEngine,
    AutoPolicy,
    CompiledEngine,
    EagerEngine,
    StepSettings,
    TunedEngine as StepEngine,
)
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning
from tests.flodl.train.programs import line, squared_error, training
from tests.rows import each_row

TRY_ALL = AutoPolicy(least_steps=1, least_seconds=0.0, cost=1e9, compile_seconds=1e9)


@pytest.fixture(autouse=True)
def no_probe(monkeypatch):
    monkeypatch.setattr("flodl.train.step.auto.onednn_refusal", lambda: "not in this test")


@pytest.fixture
def traced(monkeypatch):
    """Trace with torch's compiler and run what it traced; returns the list of compilations."""
    compilations: list[object] = []
    real = torch.compile

    def backend(graph: Any, _: object) -> object:
        compilations.append(graph)
        return graph.forward

    def quick(function: Any, **settings: Any) -> object:
        return real(function, **{**settings, "backend": backend, "options": None})

    monkeypatch.setattr(torch, "compile", quick)
    return compilations


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return mse_loss(model(batch["x"]), batch["y"])


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def batches(count: int, rows: int = 6) -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    pairs = [
        (torch.randn(rows, 8, generator=draw), torch.randn(rows, 4, generator=draw))
        for _ in range(count)
    ]
    return [Batch(pair, ("x", "y")) for pair in pairs]


def trained(engine: StepEngine, data: list[Batch]) -> list[float]:
    losses = loss_log(torch.device("cpu"), 0)
    for batch in data:
        engine.step(batch, losses)
    return losses.take()


def auto(model: nn.Module, optimizer: torch.optim.Optimizer, train_fn: Any) -> AutoEngine:
    settings = StepSettings(train_fn=train_fn)
    return AutoEngine(model, optimizer, settings, total_steps=10_000, policy=TRY_ALL)


# --- State outside of the model ----------------------------------------------------------


class Annealed:
    """A training function that is an object with a counter."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.calls += 1
        return loss_fn(model, batch) / (1 + self.calls / 100)


def counting_closure() -> Any:
    seen = [0]

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        seen[0] += 1
        return loss_fn(model, batch) / (1 + seen[0] / 100)

    return train_fn


def with_teacher() -> Any:
    teacher = mlp()

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
        return loss_fn(model, batch) + mse_loss(model(batch["x"]), teacher(batch["x"]).detach())

    return train_fn


def with_adversary() -> Any:
    adversary = nn.Linear(4, 1)
    theirs = torch.optim.SGD(adversary.parameters(), lr=0.1)

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        made = model(batch["x"])
        theirs.zero_grad()
        (adversary(made.detach()).mean() - adversary(batch["y"]).mean()).backward()
        theirs.step()
        return loss_fn(model, batch) - adversary(made).mean()

    return train_fn


def with_second_loader() -> Any:
    unlabelled = iter(batches(1000))
    noise = torch.linspace(0, 1, 1000).tolist().__iter__()

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        return loss_fn(model, batch) + next(noise) * model(next(unlabelled)["x"]).square().mean()

    return train_fn


def drawing() -> Any:
    random.seed(3)
    np.random.seed(3)

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        return loss_fn(model, batch) * (random.random() + np.random.rand() + torch.rand(()))

    return train_fn


@pytest.mark.parametrize(
    "make",
    [Annealed, counting_closure, with_teacher, with_adversary, with_second_loader, drawing],
    ids=lambda make: make.__name__,
)
def test_auto_trains_a_function_that_changes_more_than_the_model_as_a_plain_loop_does(make):
    torch.manual_seed(5)
    mine = mlp()
    losses = trained(auto(mine, adam(mine), make()), batches(150))
    torch.manual_seed(5)
    theirs = mlp()
    plain = EagerEngine(theirs, adam(theirs), StepSettings(train_fn=make()))
    assert losses == pytest.approx(trained(plain, batches(150)), rel=1e-3)


class Counting(nn.Module):
    """Computes with a number that changes at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x) * (1 + 1 / self.calls)


@pytest.mark.slow
def test_a_compiled_step_survives_more_changes_than_torch_compiles_for(traced, capsys):
    mine, theirs = Counting(), Counting()
    engine = CompiledEngine(mine, adam(mine), StepSettings(train_fn=loss_fn))
    plain = TunedEngine(theirs, adam(theirs), StepSettings(train_fn=loss_fn))
    plain.use(Tuning(fused=True))
    assert trained(engine, batches(20)) == pytest.approx(trained(plain, batches(20)), rel=1e-5)
    assert mine.calls == 20
    assert len(traced) > 1
    assert "runs plainly from here on" in capsys.readouterr().err


@pytest.mark.usefixtures("traced")
def test_a_compiled_step_survives_batches_of_every_size():
    mine, theirs = mlp(), mlp()
    data = [batches(1, rows)[0] for rows in range(2, 14)]
    engine = CompiledEngine(mine, adam(mine), StepSettings(train_fn=loss_fn))
    plain = TunedEngine(theirs, adam(theirs), StepSettings(train_fn=loss_fn))
    plain.use(Tuning(fused=True))
    assert trained(engine, data) == pytest.approx(trained(plain, data), rel=1e-5)


def test_auto_never_compiles_again_once_it_has_decided(traced):
    model = mlp()
    model.temperature = 1.0

    def train_fn(model: Any, batch: Batch) -> Tensor:
        return loss_fn(model, batch) * model.temperature

    policy = AutoPolicy(
        least_steps=1, least_seconds=0.0, cost=1e9, compile_seconds=0.0, gain=-100.0
    )
    settings = StepSettings(train_fn=train_fn)
    engine = AutoEngine(model, adam(model), settings, total_steps=10**9, pure=True, policy=policy)
    while not engine.decided:
        trained(engine, batches(20))
    assert "compiled" in engine.report()["tuning"]
    assert len(traced) == 1
    for number in range(12):
        model.temperature = 1.0 + number
        trained(engine, batches(2, rows=3 + number))
    assert len(traced) == 1


@pytest.mark.usefixtures("traced")
def test_compiled_steps_with_sparse_gradients_use_the_optimizers_own_step():
    def words() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(8, 4))

    draw = torch.Generator().manual_seed(1)
    data = [
        Batch((torch.randint(0, 5, (6, 2), generator=draw), torch.ones(6, 4)), ("x", "y"))
        for _ in range(8)
    ]
    mine, theirs = words(), words()
    settings = StepSettings(train_fn=loss_fn)
    engine = CompiledEngine(mine, torch.optim.SGD(mine.parameters(), lr=0.1), settings)
    plain = EagerEngine(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), settings)
    assert trained(engine, data) == pytest.approx(trained(plain, data), rel=1e-5)


def test_an_optimizer_whose_step_was_replaced_keeps_its_own():
    model = mlp()
    optimizer = adam(model)
    original, steps = optimizer.step, []

    def step() -> None:
        steps.append(1)
        original()

    optimizer.step = step
    engine = TunedEngine(model, optimizer, StepSettings(train_fn=loss_fn))
    engine.use(Tuning(fused=True))
    trained(engine, batches(4))
    assert len(steps) == 4


# --- Optimizers -----------------------------------------------------------------------------------


class Unfreeze(Callback):
    """Begins to train the first layer in the second epoch, at a tenth of the rate."""

    def on_epoch_start(self, run: Any) -> None:
        if run.epoch == 1:
            run.model[0].requires_grad_(True)
            run.optimizer.add_param_group({"params": run.model[0].parameters(), "lr": 0.01})


class Halving:
    def lr(self, step: int) -> float:
        return 0.2 * 0.5**step


@each_row("engine", ["eager", "auto"])
def test_a_parameter_group_that_is_added_later_follows_the_schedule(engine):
    def model(_: object) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 4).requires_grad_(False), nn.Linear(4, 1))

    rates = []

    class Watch(Callback):
        def on_step_end(self, run: Any) -> None:
            rates.append([group["lr"] for group in run.optimizer.param_groups])

    optimizer = lambda params: torch.optim.SGD(params[2:], lr=0.1)  # noqa: E731
    builder = Trainer.builder(model, optimizer, squared_error).dataset(line(4)).batch_size(2)
    builder.num_epochs(2).device("cpu").engine(engine).scheduler(lambda _: Halving())
    builder.callbacks(Unfreeze(), Watch()).run()
    assert rates == [[0.2], [0.1], [0.05, pytest.approx(0.005)], [0.025, pytest.approx(0.0025)]]


def test_a_model_whose_parameters_have_no_shape_yet_is_refused_with_what_to_do(tmp_path):
    builder = training().run_dir(RunDirectory.create(tmp_path))
    builder._settings["model_factory"] = lambda _: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"no shape yet \(0\.weight, 0\.bias\): call it once"):
        builder.run()


# --- Averages -------------------------------------------------------------------------------------


class Centred(nn.Module):
    """Puts a new tensor in the place of its buffer at every call, and has a complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        return ((x - self.mean) * self.weight).abs()


def test_an_average_takes_complex_weights_and_buffers_that_are_replaced():
    model = Centred()
    average = WeightAverage(model, 0.5)
    with torch.no_grad():
        for value in (2.0, 4.0):
            model.weight.fill_(value * 1j)
            model(torch.full((2, 3), value))
            average.update()
    assert model.mean.tolist() == [2.5] * 3  # after 1 and 2.5
    with average.applied():
        assert model.mean.tolist() == [1.75] * 3
        assert model.weight.tolist() == [3j] * 3
        model(torch.full((2, 3), 9.0))
    assert model.mean.tolist() == [2.5] * 3
    assert model.weight.tolist() == [4j] * 3
