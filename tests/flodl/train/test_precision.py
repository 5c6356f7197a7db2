"""Mixed precision, determinism and the other settings that change how a step is computed."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import RunDirectory, Trainer, record_scalar
from flodl.data import Batch
from flodl.monitor import Monitor
from flodl.nn.amp import GradScaler
from flodl.processor import bfloat16_instructions
from tests.rows import each_row

from .compiling import compile_with
from .programs import line, loader_as_built, network, sgd, squared_error, training


def plain_loop(dtype: torch.dtype, scaler: torch.amp.GradScaler | None = None) -> nn.Module:
    """Two epochs as a user of plain torch writes them."""
    torch.manual_seed(42)
    model = network()
    optimizer = sgd(list(model.parameters()))
    loader = loader_as_built(line(10), 3)
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            with torch.autocast("cpu", dtype):
                loss = squared_error(model, batch)
            if scaler is None:
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            else:
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    return model


def assert_same(one: nn.Module, other: nn.Module) -> None:
    right = other.state_dict()
    assert all(torch.equal(tensor, right[name]) for name, tensor in one.state_dict().items())


def test_bfloat16_is_the_plain_loop_under_autocast_to_the_bit() -> None:
    seen: list[torch.dtype] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        output = model(batch["x"])
        seen.append(output.dtype)
        return nn.functional.mse_loss(output, batch["y"])

    handle = training(train_fn).engine("eager").autocast(torch.bfloat16).run()
    assert set(seen) == {torch.bfloat16}
    assert_same(handle.model, plain_loop(torch.bfloat16))


def test_float16_brings_a_scaler_and_is_the_plain_loop_to_the_bit() -> None:
    handle = training().engine("eager").autocast(torch.float16).run()
    assert_same(handle.model, plain_loop(torch.float16, torch.amp.GradScaler("cpu")))


def torch_scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 2.0**10, "growth_interval": 3} | options)


def plain_loop_that_clips(scaler: torch.amp.GradScaler, clip: float | None, parts: int) -> Any:
    """Two epochs with clipping and accumulation, in the order of torch's documentation."""
    torch.manual_seed(42)
    model = network()
    optimizer = sgd(list(model.parameters()))
    loader = loader_as_built(line(12), 3)
    for epoch in range(2):
        for number, batch in enumerate(loader.epoch(epoch), 1):
            with torch.autocast("cpu", torch.float16):
                loss = squared_error(model, batch)
            scaler.scale(loss / parts).backward()
            if number % parts:
                continue
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.5])
# The first scale is infinite in float16, so steps are left out and the scale falls.
@pytest.mark.parametrize("init", [2.0**10, 2.0**24])
def test_a_scaler_of_torch_works_as_in_a_plain_loop(
    init: float, clip: float | None, parts: int, enabled: bool
) -> None:
    given, own = (torch_scaler(init_scale=init, enabled=enabled) for _ in range(2))
    builder = training(n=12).engine("eager").autocast(torch.float16).grad_scaler(given)
    if clip is not None:
        builder.max_grad_norm(clip)
    model = builder.accumulate(parts).run().model
    assert_same(model, plain_loop_that_clips(own, clip, parts))
    assert given.state_dict() == own.state_dict()


def test_left_out_steps_of_a_scaler_of_torch_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    scaler = torch_scaler(init_scale=2.0**40, backoff_factor=2.0**-16)
    builder = training().engine("eager").autocast(torch.float16).grad_scaler(scaler)
    builder.monitor(Monitor(2, terminal=False)).run()
    assert "  2 of 3 steps of epoch 1 were left out: a gradient" in capfd.readouterr().out


def test_an_object_without_the_methods_of_a_scaler_is_refused() -> None:
    with pytest.raises(ValueError, match=r"grad_scaler=object: it has no method scale, step, upda"):
        training().grad_scaler(object())  # type: ignore[arg-type]


def test_float16_without_a_scaler_where_that_is_asked_for() -> None:
    handle = training().engine("eager").autocast(torch.float16).grad_scaler(None).run()
    assert_same(handle.model, plain_loop(torch.float16))


def test_steps_that_overflow_are_left_out_counted_and_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # 2^40 and 2^24 times the gradient are infinite in float16, 2^8 times is not.
    scaler = GradScaler(init=2.0**40, backoff=2.0**-16)
    monitor = Monitor(2, terminal=False)
    training().engine("eager").autocast(torch.float16).grad_scaler(scaler).monitor(monitor).run()
    assert scaler.scale_factor() == 2.0**8
    said = capfd.readouterr().out
    assert "  2 of 3 steps of epoch 1 were left out: a gradient was not finite;" in said
    assert "of epoch 2" not in said


