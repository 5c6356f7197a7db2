"""Weights laid out with their channels innermost: nobody outside of the kernels may notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what everyone calls it
from torch.nn.utils import parameters_to_vector

from flodl import Trainer
from flodl.data import Batch, TensorDataSet
from flodl.train import Callback, RunDirectory
from flodl.train.engines import AutoEngine, AutoPolicy, EagerEngine, StepEngine, StepSettings
from flodl.train.engines.tuned import TunedEngine
from flodl.train.engines.tuning import Tuning
from flodl.train.losses import loss_log

ONLY_LAYOUT = AutoPolicy(
    least_steps=1,
    least_seconds=0.0,
    cost=1e9,
    gain=-1e9,
    block=1,
    only=frozenset({"fused", "channels_last"}),
)


class Network(nn.Module):
    """A convolution, something the user does with its result, and a head.

    Args:
        between: ``(model, features) -> features of shape [B, 64]``.
    """

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(64, 2)
        self.between = between
        self.kept: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.head(self.between(self, self.conv(x).relu()))
        return out


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def batches(count: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    pairs = [(torch.randn(5, 3, 4, 4, generator=draw), torch.ones(5, 2)) for _ in range(count)]
    return [Batch(pair, ("x", "y")) for pair in pairs]


def trained(engine: StepEngine, data: list[Batch]) -> list[float]:
    losses = loss_log(torch.device("cpu"), 0)
    for batch in data:
        engine.step(batch, losses)
    return losses.take()


def eager_losses(between: Callable[[Any, Tensor], Tensor], count: int) -> list[float]:
    model = Network(between)
    torch.manual_seed(3)
    return trained(EagerEngine(model, adam(model), StepSettings(train_fn=loss_fn)), batches(count))


def engine_for(model: nn.Module) -> AutoEngine:
    settings = StepSettings(train_fn=loss_fn)
    return AutoEngine(model, adam(model), settings, total_steps=10**6, policy=ONLY_LAYOUT)


def flat(_: Any, x: Tensor) -> Tensor:
    return x.flatten(1)


# --- What is seen in plain steps ------------------------------------------------------------------


def viewing(_: Any, x: Tensor) -> Tensor:
    return x.view(len(x), -1)


def striding(_: Any, x: Tensor) -> Tensor:
    return torch.as_strided(x, (len(x), 64), (64, 1))


def dropping(_: Any, x: Tensor) -> Tensor:
    return F.dropout(x, 0.5).flatten(1)


def noising(_: Any, x: Tensor) -> Tensor:
    return (x + torch.randn_like(x)).flatten(1)


def reading(model: Any, x: Tensor) -> Tensor:
    return x.flatten(1) + parameters_to_vector(model.parameters()).mean()


def keeping(model: Any, x: Tensor) -> Tensor:
    model.kept = [x.detach()]
    return x.flatten(1)


def through_numpy(_: Any, x: Tensor) -> Tensor:
    return x.flatten(1) + float(x.detach().numpy().ravel("K")[1])


def hooked(_: Any, x: Tensor) -> Tensor:
    x.register_hook(lambda grad: grad.view(-1).clone().view_as(grad))
    return x.flatten(1)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad.view(-1).mul(2).view_as(grad)


def own_function(_: Any, x: Tensor) -> Tensor:
    return Doubled.apply(x).flatten(1)


@pytest.mark.parametrize(
    ("between", "told"),
    [
        (viewing, "view"),
        (striding, "as_strided"),
        (dropping, "dropout"),
        (noising, "randn_like"),
        (reading, "reads a weight"),
        (keeping, "outlives"),
        (through_numpy, "numpy"),
        (hooked, "register_hook"),
        (own_function, "Doubled"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_step_that_depends_on_the_layout_keeps_it(
    between: Callable[[Any, Tensor], Tensor], told: str
) -> None:
    model = Network(between)
    torch.manual_seed(3)
    losses = trained(engine := engine_for(model), batches(80))
    assert losses == pytest.approx(eager_losses(between, 80), rel=1e-5)
    assert engine.decided
    assert told in engine.report()["trials"]["channels last"]
    assert model.calls == 80
    assert model.conv.weight.is_contiguous()


def test_a_step_that_does_not_depend_on_it_is_laid_out() -> None:
    model = Network(flat)
    losses = trained(engine := engine_for(model), batches(80))
    assert losses == pytest.approx(eager_losses(flat, 80), rel=1e-5)
    assert "channels last" in engine.report()["tuning"]
    assert not model.conv.weight.is_contiguous()
    assert model.calls == 80
    engine.present()
    assert model.conv.weight.is_contiguous()


def test_watching_draws_nothing_and_ends() -> None:
    model = Network(flat)
    before = torch.get_rng_state()
    trained(engine_for(model), batches(12))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch._C._len_torch_function_stack() == 0


# --- What happens only later ----------------------------------------------------------------------


def later(between: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def either(model: Any, x: Tensor) -> Tensor:
        return (between if model.calls in (6, 9) else flat)(model, x)

    return either


@pytest.mark.parametrize(
    "between",
    [viewing, striding, dropping, noising, reading, keeping, own_function],
    ids=lambda value: value.__name__,
)
def test_a_later_step_that_depends_on_it_is_given_what_it_expects(
    between: Callable[[Any, Tensor], Tensor],
) -> None:
    model = Network(later(between))
    optimizer = adam(model)
    engine = TunedEngine(model, optimizer, StepSettings(train_fn=loss_fn))
    engine.use(Tuning(channels_last=True))
    data = batches(12)
    torch.manual_seed(3)
    losses = trained(engine, data[:5])
    assert not model.conv.weight.is_contiguous()
    losses += trained(engine, data[5:6])
    assert not engine.tuning.channels_last
    assert model.conv.weight.is_contiguous()
    assert all(kept.is_contiguous() for kept in model.kept)
    losses += trained(engine, data[6:])
    assert losses == pytest.approx(eager_losses(later(between), 12), rel=1e-5)


def test_a_value_is_changed_through_what_was_flattened_from_it() -> None:
    def between(_: Any, x: Tensor) -> Tensor:
        x = x * 1
        x.flatten(1)[:, :8] = 0
        return x.reshape(len(x), -1)

    model = Network(between)
    engine = TunedEngine(model, adam(model), StepSettings(train_fn=loss_fn))
    engine.use(Tuning(channels_last=True))
    assert trained(engine, batches(8)) == pytest.approx(eager_losses(between, 8), rel=1e-5)


# --- Outside of the step --------------------------------------------------------------------------


class Vectors(Callback):
    """Reads the weights as one vector wherever a callback may."""

    def __init__(self, *, steps: bool = False) -> None:
        self.seen: list[str] = []
        if steps:
            self.on_step_end = lambda run: self._read("step", run)  # type: ignore[method-assign]

    def _read(self, where: str, run: Any) -> None:
        assert parameters_to_vector(run.model.parameters()).numel() == 242
        for state in run.optimizer.state.values():
            assert all(value.is_contiguous() for value in state.values())
        assert all(value.is_contiguous() for value in run.model.state_dict().values())
        self.seen.append(where)

    def on_epoch_start(self, run: Any) -> None:
        self._read("start", run)

    def on_epoch_end(self, run: Any, metrics: object) -> None:  # noqa: ARG002
        self._read("end", run)

    def on_checkpoint(self, run: Any, path: object) -> None:  # noqa: ARG002
        self._read("checkpoint", run)

    def on_exception(self, run: Any, error: BaseException) -> None:  # noqa: ARG002
        self._read("exception", run)

    def on_train_end(self, run: Any) -> None:
        self._read("train end", run)


def images_training(model: nn.Module, watcher: Callback) -> Any:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(100, 3, 4, 4, generator=draw), torch.ones(100, 2)
    return (
        Trainer.builder(lambda _: model, lambda p: torch.optim.Adam(p, lr=1e-3), loss_fn)
        .dataset(TensorDataSet(x, y, names=("x", "y")))
        .batch_size(2)
        .device("cpu")
        .callbacks(watcher)
    )


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every training lay out weights in its first steps."""
    monkeypatch.setattr("flodl.train.engines.auto.AutoPolicy", lambda: ONLY_LAYOUT)


