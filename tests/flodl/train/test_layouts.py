"""Values laid out with their channels innermost: nobody outside of torch's layers may notice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what everyone calls it
from torch.nn.utils import parameters_to_vector
from torch.overrides import TorchFunctionMode

from flodl.data import Batch
from flodl.train.step import AutoEngine, AutoPolicy, EagerEngine, StepSettings
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import ChannelsLast, Tuning, has_hooks, rows_of_layers
from tests.rows import each_row

ONLY_LAYOUT = AutoPolicy(
    least_steps=1,
    least_seconds=0.0,
    cost=1e9,
    gain=-1e9,
    block=1,
    only=frozenset({"channels_last"}),
)


class Looking(nn.Module):
    """A layer of the user, which notes the layout of what it receives."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between, self.seen = between, list[bool]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.is_contiguous())
        return self.between(x)


def network(between: Callable[[Tensor], Tensor]) -> nn.Sequential:
    torch.manual_seed(0)
    row = (nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return nn.Sequential(*row, nn.Conv2d(4, 4, 1), Looking(between), nn.Linear(64, 2))


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def batches(count: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    pairs = [(torch.randn(5, 3, 4, 4, generator=draw), torch.ones(5, 2)) for _ in range(count)]
    return [Batch(pair, ("x", "y")) for pair in pairs]


def trained(engine: TunedEngine, data: list[Batch]) -> list[float]:
    losses = loss_log(torch.device("cpu"), 0)
    for batch in data:
        engine.step(batch, losses)
    return losses.take()


def laid_out(model: nn.Module) -> TunedEngine:
    engine = TunedEngine(model, adam(model), StepSettings(train_fn=loss_fn))
    engine.use(Tuning(channels_last=True))
    return engine


def viewing(x: Tensor) -> Tensor:
    return x.view(len(x), -1)


def striding(x: Tensor) -> Tensor:
    return torch.as_strided(x, (len(x), 64), (64, 1))


def dropping(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5).flatten(1)


def through_numpy(x: Tensor) -> Tensor:
    return x.flatten(1) + float(x.detach().numpy().ravel("K")[1])


def hooked(x: Tensor) -> Tensor:
    x.register_hook(lambda grad: grad.view(-1).clone().view_as(grad))
    return x.flatten(1)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad.view(-1).mul(2).view_as(grad)


def own_function(x: Tensor) -> Tensor:
    return Doubled.apply(x).flatten(1)


@each_row("between", [viewing, striding, dropping, through_numpy, hooked, own_function])
def test_a_step_that_depends_on_the_layout_finds_the_usual_one(
    between: Callable[[Tensor], Tensor],
) -> None:
    mine, theirs = network(between), network(between)
    torch.manual_seed(3)
    losses = trained(engine := laid_out(mine), batches(12))
    torch.manual_seed(3)
    plain = trained(EagerEngine(theirs, adam(theirs), StepSettings(train_fn=loss_fn)), batches(12))
    assert losses == pytest.approx(plain, rel=1e-5)
    assert mine[4].seen == [True] * 12
    assert "forward" not in vars(mine)
    assert all(p.is_contiguous() for p in mine.parameters())
    states = engine.optimizer.state.values()
    assert all(value.is_contiguous() for state in states for value in state.values())
    assert parameters_to_vector(mine.parameters()).numel() == 270


@contextmanager
def seen_by_convolutions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Note whether convolutions receive values with their channels innermost."""
    seen: list[bool] = []
    real = nn.Conv2d.forward

    def forward(self: nn.Conv2d, x: Tensor) -> Tensor:
        seen.append(not x.is_contiguous())
        return real(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(nn.Conv2d, "forward", forward)
        yield seen


@each_row(
    "hook",
    [
        lambda model: model[3].register_forward_hook(lambda *_: None),
        lambda model: model[3].register_full_backward_hook(lambda *_: None),
        lambda model: model[0].weight.register_hook(lambda _: None),
        lambda model: model[0].weight.register_post_accumulate_grad_hook(lambda _: None),
        lambda _: nn.modules.module.register_module_forward_hook(lambda *_: None),
    ],
    ids=["forward", "backward", "gradient", "accumulated", "all modules"],
)
def test_hooks_find_the_usual_layout(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(viewing)
    engine = laid_out(model)
    with seen_by_convolutions(monkeypatch) as seen:
        trained(engine, batches(1))
        handle = hook(model)
        assert has_hooks(model)
        trained(engine, batches(1))
        handle.remove()
        trained(engine, batches(1))
    assert seen == [True, True, False, False, True, True]


class Noting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_row_is_left_alone_where_its_values_could_be_seen_or_lie_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = network(viewing), batches(1)[0]["x"]
    lying = copy.deepcopy(model).to(memory_format=torch.channels_last)
    with seen_by_convolutions(monkeypatch) as seen, ChannelsLast(model):
        with Noting():
            model(x)
        model[0](x)
        assert seen == [False, False, False]
        model(x)
        assert seen[3:] == [True, True]
    out = x.to(memory_format=torch.channels_last)
    for one, value in ((model, out), (lying, x)):
        plain = one[:4](value)
        with ChannelsLast(one):
            found = nn.Sequential.forward(one[:4], value)
            assert found.stride() == plain.stride()


def test_a_row_needs_two_layers_that_torch_computes_alike() -> None:
    class Own(nn.Conv2d):
        pass

    class Chain(nn.Sequential):
        pass

    convolution = nn.Conv2d(3, 3, 1)
    assert rows_of_layers(network(viewing))
    assert not rows_of_layers(nn.Sequential(convolution, nn.Dropout(0.5), nn.Linear(2, 2)))
    assert not rows_of_layers(nn.Sequential(Own(3, 3, 1), nn.ReLU()))
    assert not rows_of_layers(Chain(convolution, nn.ReLU()))
    inner = nn.Sequential(convolution, nn.ReLU())
    assert rows_of_layers(nn.Sequential(nn.Flatten(), inner)) == [inner]


def test_auto_tries_it_and_undoes_it_after_each_step() -> None:
    model = network(viewing)
    engine = AutoEngine(
        model, adam(model), StepSettings(train_fn=loss_fn), total_steps=10**6, policy=ONLY_LAYOUT
    )
    trained(engine, batches(60))
    assert engine.report()["tuning"] == ["channels last"]
    assert "forward" not in vars(model)

    def failing(_: Tensor) -> Tensor:
        raise RuntimeError("no")

    model[4].between = failing
    with pytest.raises(RuntimeError, match="no"):
        trained(engine, batches(1))
    assert "forward" not in vars(model)