@each_row("dtype", [torch.float32, torch.float64, "bfloat16"])
def test_autocast_refuses_what_saves_nothing(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"autocast=.* must be one of torch.bfloat16, torch.float"):
        training().autocast(dtype)


# --- Precision by name ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16", "bf16-mixed", "bfloat16"])
def test_bf16_keeps_float32_weights_and_is_the_plain_loop_to_the_bit(name: str) -> None:
    handle = training().engine("eager").precision(name).run()
    assert {p.dtype for p in handle.model.parameters()} == {torch.float32}
    assert_same(handle.model, plain_loop(torch.bfloat16))


def test_fp16_brings_a_scaler_and_32_changes_nothing() -> None:
    handle = training().engine("eager").precision("16-mixed").run()
    assert_same(handle.model, plain_loop(torch.float16, torch.amp.GradScaler("cpu")))
    plain = training().engine("eager").run().model
    assert_same(training().engine("eager").precision("32-true").run().model, plain)


LOSSES = (
    r"  bf16-mixed: loss (\S+) of the first batch, (\S+) in float32 "
    r"\(relative difference (\S+)\)\n"
)


def test_the_first_loss_is_told_in_both_precisions_once(capfd: pytest.CaptureFixture[str]) -> None:
    training().precision("bf16").run()
    said = capfd.readouterr().out
    ((short, exact, apart),) = re.findall(LOSSES, said)
    torch.manual_seed(42)
    model = network().eval()
    first = next(iter(loader_as_built(line(10), 3).epoch(0)))
    assert float(exact) == pytest.approx(float(squared_error(model, first).detach()), rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert float(short) == pytest.approx(float(squared_error(model, first).detach()), rel=1e-5)
    assert 0 < float(apart) < 0.02
    assert float(apart) == pytest.approx(abs(float(short) / float(exact) - 1), rel=0.1)


def test_the_comparison_calls_train_fn_twice_with_copies_unless_it_is_left_out() -> None:
    models: list[tuple[bool, nn.Module]] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        models.append((model.training, model))
        record_scalar("calls", 1.0)
        loss = squared_error(model, batch)
        batch["x"].zero_()
        return loss

    handle = training(train_fn, epochs=1).engine("eager").precision("bf16").run()
    assert [mode for mode, _ in models] == [False, False, True, True, True]
    assert all(model is not handle.model for _, model in models[:2])
    models.clear()
    again = training(train_fn, epochs=1).engine("eager").precision("bf16", compare=False).run()
    assert [mode for mode, _ in models] == [True, True, True]
    assert_same(again.model, handle.model)


def test_a_model_that_train_fn_knows_by_name_keeps_its_buffers() -> None:
    torch.manual_seed(0)
    known = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    begun = copy.deepcopy(known.state_dict())
    results = []
    for compare in (True, False):
        known.load_state_dict(begun)
        builder = (
            Trainer.builder(
                known, sgd(list(known.parameters())), lambda _, b: squared_error(known, b)
            )
            .dataset(line(10))
            .batch_size(3)
            .num_epochs(1)
            .device("cpu")
        )
        builder.engine("eager").precision("bf16", compare=compare).run()
        results.append(copy.deepcopy(known.state_dict()))
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_a_model_that_cannot_be_compared_trains_all_the_same(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        if not model.training:
            raise RuntimeError("losses only in training mode")
        return squared_error(model, batch)

    handle = training(train_fn).engine("eager").precision("bf16").run()
    assert "not compared with float32" in (said := capfd.readouterr().out)
    assert "(RuntimeError: losses only in training mode)" in said
    assert_same(handle.model, plain_loop(torch.bfloat16))


def test_a_stopped_bf16_training_resumes_to_the_bit_and_compares_only_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(name: str, epochs: int, *, resume: Path | None = None) -> RunDirectory:
        run = RunDirectory.create(tmp_path / name)
        builder = training(epochs=epochs).precision("bf16").run_dir(run).progress(False)
        builder.resume(resume).run()
        return run

    whole, half = train("whole", 2), train("half", 1)
    assert len(re.findall(LOSSES, capfd.readouterr().out)) == 2
    rest = train("rest", 2, resume=half.path)
    assert "of the first batch" not in capfd.readouterr().out
    one, other = ((run.path / "model.fdl").read_bytes() for run in (whole, rest))
    assert one == other


@pytest.mark.parametrize(
    ("engine", "backend"),
    [
        ("auto", "inductor"),
        ("compiled", "aot_eager"),
        pytest.param("compiled", "inductor", marks=pytest.mark.slow),
    ],
)
def test_every_engine_computes_in_bf16(
    engine: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend != "inductor":
        compile_with(backend, monkeypatch)
    seen: list[torch.dtype] = []

    class Watching(nn.Linear):
        def forward(self, value: Tensor) -> Tensor:
            found = super().forward(value)
            seen.append(found.dtype)
            return found

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch["x"]).float(), batch["y"])

    builder = (
        Trainer.builder(lambda _: Watching(1, 1), sgd, train_fn)
        .dataset(line(12))
        .batch_size(4)
        .num_epochs(1)
        .device("cpu")
    )
    handle = builder.engine(engine).precision("bf16", compare=False).run()
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in handle.model.parameters()} == {torch.float32}


