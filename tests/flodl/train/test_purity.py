"""`-v` names `.pure_step()` where a step looks pure, with the gain that a copy has shown."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from flodl import log
from flodl.checkpoint.generators import generator_states, same
from flodl.data import Batch
from flodl.train.step.trials import doubt
from tests.flodl.train.simulated_gpu import Model, SimulatedGpu, decide, engine_on
from tests.rows import each_row

WIDTH, SCALES = 2, (1.0, 2.0)
SEEN: list[float] = []
SECOND = nn.Linear(2, 1)
CALLS = 0


def pure(model: nn.Module, batch: Batch) -> Tensor:
    outputs = [helper(model(batch["x"]), scale) for scale in SCALES]
    loss: Tensor = torch.stack(outputs).sum() * WIDTH
    return loss


def helper(x: Tensor, scale: float) -> Tensor:
    return x * scale


def reads(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(batch["x"]).sum()
    return loss if loss.item() > 0 else -loss


def counts(model: nn.Module, batch: Batch) -> Tensor:
    global CALLS
    CALLS += 1
    return pure(model, batch)


def keeps(model: nn.Module, batch: Batch) -> Tensor:
    SEEN.append(0.0)
    return pure(model, batch)


def trains_another(model: nn.Module, batch: Batch) -> Tensor:
    return pure(model, batch) + SECOND(batch["x"]).sum()


def prints_deep_inside(model: nn.Module, batch: Batch) -> Tensor:
    return keeping(pure(model, batch))


def keeping(loss: Tensor) -> Tensor:
    print(loss)
    return loss


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(2, 1), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x)


class Remembering(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.past: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.past.append(x)
        return self.inner(x)


def counting_closure() -> Callable[..., Tensor]:
    count = 0

    def step(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal count
        count += 1
        return pure(model, batch)

    return step


@each_row(
    ("model", "train_fn", "told"),
    [
        (nn.Linear(2, 1), pure, ""),
        (nn.Linear(2, 1), lambda model, batch: 2 * pure(model, batch), ""),
        (nn.Linear(2, 1), reads, "reads calls item"),
        (nn.Linear(2, 1), counts, "counts sets CALLS"),
        (nn.Linear(2, 1), counting_closure(), "sets count"),
        (nn.Linear(2, 1), keeps, "keeps uses SEEN, a list"),
        (nn.Linear(2, 1), trains_another, "uses SECOND, a Linear"),
        (nn.Linear(2, 1), prints_deep_inside, "keeping calls print"),
        (Counting(), pure, "Counting.forward sets calls"),
        (Remembering(), pure, "Remembering.past is a list"),
    ],
)
def test_code_that_may_change_something_else_is_not_called_pure(
    model: nn.Module, train_fn: Any, told: str
) -> None:
    found = doubt(model, train_fn)
    assert told in found
    assert bool(told) is bool(found)


@pytest.fixture
def verbose() -> Iterator[None]:
    before = log.verbosity()
    log.set_verbosity("verbose")
    yield
    log.set_verbosity(before)


def told_after_an_epoch(patch: pytest.MonkeyPatch, capsys: Any, **more: Any) -> str:
    """Train until auto has decided and an epoch has ended; return the line about it, if any."""
    gpu = SimulatedGpu(Model(1.5, 1.2, update=(0.8, 0.3), fused=(0.12, 0.1), compiled=None))
    engine = engine_on(gpu, patch, steps=1_000_000, pure=False, **more)
    steps = decide(engine)
    weights = [one.clone() for one in engine.model.parameters()]
    states = generator_states()
    engine.end_epoch()
    assert all(map(torch.equal, weights, engine.model.parameters()))
    engine.step(Batch((torch.ones(1, 2),), ("x",)), Losses())
    assert engine.global_step == steps + 1
    assert same(states, generator_states()) or "train_fn" in more  # only the step itself draws
    lines = capsys.readouterr().out.splitlines()
    return next((line for line in lines if ".pure_step()" in line), "")


class Losses:
    def add(self, loss: Tensor) -> None:
        assert loss.dim() == 0


@pytest.mark.usefixtures("verbose")
def test_verbose_names_the_line_to_add_and_what_a_copy_has_gained(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    line = told_after_an_epoch(monkeypatch, capsys)
    assert "add .pure_step(): 1.62 -> 1.3 ms per step with fused optimizer + CUDA graph" in line
    assert "measured on a copy" in line


@pytest.mark.usefixtures("verbose")
def test_a_step_that_draws_numbers_is_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def dropping(model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = dropout(model(batch["x"]), 0.5).sum()
        return loss

    assert told_after_an_epoch(monkeypatch, capsys, train_fn=dropping) == ""

    def tossing(model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(batch["x"]).sum()
        return loss * random.random()

    assert told_after_an_epoch(monkeypatch, capsys, train_fn=tossing) == ""


class Uncopied(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        raise MemoryError("no room for a copy")


@pytest.mark.usefixtures("verbose")
def test_a_model_that_cannot_be_copied_trains_on(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert told_after_an_epoch(monkeypatch, capsys, model=Uncopied(2, 1)) == ""


def test_without_verbose_no_copy_is_trained(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert told_after_an_epoch(monkeypatch, capsys) == ""
