"""A training function that calls ``backward`` itself is refused at the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flodl import Trainer
from tests.rows import each_row

from .programs import line, network, squared_error


def run(train_fn: Any, optimizer: Any = None, engine: str = "eager", device: str = "cpu") -> None:
    (
        Trainer.builder(
            lambda _: network(), optimizer or (lambda p: torch.optim.SGD(p, 0.1)), train_fn
        )
        .dataset(line(12))
        .batch_size(4)
        .num_epochs(1)
        .engine(engine)
        .device(device)
        .progress(False)
        .run()
    )


def backward(model: Any, batch: Any) -> Tensor:
    loss = squared_error(model, batch)
    loss.backward()
    return loss


def kept(model: Any, batch: Any) -> Tensor:
    loss = squared_error(model, batch)
    loss.backward(retain_graph=True)
    return loss


def detached(model: Any, batch: Any) -> Tensor:
    return backward(model, batch).detach()


def number(model: Any, batch: Any) -> Any:
    return backward(model, batch).item()


TOLD = r"train_fn called backward\(\): the Trainer does that itself\. .*your own loop with"


@each_row("train_fn", [backward, kept, detached, number])
def test_it_is_told_both_ways(train_fn: Any) -> None:
    with pytest.raises(ValueError, match=TOLD):
        run(train_fn)


on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu), "cpu"])
def test_a_step_that_is_to_be_captured_is_plain_first_and_told_the_same(device: str) -> None:
    with pytest.raises(ValueError, match=TOLD):
        run(kept, engine="cuda_graph", device=device)


def test_an_optimizer_with_a_closure_tells_the_same() -> None:
    with pytest.raises(ValueError, match=TOLD):
        run(kept, lambda p: torch.optim.LBFGS(p, max_iter=2))


def test_gradients_that_the_optimizer_does_not_use_are_allowed() -> None:
    other = network()

    def with_penalty(model: Any, batch: Any) -> Tensor:
        other(batch["x"]).square().mean().backward()
        x = batch["x"].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return squared_error(model, batch) + slope.square().mean()

    run(with_penalty)
