"""Optimizers that evaluate the loss several times per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch
from flodl.errors import DivergedError
from flodl.nn.schedule import StepDecay
from flodl.train import Callback, RunDirectory, TrainerBuilder, record_scalar
from tests.rows import each_row

from .programs import line, loader_as_built, squared_error


def model(_: Any = None) -> nn.Module:
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))


def lbfgs(parameters: Any) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=4, history_size=3)


class Counted:
    """A training function that knows how often it was called."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        loss = squared_error(net, batch)
        self.losses.append(loss.item())
        record_scalar("evaluated", loss.detach())
        return loss


def training(train_fn: Any, epochs: int = 3) -> TrainerBuilder:
    builder = Trainer.builder(model, lbfgs, train_fn).dataset(line(12)).batch_size(4)
    return builder.num_epochs(epochs).device("cpu")


def plain(epochs: int = 3, max_norm: float | None = None) -> tuple[nn.Module, list[float], int]:
    """The model, the first loss of each step, and the number of evaluations of a plain loop."""
    torch.manual_seed(42)
    net = model()
    optimizer = lbfgs(net.parameters())
    firsts, calls = [], 0
    loader = loader_as_built(line(12), 4)
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):

            def closure(batch: Batch = batch) -> Tensor:
                nonlocal calls
                calls += 1
                optimizer.zero_grad()
                loss = squared_error(net, batch)
                loss.backward()
                if max_norm is not None:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
                return loss

            firsts.append(optimizer.step(closure).item())
    return net, firsts, calls


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_lbfgs_trains_as_in_a_plain_loop(engine: str) -> None:
    counted = Counted()
    handle = training(counted).engine(engine).run()
    net, firsts, calls = plain()
    assert same(handle.model, net)
    assert len(counted.losses) == calls, "no evaluation but those of the optimizer"
    assert calls > 9
    metrics = handle.poll_metrics()
    assert [one.avg_loss for one in metrics] == [
        pytest.approx(sum(firsts[at : at + 3]) / 3) for at in (0, 3, 6)
    ]


@pytest.mark.slow
def test_a_long_training_with_auto_makes_no_other_calls() -> None:
    counted = Counted()
    training(counted, epochs=80).run()  # 240 steps: enough for trials
    assert len(counted.losses) == plain(80)[2]


def test_gradients_are_clipped_in_every_evaluation() -> None:
    handle = training(squared_error).max_grad_norm(0.1).run()
    assert same(handle.model, plain(max_norm=0.1)[0])
    assert not same(handle.model, plain()[0])


def test_a_schedule_and_an_average_go_with_it() -> None:
    rates: list[float] = []

    class Watch(Callback):
        def on_step_end(self, run: Any) -> None:
            rates.append(run.optimizer.param_groups[0]["lr"])

    builder = training(squared_error, epochs=1).scheduler(lambda _: StepDecay(0.4, 1, 0.5))
    handle = builder.ema(0.5).callbacks(Watch()).run()
    assert rates == [0.4, 0.2, 0.1]
    assert not torch.equal(handle.average().params[0], handle.join().params[0])


def test_a_resumed_training_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    class Cut(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.global_step == 5:
                raise KeyboardInterrupt

    run = RunDirectory.create(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        training(squared_error).callbacks(Cut()).checkpoint_steps(4).run_dir(run).run()
    counted = Counted()
    assert same(training(counted).resume(run.path).run().model, plain()[0])
    assert len(counted.losses) == plain()[2] - plain_calls(4)


def plain_calls(steps: int) -> int:
    """Evaluations of the first steps; three make an epoch."""
    counted = Counted()

    class Stop(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.global_step == steps:
                run.stop("enough")

    training(counted).callbacks(Stop()).run()
    return len(counted.losses)


def test_a_loss_that_is_not_finite_ends_the_training_before_anything_moves() -> None:
    before = torch.tensor([])

    def train_fn(net: nn.Module, batch: Batch) -> Tensor:
        nonlocal before
        before = net[0].weight.detach().clone()  # type: ignore[index]
        return squared_error(net, batch) * float("nan")

    builder = training(train_fn)
    net = model()
    builder = Trainer.builder(net, lbfgs, train_fn).dataset(line(12)).batch_size(4).num_epochs(1)
    with pytest.raises(DivergedError, match="epoch 0, step 0"):
        builder.device("cpu").run()
    assert torch.equal(net[0].weight, before)  # type: ignore[index]


class Own(torch.optim.SGD):
    """An optimizer of the user's that evaluates twice."""

    def step(self, closure: Any) -> Any:
        first = closure()
        super().step()
        closure()
        super().step()
        return first


def test_any_optimizer_whose_step_needs_a_closure_is_taken() -> None:
    counted = Counted()
    builder = Trainer.builder(model, lambda p: Own(p, lr=0.01), counted)
    builder.dataset(line(12)).batch_size(4).num_epochs(1).device("cpu").run()
    assert len(counted.losses) == 6


def never(model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG001 - it is never called
    raise AssertionError("no step may be taken")


@each_row(
    ("told", "change"),
    [
        (r"engine='compiled' \(use \.engine\('eager'\)\)", lambda b: b.engine("compiled")),
        (r"engine='cuda_graph'", lambda b: b.engine("cuda_graph")),
        (r"\.accumulate\(2\)", lambda b: b.accumulate(2)),
        (r"micro_batch=2", lambda b: b.ddp({"micro_batch": 2})),
        (r"a gradient scaler \(use \.autocast", lambda b: b.autocast(torch.float16)),
    ],
)
def test_what_does_not_go_with_a_closure_is_refused(told: str, change: Any) -> None:
    builder = Trainer.builder(model, lbfgs, never).dataset(line(12))
    change(builder.batch_size(4).num_epochs(1).device("cpu"))
    with pytest.raises(ValueError, match=rf"LBFGS evaluates the loss several times.*{told}"):
        builder.run()