@each_row(
    ("name", "told"),
    [
        ("bf8", r"precision='bf8': it must be 'bf16' \(bf16-mixed\), 'fp16' \(16-mixed\) or '32'"),
        ("bf16-true", r"let the model function return model.to\(torch.bfloat16\) and leave"),
        ("64", r"keeps the weights in float64"),
    ],
)
def test_a_precision_that_does_not_exist_is_refused_at_once(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        training().precision(name)


def test_two_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"\.precision\('bf16-mixed'\) and \.autocast\(torch.float16"
    ):
        training().precision("bf16").autocast(torch.float16).run()


@each_row(
    ("facts", "found"),
    [
        ({"flags": "avx2 avx512f avx512_bf16 amx_bf16"}, "amx_bf16"),
        ({"flags": "avx2 avx512f avx512_bf16"}, "avx512_bf16"),
        ({"Features": "asimd bf16 i8mm"}, "bf16"),
        ({"flags": "avx2 fma"}, ""),
        ({}, None),
    ],
)
def test_the_instructions_for_bfloat16_are_read_from_the_system(
    facts: dict[str, str], found: str | None
) -> None:
    assert bfloat16_instructions(facts) == found


@pytest.mark.parametrize(("found", "warned"), [("", True), ("avx512_bf16", False), (None, False)])
def test_a_processor_that_emulates_bfloat16_is_warned_of(
    found: str | None,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("flodl.device.bfloat16_instructions", lambda: found)
    training(epochs=1).precision("bf16").run()
    said = capfd.readouterr().err
    assert ("this processor has no instructions for bfloat16" in said) is warned
    training(epochs=1).precision("32").run()
    assert "bfloat16" not in capfd.readouterr().err


def test_deterministic_training_switches_torch_over_and_back() -> None:
    during: list[bool] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        during.append(torch.are_deterministic_algorithms_enabled())
        return squared_error(model, batch)

    training(train_fn).deterministic().run()
    assert all(during)
    assert not torch.are_deterministic_algorithms_enabled()

    with pytest.raises(ZeroDivisionError):
        training(lambda *_: 1 / 0).deterministic().run()
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_training_is_eager_and_says_so_where_another_engine_is_asked_for() -> None:
    monitor = Monitor(2, terminal=False)
    plain = training().engine("eager").run()
    assert_same(training().deterministic().monitor(monitor).run().model, plain.model)
    with pytest.raises(ValueError, match=r"engine='compiled' together with deterministic\(\)"):
        training().deterministic().engine("compiled").run()


@each_row(
    ("setting", "value", "choices"),
    [("engine", "fast", "'eager', 'auto', 'compiled'")],
)
def test_a_choice_that_is_none_is_refused_at_once(setting: str, value: str, choices: str) -> None:
    with pytest.raises(ValueError, match=f"{setting}={value!r}: it must be one of {choices}"):
        getattr(training(), setting)(value)


def test_loader_options_reach_the_loader() -> None:
    order: list[list[float]] = []

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        order.append(batch["x"].flatten().tolist())
        return squared_error(model, batch)

    builder = (
        training(train_fn, epochs=1).batch_size(4).loader_options(shuffle=False, drop_last=True)
    )
    metrics = builder.run().poll_metrics()[0]
    assert [value for batch in order for value in batch] == pytest.approx(
        line(10).tensors[0][:8].flatten().tolist()
    )
    assert [len(batch) for batch in order] == [4, 4]
    assert metrics.throughput * metrics.epoch_ms == pytest.approx(8)


@each_row("name", ["shuffel", "seed", "device", "batch_size"])
def test_a_loader_option_that_is_none_is_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match=rf"loader_options\({name}=…\): use one of .*drop_last"):
        training().loader_options(**{name: 1})


@pytest.mark.parametrize(("total", "warned"), [(7, True), (6, False), (None, False)])
def test_a_schedule_that_outlasts_the_run_is_warned_of(
    total: int | None, warned: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    class Constant:
        total_steps = total

        def lr(self, step: int) -> float:
            return 0.01 / (step + 1)

    training().scheduler(lambda _: Constant()).run()
    said = capfd.readouterr().err
    assert ("made for 7 optimizer steps and the run makes 6" in said) is warned