@pytest.mark.usefixtures("laid_out")
def test_weights_are_one_vector_wherever_user_code_meets_them(tmp_path: Any) -> None:
    watcher, model = Vectors(), Network(flat)
    seen: list[object] = []

    def vector_of(model: nn.Module) -> int:
        return parameters_to_vector(model.parameters()).numel()

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append("eval")
        return {"norm": float(parameters_to_vector(model.parameters()).norm())}

    training = images_training(model, watcher).num_epochs(4).eval_fn(evaluate)
    training.checkpoint_fn(lambda _, m: seen.append(vector_of(m)))
    training.checkpoint_steps(7).run_dir(RunDirectory.create(tmp_path)).run()
    assert watcher.seen.count("end") == watcher.seen.count("start") == 4
    assert watcher.seen.count("checkpoint") == 4 + 200 // 7
    assert watcher.seen[-1] == "train end"
    assert seen == ["eval", 242] * 4


@pytest.mark.usefixtures("laid_out")
def test_weights_are_one_vector_after_each_step_and_after_an_error() -> None:
    def failing(model: Any, x: Tensor) -> Tensor:
        if model.calls == 150:
            raise RuntimeError("no")
        return x.flatten(1)

    watcher, model = Vectors(steps=True), Network(failing)
    with pytest.raises(RuntimeError, match="no"):
        images_training(model, watcher).num_epochs(4).run()
    assert watcher.seen.count("step") == 149
    assert watcher.seen[-1] == "exception"
    assert parameters_to_vector(model.parameters()).numel() == 242
