"""Mixed precision, determinism and the other settings that change how a step is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.monitor import Monitor
from flodl.nn.amp import GradScaler

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, "bfloat16"])
def test_autocast_refuses_what_saves_nothing(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"autocast=.* must be one of torch.bfloat16, torch.float"):
        training().autocast(dtype)


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


@pytest.mark.parametrize(
    ("setting", "value", "choices"),
    [("engine", "fast", "'auto', 'eager', 'compiled'"), ("memory", "all", "'auto', 'default'")],
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


@pytest.mark.parametrize("name", ["shuffel", "seed", "device", "batch_size"])
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
