"""CUDA graphs beside plain steps, with stand-ins for the graph and for the clock of the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flodl.data import Batch
from flodl.train.metrics import ScalarLog, record_scalar, recording_into
from flodl.train.step import AutoEngine, AutoPolicy, StepSettings, auto, capturing
from flodl.train.step.step_values import loss_log
from flodl.train.step.trials import DeviceClock, Taken, median_of_steps
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning

from .test_engines import CPU, Rate, adam, batches, close_weights, loss_fn, mlp, plain_losses

POLICY = AutoPolicy(
    least_steps=1,
    least_seconds=0.0,
    cost=1e9,
    compile_seconds=1e9,
    only=frozenset({"fused", "captured"}),
)


class Queue:
    """Stands in for a GPU: its time goes on as its steps say, and it counts who waits for it."""

    def __init__(self, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.now, self.waits, self.graphs = 0.0, 0, 0
        self.seconds = seconds

    def mark(self) -> Mark:
        self.now += self.seconds()
        return Mark(self, self.now)


class Mark:
    def __init__(self, queue: Queue, at: float) -> None:
        self.queue, self.at = queue, at

    def synchronize(self) -> None:
        self.queue.waits += 1

    def elapsed_time(self, later: Mark) -> float:
        return (later.at - self.at) * 1e3


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processor "captures": nothing runs then, and a replay runs the function."""
    replays: list[int] = []

    class Graph:
        def __init__(self, function: Callable[[], object]) -> None:
            self.function = function

        def replay(self) -> None:
            replays.append(1)
            self.function()

    def capture(warmup: int, pool: object, function: Callable[[], object]) -> Graph:
        assert (warmup, pool) == (0, None)
        return Graph(function)

    for module in (auto, capturing):
        monkeypatch.setattr(module, "captures_on", lambda _: True)
    monkeypatch.setattr(capturing, "cuda_graph_capture", capture)
    return replays


def trained(engine: TunedEngine, data: list[Batch]) -> list[float]:
    losses = loss_log(CPU, 0)
    for batch in data:
        engine.step(batch, losses)
    return losses.take()


def captured(train_fn: Any = loss_fn, fused: bool = False, **more: Any) -> TunedEngine:
    model = mlp()
    engine = TunedEngine(model, adam(model), StepSettings(train_fn=train_fn, **more))
    engine.use(Tuning(captured=True, fused=fused))
    return engine


@pytest.mark.parametrize("fused", [False, True])
def test_captured_and_plain_steps_can_follow_each_other(fused, graphs):
    engine, reference, data = captured(fused=fused), mlp(), batches(20)
    losses = trained(engine, data[:8])
    engine.use(Tuning(fused=fused))
    losses += trained(engine, data[8:10])
    engine.use(Tuning(captured=True, fused=fused))
    losses += trained(engine, [*data[10:16], *data[16:20]])
    assert losses == pytest.approx(plain_losses(reference, adam(reference), data), rel=1e-4)
    assert close_weights(engine.model, reference, 1e-4)
    assert len(graphs) == 7 + 10  # the first step warms up
    assert engine.global_step == 20
    engine.close()
    groups = engine.optimizer.param_groups
    assert [(group["capturable"], group["lr"]) for group in groups] == [(False, 1e-2)]


def test_another_shape_or_a_part_of_a_batch_runs_plainly_for_one_step(graphs):
    engine, data = captured(), batches(4)
    small = Batch(tuple(one[:3] for one in data[0]), data[0].names)
    losses = loss_log(CPU, 0)
    trained(engine, data)
    trained(engine, [small])
    for last in (False, True):
        engine.step(data[0], losses, parts=2, closes=last)
    assert engine.tuning.captured
    trained(engine, data)
    assert (len(graphs), engine.global_step) == (3 + 4, 10)


def replaced_state(engine: TunedEngine) -> None:
    engine.optimizer.load_state_dict(copy.deepcopy(engine.optimizer.state_dict()))


def frozen(engine: TunedEngine) -> None:
    next(engine.model.parameters()).requires_grad_(False)


def other_betas(engine: TunedEngine) -> None:
    engine.optimizer.param_groups[0]["betas"] = (0.8, 0.9)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (replaced_state, "has changed the model or its optimizer"),
        (frozen, "has changed the model or its optimizer"),
        (other_betas, "has changed a setting of the optimizer"),
    ],
)
def test_a_graph_that_is_not_right_any_longer_is_given_up_with_the_reason(change, told, graphs):
    engine, data = captured(), batches(3)
    trained(engine, data)
    engine.present()
    trained(engine, data[:1])
    assert engine.tuning.captured
    engine.present()
    change(engine)
    trained(engine, data)
    assert not engine.tuning.captured
    assert told in engine.capture_refusal
    assert (len(graphs), engine.global_step) == (3, 7)


