"""Engine auto tries the rewrites of a graph like any other tuning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from flodl import Trainer
from flodl.data import Batch, TensorDataSet
from flodl.graph import FlowBuilder, Graph, SoftmaxRouter
from flodl.train.engines import AutoEngine, AutoPolicy, EagerEngine, StepEngine, StepSettings
from flodl.train.engines.routing import RouteVerdict
from flodl.train.engines.tuned import TunedEngine
from flodl.train.engines.tuning import Tuning
from flodl.train.losses import loss_log

KEEP_ALL = AutoPolicy(
    least_steps=1, least_seconds=0.0, gain=-1e9, block=2, short_step=0.0, slow_route=0.0
)
"""Tries everything in a few steps, and keeps all of it."""

NAMED = ["gate_2: experts as one product"]


@pytest.fixture(autouse=True)
def no_route(monkeypatch):
    verdict = RouteVerdict(reason="not in this test")
    monkeypatch.setattr("flodl.train.engines.auto.route_verdict", lambda _: verdict)


def mixture() -> Graph:
    torch.manual_seed(0)
    experts = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(4)]
    flow = FlowBuilder.from_(nn.Linear(8, 8)).gate(SoftmaxRouter(8, 4), experts)
    return flow.through(nn.Linear(8, 4)).build()


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return mse_loss(model(batch["x"]), batch["y"])


def batches(count: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    return [
        Batch((torch.randn(6, 8, generator=draw), torch.randn(6, 4, generator=draw)), ("x", "y"))
        for _ in range(count)
    ]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def trained(engine: StepEngine, steps: int) -> list[float]:
    losses = loss_log(torch.device("cpu"), 0)
    for batch in batches(steps):
        engine.step(batch, losses)
    return losses.take()


def auto(model: nn.Module, **settings: object) -> AutoEngine:
    taken = StepSettings(train_fn=loss_fn, **settings)
    return AutoEngine(model, adam(model), taken, total_steps=10**6, policy=KEEP_ALL)


def test_a_step_with_rewritten_graphs_trains_the_same_model_within_rounding():
    mine, theirs = mixture(), mixture()
    engine = TunedEngine(mine, adam(mine), StepSettings(train_fn=loss_fn))
    engine.use(Tuning(rewritten=True))
    expected = trained(EagerEngine(theirs, adam(theirs), StepSettings(train_fn=loss_fn)), 30)
    assert trained(engine, 30) == pytest.approx(expected, rel=1e-5)
    assert engine.report()["tuning"] == ["rewritten graph"]
    assert engine.report()["rewrites"] == NAMED


def test_the_graph_is_rewritten_inside_a_step_and_plain_outside():
    seen = []

    def looking(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(model.is_rewritten)
        return loss_fn(model, batch)

    model = mixture()
    engine = TunedEngine(model, adam(model), StepSettings(train_fn=looking))
    engine.use(Tuning(rewritten=True))
    trained(engine, 2)
    assert seen == [True, True]
    assert not model.is_rewritten

    def failing(*_: object) -> Tensor:
        raise ValueError("no")

    engine = TunedEngine(model, adam(model), StepSettings(train_fn=failing))
    engine.use(Tuning(rewritten=True))
    with pytest.raises(ValueError, match="no"):
        trained(engine, 1)
    assert not model.is_rewritten


def test_activation_checkpointing_runs_the_same_way_again():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = mixture()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.graph, x, use_reentrant=False)

    mine, theirs = Outer(), mixture()
    engine = TunedEngine(mine, adam(mine), StepSettings(train_fn=loss_fn))
    engine.use(Tuning(rewritten=True))
    expected = trained(EagerEngine(theirs, adam(theirs), StepSettings(train_fn=loss_fn)), 5)
    assert trained(engine, 5) == pytest.approx(expected, rel=1e-5)
    assert engine.report()["rewrites"] == ["graph.gate_2: experts as one product"]


def test_auto_tries_it_names_the_nodes_and_keeps_it_for_the_next_run():
    mine, theirs = mixture(), mixture()
    engine = auto(mine)
    losses = trained(engine, 120)
    expected = trained(EagerEngine(theirs, adam(theirs), StepSettings(train_fn=loss_fn)), 120)
    assert losses == pytest.approx(expected, rel=1e-3)
    assert engine.decided
    report = engine.report()
    assert report["trials"]["rewritten graph"].endswith("x")
    assert "rewritten graph" in report["tuning"]
    assert report["rewrites"] == NAMED
    assert not mine.is_rewritten

    later = auto(mixture())
    trained(later, 1)
    assert later.report()["source"] == "cache"
    assert later.report()["rewrites"] == NAMED

    # The same classes and shapes, so the same decision; but here nothing can be rewritten.
    hooked = mixture()
    hooked.gate_2.experts[0].register_forward_hook(lambda *_: None)
    other = auto(hooked)
    trained(other, 1)
    assert other.report()["source"] == "cache"
    assert "rewritten graph" not in other.report()["tuning"]


def test_auto_does_not_try_it_where_nothing_can_be_rewritten():
    engine = auto(FlowBuilder.from_(nn.Linear(8, 4)).build())
    trained(engine, 120)
    assert "rewritten graph" not in engine.report()["trials"]

    engine = auto(mixture(), autocast=torch.bfloat16)
    trained(engine, 120)
    assert "rewritten graph" not in engine.report()["trials"]

    mine = mixture().rewrite()
    engine = auto(mine)
    trained(engine, 120)
    assert "rewritten graph" not in engine.report()["trials"]
    assert mine.is_rewritten


def test_a_training_with_engine_eager_rewrites_nothing_and_a_default_run_neither_if_short():
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 8, generator=draw), torch.randn(12, 4, generator=draw)
    data = TensorDataSet(x, y, names=("x", "y"))
    found = []
    for engine in ("eager", "auto"):
        builder = Trainer.builder(lambda _: mixture(), adam_of, loss_fn).dataset(data)
        builder.batch_size(6).num_epochs(3).device("cpu").engine(engine)
        found.append(builder.run().model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def adam_of(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)
