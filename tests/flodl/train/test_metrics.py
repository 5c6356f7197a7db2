from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.errors import StateError
from flodl.train.metrics import (
    DeviceValues,
    RecordedValues,
    ScalarLog,
    collecting,
    record_scalar,
    recording_into,
    reduced,
)
from flodl.train.step.step_values import LossLog

from .programs import squared_error, training


def shown(log: ScalarLog) -> dict[str, float | None]:
    """What an epoch shows of every metric."""
    return {name: reduced(sums) for name, sums in log.state().items()}


def test_values_are_taken_with_their_steps_and_the_means_stay() -> None:
    counter = SimpleNamespace(global_step=5)
    log = ScalarLog(counter)
    with recording_into(log):
        record_scalar("a", 1)
        counter.global_step = 6
        record_scalar("a", torch.tensor([2.0], requires_grad=True))
        record_scalar("b", float("nan"))
        taken = {name: (steps, values) for name, steps, values in log.take()}
        assert taken["a"] == ([5, 6], [1.0, 2.0])
        steps, values = taken["b"]
        assert steps == [6]
        assert math.isnan(values[0])
        assert list(log.take()) == []
        record_scalar("a", True)
    means = shown(log)
    assert means["a"] == pytest.approx(4 / 3)
    assert math.isnan(means["b"])
    assert log.state()["a"] == [4.0, 3]


def test_an_interrupted_epoch_goes_on_to_the_same_mean_to_the_bit() -> None:
    values = [0.1 * n for n in range(50)]
    whole, first = (ScalarLog(SimpleNamespace(global_step=0)) for _ in range(2))
    for value in values:
        whole.add("a", value)
    for value in values[:20]:
        first.add("a", value)
    second = ScalarLog(SimpleNamespace(global_step=0), first.state())
    for value in values[20:]:
        second.add("a", value)
        list(second.take())  # how often values are taken makes no difference
    assert shown(second) == shown(whole)


def test_losses_of_an_interrupted_epoch_go_on_to_the_same_mean_and_step_numbers() -> None:
    values = [torch.tensor(0.1 * n) for n in range(50)]
    whole = LossLog(3)
    for value in values:
        whole.add(value)
    first = LossLog(3)
    for value in values[:20]:
        first.add(value)
    second = LossLog(3, first.state())
    for value in values[20:]:
        second.add(value)
        second.take()
    assert second.mean() == whole.mean()
    assert second.latest == pytest.approx(4.9)
    with pytest.raises(RuntimeError, match="the loss is inf at epoch 3, step 50"):
        second.add(torch.tensor(math.inf))


@pytest.mark.parametrize("how", ["max", "min"])
def test_nan_shows_whenever_the_values_are_taken(how: Any) -> None:
    numbers = [1.0, float("nan"), 2.0]
    for taken_after in range(4):
        log = ScalarLog(SimpleNamespace(global_step=0))
        for count, number in enumerate(numbers):
            if count == taken_after:
                list(log.take())
            log.add("a", number, how)
        assert math.isnan(shown(log)["a"] or 0.0), taken_after


def test_losses_are_taken_once() -> None:
    log = LossLog(0)
    log.add(torch.tensor(1.0))
    log.add(torch.tensor(3.0))
    assert log.take() == [1.0, 3.0]
    assert log.take() == []
    assert log.latest == 3.0
    assert log.mean() == 2.0
    assert math.isnan(LossLog(0).mean())


def test_values_on_a_device_keep_what_they_were_and_arrive_when_waited_for() -> None:
    values = DeviceValues()
    value = torch.tensor([1.0])
    values.add(value, 7)
    value.zero_()
    values.add(value, 8)
    assert values.take(wait=False) == []
    assert values.take(wait=True) == [(7, 1.0), (8, 0.0)]
    assert values.take(wait=True) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_values_on_a_gpu_arrive_without_waiting() -> None:
    values = DeviceValues()
    log = LossLog(0, on_device=True)
    for step in range(5):
        values.add(torch.tensor(float(step), device="cuda"), step)
        log.add(torch.tensor(float(step), device="cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert values.take(wait=False) == []
        assert log.take() == []
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert values.take(wait=False) == [(step, float(step)) for step in range(5)]
    assert log.take() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_collecting_diverts_values_into_a_list_and_nests() -> None:
    log = ScalarLog(SimpleNamespace(global_step=0))
    with recording_into(log):
        with collecting() as outer:
            record_scalar("a", 1.0)
            with collecting() as inner:
                record_scalar("b", 2.0)
            record_scalar("c", 3.0)
        record_scalar("d", 4.0)
    assert outer == [("a", 1.0, "mean"), ("c", 3.0, "mean")]
    assert inner == [("b", 2.0, "mean")]
    assert shown(log) == {"d": 4.0}


def test_what_another_thread_records_is_its_own() -> None:
    log = ScalarLog(SimpleNamespace(global_step=0))
    begun, ended = threading.Event(), threading.Event()
    values = RecordedValues()

    def compile_for_long() -> None:
        with recording_into(values):
            record_scalar("accuracy", 0.1)
            begun.set()
            ended.wait(60)

    other = threading.Thread(target=compile_for_long)
    with recording_into(log):
        record_scalar("accuracy", 0.5)
        other.start()
        begun.wait(60)
        record_scalar("accuracy", 0.7)
        ended.set()
        other.join()
        record_scalar("accuracy", 0.9)
    assert values.calls == [("accuracy", 0.1, "mean")]
    assert shown(log) == {"accuracy": pytest.approx(0.7)}
    assert log.state()["accuracy"][1] == 3


def test_collecting_can_be_traced_whole() -> None:
    def traced(x: Tensor) -> tuple[Tensor, list[Any]]:
        with collecting() as taken:
            record_scalar("sum", x.sum())
            record_scalar("three", 3.0)
            y = (2 * x).mean()
        return y, taken

    compiled = torch.compile(traced, fullgraph=True, backend="eager")
    for _ in range(2):
        y, taken = compiled(torch.ones(4))
        assert (y.item(), taken[0][1].item(), taken[1]) == (2.0, 4.0, ("three", 3.0, "mean"))
    with pytest.raises(StateError, match="outside"):
        record_scalar("later", 1.0)


def test_trainings_in_two_threads_keep_their_values_apart() -> None:
    meeting = threading.Barrier(2, timeout=60)
    means: dict[float, float] = {}

    def work(value: float) -> None:
        def train_fn(model: nn.Module, batch: Batch) -> Tensor:
            meeting.wait()
            record_scalar("mine", value)
            return squared_error(model, batch)

        handle = training(train_fn, epochs=1).engine("eager").run()
        means[value] = handle.poll_metrics()[0].scalars["mine"]

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert means == {1.0: 1.0, 2.0: 2.0}
