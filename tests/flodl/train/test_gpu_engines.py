"""Step engines on a GPU, where a fused kernel reads step counts beside the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flodl.data import Batch
from flodl.train.step import AutoEngine, EagerEngine, StepSettings
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning, place_step_counts

from .test_engines import TRY_ALL, batches, close_weights, loss_fn, mlp

KINDS = (
    lambda parameters, **more: torch.optim.Adam(parameters, lr=1e-2, **more),
    lambda parameters, **more: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True, **more),
    lambda parameters, **more: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, **more),
)
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu), "cpu"])


def on(device: str, count: int) -> list[Batch]:
    return [batch.to(torch.device(device)) for batch in batches(count)]


def train(engine: EagerEngine | TunedEngine, data: list[Batch]) -> None:
    losses = loss_log(torch.device("cpu"), 0)
    for batch in data:
        engine.step(batch.to(next(engine.model.parameters()).device), losses)


def counts(optimizer: torch.optim.Optimizer) -> list[tuple[str, float]]:
    kept = [one["step"] for one in optimizer.state.values() if "step" in one]
    return [(one.device.type, one.item()) for one in kept]


def moved(device: str) -> nn.Module:
    return mlp().to(device)


@gpu
@pytest.mark.parametrize("make", KINDS)
def test_fused_and_plain_steps_can_follow_each_other(device: str, make: Callable[..., Any]) -> None:
    model, reference = moved(device), moved(device)
    optimizer, plain = make(model.parameters()), make(reference.parameters())
    engine = TunedEngine(model, optimizer, StepSettings(train_fn=loss_fn))
    data = on(device, 20)
    train(engine, data[:5])
    engine.use(Tuning(fused=True))
    train(engine, data[5:10])
    engine.use(Tuning())
    train(engine, data[10:15])
    engine.use(Tuning(fused=True))
    train(engine, data[15:])
    engine.close()
    train(EagerEngine(reference, plain, StepSettings(train_fn=loss_fn)), data)

    assert close_weights(model, reference, 1e-4)
    assert counts(optimizer) == counts(plain)
    assert not any(group["fused"] for group in optimizer.param_groups)


@gpu
@pytest.mark.parametrize("make", KINDS)
def test_the_default_engine_trains_as_the_plain_step_does(
    device: str, make: Callable[..., Any]
) -> None:
    model, reference = moved(device), moved(device)
    optimizer, plain = make(model.parameters()), make(reference.parameters())
    settings = StepSettings(train_fn=loss_fn)
    engine = AutoEngine(model, optimizer, settings, total_steps=10**6, policy=TRY_ALL)
    data = on(device, 4) * 30
    train(engine, data)
    engine.close()
    train(EagerEngine(reference, plain, settings), data)

    assert close_weights(model, reference, 1e-3)
    assert counts(optimizer) == counts(plain)


@gpu
def test_counts_of_an_optimizer_that_the_user_fused_stay_where_they_are(device: str) -> None:
    model = moved(device)
    optimizer = KINDS[0](model.parameters(), fused=True)
    engine = AutoEngine(
        model, optimizer, StepSettings(train_fn=loss_fn), total_steps=10**6, policy=TRY_ALL
    )
    train(engine, on(device, 4) * 30)
    engine.close()
    assert counts(optimizer) == [(device, 120.0)] * len(list(model.parameters()))


def test_step_counts_move_beside_their_parameters():
    model = nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2)}
    place_step_counts(optimizer, fused=True)
    assert {one["step"].device.type for one in optimizer.state.values()} == {"meta"}
    assert {one["exp_avg"].device.type for one in optimizer.state.values()} == {"cpu"}