def test_a_graph_reads_the_learning_rate_where_each_step_writes_it(graphs, monkeypatch):
    monkeypatch.setattr(capturing, "_can_capture", lambda _: True)
    model = mlp()
    optimizer = adam(model)
    [group] = optimizer.param_groups
    seen: list[tuple[bool, float]] = []
    rate = Rate()

    def compute(_: object) -> torch.Tensor:
        return torch.zeros(())

    def update() -> None:
        seen.append((group["capturable"], float(group["lr"])))

    settings = StepSettings(train_fn=loss_fn)
    taking = capturing.Capturing(model, optimizer, settings, compute, update)
    for step in range(3):

        def prepare(step: int = step) -> None:
            group["lr"] = rate.lr(step)

        assert taking.step(batches(1)[0], prepare)
        assert (group["capturable"], group["lr"]) == (False, rate.lr(step))
    assert seen == [(True, pytest.approx(rate.lr(step))) for step in range(3)]
    assert len(graphs) == 3


def test_what_cannot_be_captured_runs_plainly_and_says_why(graphs, monkeypatch):
    def refused(*_: object) -> object:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(capturing, "cuda_graph_capture", refused)
    engine, reference, data = captured(), mlp(), batches(5)
    assert trained(engine, data) == plain_losses(reference, adam(reference), data)
    assert "not permitted when stream is capturing" in engine.capture_refusal
    number = captured()
    trained(number, [Batch((*one, 3.0), ("x", "y", "z")) for one in data])
    assert "float" in number.capture_refusal
    assert graphs == []


def auto_engine(monkeypatch: pytest.MonkeyPatch, graph: float, **more: Any) -> AutoEngine:
    """An engine whose plain step takes 10 ms on the device, and ``graph`` ms in a graph."""
    queue = Queue(lambda: (graph if engine.tuning.captured else 10.0) / 1e3)
    monkeypatch.setattr(auto, "step_clock", lambda _: DeviceClock(queue.mark))
    model = mlp()
    settings = StepSettings(train_fn=loss_fn, **more)
    engine: AutoEngine = AutoEngine(
        model, adam(model), settings, total_steps=10**6, pure=True, policy=POLICY
    )
    engine.queue = queue  # type: ignore[attr-defined]
    return engine


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    ("milliseconds", "kept"),
    [(3.0, True), (9.95, False), pytest.param(12.0, False, marks=pytest.mark.slow)],
)
def test_auto_keeps_a_graph_exactly_if_it_is_faster(milliseconds, kept, monkeypatch):
    engine, reference = auto_engine(monkeypatch, milliseconds), mlp()
    data = batches(900)
    losses = trained(engine, data)
    assert engine.decided
    assert losses == pytest.approx(plain_losses(reference, adam(reference), data), rel=1e-3)
    report = engine.report()
    assert ("CUDA graph" in report["tuning"]) is kept
    assert report["trials"]["CUDA graph"] == f"{milliseconds / 10:.3f}x"
    assert report["step_ms"] <= report["plain_ms"]
    again = auto_engine(monkeypatch, milliseconds)
    trained(again, data[:3])
    assert again.report()["tuning"] == report["tuning"]
    assert again.report()["source"] == "cache"


def test_auto_goes_on_plainly_without_a_graph_and_names_the_reason(graphs, monkeypatch):
    engine = auto_engine(monkeypatch, 3.0)
    engine.model.register_forward_hook(lambda *_: None)
    trained(engine, batches(300))
    assert engine.decided
    assert engine.report()["trials"]["CUDA graph"] == "the model or the optimizer has hooks"
    assert graphs == []
    refused = "the step cannot be captured: no"

    def capture(*_: object) -> object:
        raise RuntimeError("no")

    monkeypatch.setattr(capturing, "cuda_graph_capture", capture)
    engine = auto_engine(monkeypatch, 3.0, max_grad_norm=1.0)
    trained(engine, batches(300))
    assert refused in engine.report()["trials"]["CUDA graph"]
    assert "CUDA graph" not in engine.report()["tuning"]


def test_a_clock_of_the_device_is_asked_once_for_a_block():
    queue = Queue(lambda: 0.5)
    clock, trial = DeviceClock(queue.mark), median_of_steps(4)
    next(trial)
    for step in range(4):
        clock.begin()
        clock.end()
        assert queue.waits == 0
        taken = Taken(clock.take(), None)
        if step < 3:
            trial.send(taken)
    with pytest.raises(StopIteration) as end:
        trial.send(taken)
    assert end.value.value == pytest.approx(0.5)
    assert queue.waits == 4


def test_a_recorded_value_is_that_of_its_own_step(graphs):
    def recording(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss = loss_fn(model, batch)
        record_scalar("loss", loss.detach())
        return loss

    engine = captured(recording)
    scalars = ScalarLog(engine)
    with recording_into(scalars):
        trained(engine, batches(2))
    assert graphs == [1]
    [(name, _, values)] = scalars.take()
    assert (name, len(values)) == ("loss", 2)
