"""The losses of one of several ranks: weighted by samples, and patient with what is not finite."""

from __future__ import annotations

import math

import pytest
import torch

from flodl.train.step.step_values import LossLog

BOTH = pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])


def fill(log: LossLog, *pairs: tuple[float, int]) -> LossLog:
    """Add losses, each with the number of its samples."""
    for loss, samples in pairs:
        log.expect(samples)
        log.add(torch.tensor(loss))
    return log


@BOTH
def test_the_mean_is_over_samples(on_device: bool) -> None:
    log = fill(LossLog(0, on_device=on_device, by_samples=True), (1.0, 30), (2.0, 30), (5.0, 40))
    assert log.mean() == pytest.approx(2.9)
    assert log.state() == [290.0, 100]
    assert log.latest == 5.0
    assert log.take() == [1.0, 2.0, 5.0]
    assert log.take() == []
    assert (log.mean(), log.latest, log.refused) == (2.9, 5.0, 0)


@BOTH
def test_sums_of_ranks_add_up_to_the_mean_of_one(on_device: bool) -> None:
    pairs = [(0.5 * n, 3 + n % 4) for n in range(20)]
    whole = fill(LossLog(0, on_device=on_device, by_samples=True), *pairs)
    ranks = [
        fill(LossLog(0, on_device=on_device, by_samples=True), *pairs[rank::3]) for rank in range(3)
    ]
    total, samples = (sum(part) for part in zip(*(log.state() for log in ranks), strict=True))
    assert total / samples == pytest.approx(whole.mean())


@BOTH
def test_sums_go_on_where_they_were_left(on_device: bool) -> None:
    first = fill(LossLog(0, on_device=on_device, by_samples=True), (1.0, 10), (2.0, 5))
    second = LossLog(0, first.state(), on_device=on_device, by_samples=True)
    first.take()
    assert second.mean() == first.mean()
    assert fill(second, (4.0, 5)).state() == [40.0, 20]


@BOTH
def test_what_is_not_finite_is_left_out_and_counted(on_device: bool) -> None:
    log = LossLog(0, on_device=on_device, by_samples=True)
    fill(log, (1.0, 4), (math.nan, 9), (math.inf, 9), (3.0, 4))
    log.check()
    assert log.refused == 2
    assert log.state() == [16.0, 8]
    assert log.take() == [1.0, 3.0]
    nothing = fill(LossLog(0, on_device=on_device, by_samples=True), (math.nan, 4))
    assert math.isnan(nothing.mean())
    assert nothing.latest is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_losses_on_a_gpu_are_weighted_without_waiting() -> None:
    log = LossLog(0, on_device=True, by_samples=True)
    losses = [torch.tensor(float(step), device="cuda") for step in range(4)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step, loss in enumerate(losses):
            log.expect(step)
            log.add(loss)
            log.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert log.state() == [14.0, 6]
