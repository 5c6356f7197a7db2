"""Step engines: what each computes, and what makes an engine step back."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from flodl.checkpoint.generators import generator_states, same
from flodl.data import Batch
from flodl.errors import DivergedError
from flodl.train.metrics import ScalarLog, record_scalar, recording_into
from flodl.train.step import AutoEngine, AutoPolicy, EagerEngine, StepSettings, make_engine
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning, inexact, routed, routed_product
from tests.flodl.train.compiling import compile_with

# Inductor uses what torch deprecates.

CPU = torch.device("cpu")
with_routes = pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch has no setting for it"
)
TRY_ALL = AutoPolicy(least_steps=1, least_seconds=0.0, cost=1e9, compile_seconds=1e9)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def images() -> nn.Module:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    head = nn.Linear(8 * 5 * 5, 4)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), head)


def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
    return mse_loss(model(batch["x"]), batch["y"])


def batches(count: int, *shape: int) -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    size = shape or (8,)
    return [
        Batch(
            (torch.randn(6, *size, generator=draw), torch.randn(6, 4, generator=draw)), ("x", "y")
        )
        for _ in range(count)
    ]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def trained(engine: EagerEngine | TunedEngine, data: list[Batch]) -> list[float]:
    losses = loss_log(CPU, 0)
    for batch in data:
        engine.step(batch, losses)
    return losses.take()


def plain_losses(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Batch]
) -> list[float]:
    losses = []
    for batch in data:
        loss = loss_fn(model, batch)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def close_weights(one: nn.Module, other: nn.Module, tolerance: float) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)


class Rate:
    def lr(self, step: int) -> float:
        return 0.1 / (step + 1)


def test_an_eager_step_is_the_plain_loop_bit_by_bit():
    mine, theirs, data = mlp(), mlp(), batches(20)
    losses = trained(EagerEngine(mine, adam(mine), StepSettings(train_fn=loss_fn)), data)
    assert losses == plain_losses(theirs, adam(theirs), data)
    assert same_weights(mine, theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=1e-2),
        lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=1e-2, maximize=True, betas=(0.8, 0.9)),
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    ],
    ids=["adam", "amsgrad", "maximize", "adamw", "sgd"],
)
def test_a_fused_step_equals_torchs_own_fused_optimizer(make):
    mine, theirs, data = mlp(), mlp(), batches(20)
    fused = make(theirs.parameters())
    for group in fused.param_groups:
        group["fused"] = True
    optimizer = make(mine.parameters())
    engine = TunedEngine(mine, optimizer, StepSettings(train_fn=loss_fn))
    engine.use(Tuning(fused=True))

    assert trained(engine, data) == plain_losses(theirs, fused, data)
    assert same_weights(mine, theirs)
    assert not any(group["fused"] for group in optimizer.param_groups)
    assert all(parameter.grad is None for parameter in mine.parameters())


def test_a_fused_step_follows_whoever_changes_the_optimizer():
    mine, theirs = mlp(), mlp()
    my_adam, their_adam = adam(mine), torch.optim.Adam(theirs.parameters(), lr=1e-2, fused=True)
    engine = TunedEngine(mine, my_adam, StepSettings(train_fn=loss_fn))
    engine.use(Tuning(fused=True))

    def both(data: list[Batch]) -> None:
        trained(engine, data)
        plain_losses(theirs, their_adam, data)
        assert same_weights(mine, theirs)

    both(batches(4))
    saved = [copy.deepcopy(opt.state_dict()) for opt in (my_adam, their_adam)]
    both(batches(3))
    for optimizer, state in zip((my_adam, their_adam), saved, strict=True):
        optimizer.load_state_dict(state)  # new state tensors
    for optimizer in (my_adam, their_adam):
        optimizer.param_groups[0]["lr"] = 3e-3
    both(batches(3))
    for model, optimizer in ((mine, my_adam), (theirs, their_adam)):
        extra = nn.Parameter(torch.ones(4))
        model[3].register_parameter("extra", extra)
        optimizer.add_param_group({"params": [extra], "lr": 1e-2})  # never gets a gradient
    both(batches(3))
    mine[0].weight.requires_grad_(False)
    theirs[0].weight.requires_grad_(False)
    both(batches(3))


def test_hooks_of_an_optimizer_run_in_a_fused_step():
    model, calls = mlp(), []
    optimizer = adam(model)
    engine = TunedEngine(model, optimizer, StepSettings(train_fn=loss_fn))
    engine.use(Tuning(fused=True))
    trained(engine, batches(2))
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    trained(engine, batches(3))
    assert calls == [1, 1, 1]


def test_an_implementation_the_user_chose_is_left_alone():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
    engine = TunedEngine(model, optimizer, StepSettings(train_fn=loss_fn))
    engine.use(Tuning(fused=True))
    other = mlp()
    theirs = torch.optim.Adam(other.parameters(), lr=1e-2, foreach=True)
    assert trained(engine, batches(5)) == plain_losses(other, theirs, batches(5))
    assert same_weights(model, other)


def precision() -> str:
    return torch._C._get_fp32_precision_getter("mkldnn", "matmul")


@with_routes
def test_the_route_through_onednn_holds_for_our_steps_only():
    seen = []

    def watching(model: nn.Module, batch: Batch) -> torch.Tensor:
        seen.append(precision())
        return loss_fn(model, batch)

    model, before = mlp(), precision()
    engine = TunedEngine(model, adam(model), StepSettings(train_fn=watching))
    trained(engine, batches(1))
    engine.use(Tuning(onednn=True))
    trained(engine, batches(1))
    assert seen == [before, "bf16"]
    assert precision() == before

    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("no")

    engine = TunedEngine(model, adam(model), StepSettings(train_fn=failing))
    engine.use(Tuning(onednn=True))
    with pytest.raises(RuntimeError, match="no"):
        trained(engine, batches(1))
    assert precision() == before


def in_bfloat16(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """What a processor with units for low precision may make of a float32 product."""
    return (left.bfloat16() @ right.bfloat16()).float()


def only_long_sums_in_bfloat16(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (in_bfloat16 if left.shape[1] > 1000 else torch.matmul)(left, right)


@with_routes
def test_a_library_multiplies_only_if_it_is_as_exact_as_float32():
    before, generators = precision(), generator_states()
    assert "the relative error of oneDNN is" in inexact(in_bfloat16)
    assert inexact(torch.matmul) == ""
    # Each size counts, and so does a way that computes nonsense.
    assert inexact(only_long_sums_in_bfloat16)
    assert inexact(lambda left, right: (left @ right) * float("nan"))
    assert torch.equal(routed_product(torch.ones(2, 3), torch.ones(3, 2)), torch.full((2, 2), 3.0))
    assert same(generator_states(), generators)
    assert precision() == before


@with_routes
def test_the_route_can_be_nested_in_a_setting_of_the_users():
    original = precision()
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "ieee")
    try:
        with routed():
            assert precision() == "bf16"
        assert precision() == "ieee"
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", original)


def test_auto_keeps_what_is_faster_and_trains_the_same_model(capsys, monkeypatch):
    refused = "not on this machine"
    monkeypatch.setattr("flodl.train.step.auto.onednn_refusal", lambda: refused)
    mine, theirs, data = mlp(), mlp(), batches(900)
    engine = AutoEngine(
        mine, adam(mine), StepSettings(train_fn=loss_fn), total_steps=10_000, policy=TRY_ALL
    )
    losses = trained(engine, data)
    expected = plain_losses(theirs, adam(theirs), data)
    assert losses == pytest.approx(expected, rel=1e-3)
    assert engine.decided
    report = engine.report()
    assert report["trials"]["fused optimizer"].endswith("x")
    assert "compiled" not in report["trials"]
    assert report["trials"]["oneDNN products"] == refused
    if report["tuning"]:
        assert f"engine: {' + '.join(report['tuning'])}" in capsys.readouterr().out
        assert report["step_ms"] <= report["plain_ms"]


def test_auto_stays_plain_in_a_short_run():
    mine, theirs, data = mlp(), mlp(), batches(40)
    engine = AutoEngine(mine, adam(mine), StepSettings(train_fn=loss_fn), total_steps=40)
    assert engine.decided
    assert trained(engine, data) == plain_losses(theirs, adam(theirs), data)
    assert same_weights(mine, theirs)

    engine = AutoEngine(
        mine,
        adam(mine),
        StepSettings(train_fn=loss_fn),
        total_steps=40,
        policy=AutoPolicy(least_steps=1, least_seconds=1e6),
    )
    trained(engine, data)
    assert engine.decided
    assert "nothing would pay" in engine.report()["trials"]["none"]


COMPILE_ALWAYS = AutoPolicy(
    least_steps=1, least_seconds=0.0, cost=1e9, compile_seconds=0.0, gain=-10.0
)


def decided_by_compiling(policy: AutoPolicy) -> AutoEngine:
    """Train until the engine has decided, beside a plain loop."""
    mine, theirs, data = mlp(), mlp(), batches(50)
    settings = StepSettings(train_fn=loss_fn)
    engine = AutoEngine(mine, adam(mine), settings, total_steps=10**9, pure=True, policy=policy)
    optimizer, losses, expected = adam(theirs), [], []
    deadline = time.monotonic() + 200
    while not engine.decided and time.monotonic() < deadline:
        losses += trained(engine, data)
        expected += plain_losses(theirs, optimizer, data)
    assert engine.decided
    assert losses[:200] == pytest.approx(expected[:200], rel=1e-3)
    return engine


@pytest.mark.slow
def test_auto_compiles_and_says_what_it_brought(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    report = decided_by_compiling(COMPILE_ALWAYS).report()
    assert report["trials"]["compiled"].endswith("x"), report
    assert "compiled" in report["tuning"]


def test_auto_goes_on_plainly_when_compiling_fails(monkeypatch):
    def failing(*_: object, **__: object) -> object:
        def call(*_: object) -> torch.Tensor:
            raise RuntimeError("backend='inductor' raised:\n\nno compiler found\nmore")

        return call

    monkeypatch.setattr("flodl.train.step.tuned.compiled_forward", failing)
    report = decided_by_compiling(COMPILE_ALWAYS).report()
    assert "compiled" not in report["tuning"]
    expected = "RuntimeError: backend='inductor' raised: no compiler found"
    assert report["trials"]["compiled"] == expected


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_step_agrees_and_records_scalars(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    if backend != "inductor":  # which takes a minute on a busy machine
        compile_with(backend, monkeypatch)

    def recording(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss = loss_fn(model, batch)
        record_scalar("twice", loss.detach() * 2)
        return loss

    mine, theirs, data = mlp(), mlp(), batches(10)
    engine = make_engine(
        "compiled", mine, adam(mine), StepSettings(train_fn=recording), device=CPU, total_steps=10
    )
    scalars = ScalarLog(engine)
    with recording_into(scalars):
        losses = trained(engine, data)
    assert losses == pytest.approx(plain_losses(theirs, adam(theirs), data), rel=1e-5)
    [(name, steps, values)] = scalars.take()
    assert (name, steps) == ("twice", list(range(10)))
    assert values == pytest.approx([2 * loss for loss in losses], rel=1e-6)
    report = engine.report()
    assert report["tuning"] == ["fused optimizer", "compiled"]
    assert report["compile_seconds"] > 0


def test_what_cannot_be_compiled_runs_eagerly_with_the_reason(capsys):
    def reading(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss = loss_fn(model, batch)
        return loss * 2 if loss.item() > 1e6 else loss

    mine, theirs, data = mlp(), mlp(), batches(5)
    engine = make_engine(
        "compiled", mine, adam(mine), StepSettings(train_fn=reading), device=CPU, total_steps=5
    )
    fused = torch.optim.Adam(theirs.parameters(), lr=1e-2, fused=True)
    assert trained(engine, data) == plain_losses(theirs, fused, data)
    assert engine.report()["fallback"]
    assert "cannot be compiled and runs eagerly" in capsys.readouterr().err


def test_cuda_graphs_without_a_cuda_device_run_eagerly_and_say_so(capsys):
    mine, theirs, data = mlp(), mlp(), batches(5)
    engine = make_engine(
        "cuda_graph", mine, adam(mine), StepSettings(train_fn=loss_fn), device=CPU, total_steps=5
    )
    assert trained(engine, data) == plain_losses(theirs, adam(theirs), data)
    assert same_weights(mine, theirs)
    assert "need a CUDA device" in engine.report()["fallback"]
    assert "runs eagerly" in capsys.readouterr().err


def test_an_unknown_engine_is_refused_with_those_there_are():
    model = mlp()
    with pytest.raises(ValueError, match=r"engine='turbo': use one of 'eager', 'auto'"):
        make_engine(
            "turbo", model, adam(model), StepSettings(train_fn=loss_fn), device=CPU, total_steps=1
        )


@pytest.mark.parametrize("name", ["eager", "tuned"])
def test_a_loss_that_is_not_finite_stops_before_the_weights_move(name):
    model = mlp()
    before = copy.deepcopy(model)
    kind = {"eager": EagerEngine, "tuned": TunedEngine}[name]
    engine = kind(
        model,
        adam(model),
        StepSettings(train_fn=lambda model, batch: loss_fn(model, batch) * float("inf")),
    )
    with pytest.raises(DivergedError, match="the loss is inf"):
        trained(engine, batches(1))
    assert same_weights(model, before)


@pytest.mark.parametrize("kind", [EagerEngine, TunedEngine])
def test_parts_of_a_batch_count_as_one_step(kind):
    mine, theirs = mlp(), mlp()
    data = batches(6)
    settings = StepSettings(train_fn=loss_fn, schedule=Rate(), max_grad_norm=0.5)
    engine = kind(mine, adam(mine), settings)
    losses = loss_log(CPU, 0)
    for number, batch in enumerate(data):
        engine.step(batch, losses, parts=3, closes=number % 3 == 2)
    assert engine.global_step == 2

    optimizer = adam(theirs)
    for step in range(2):
        for batch in data[3 * step : 3 * step + 3]:
            (loss_fn(theirs, batch) / 3).backward()
        optimizer.param_groups[0]["lr"] = Rate().lr(step)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    assert same_weights(mine, theirs)


def test_autocast_computes_the_forward_pass_in_the_given_dtype():
    model, seen = mlp(), []

    def watching(model: nn.Module, batch: Batch) -> torch.Tensor:
        out = model(batch["x"])
        seen.append(out.dtype)
        return mse_loss(out.float(), batch["y"])

    engine = EagerEngine(
        model, adam(model), StepSettings(train_fn=watching, autocast=torch.bfloat16)
    )
    trained(engine, batches(2))
    assert seen == [torch.bfloat16] * 2
    assert model[0].weight.dtype == torch.float32
