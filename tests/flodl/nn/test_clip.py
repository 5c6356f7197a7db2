"""Clipping: what it returns, what it leaves, and when it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flodl.errors import StateError
from flodl.nn.amp import GradScaler
from flodl.nn.clip import clip_grad_norm, clip_grad_value
from tests.rows import each_row


def with_grads(*grads, dtype=torch.float32):
    params = []
    for grad in grads:
        params.append(nn.Parameter(torch.zeros(len(grad), dtype=dtype)))
        params[-1].grad = torch.tensor(grad, dtype=dtype)
    return params


def grads(params):
    return [param.grad.tolist() for param in params]


@pytest.mark.case("runtime", 58)
def test_the_norm_is_scaled_and_the_norm_before_is_returned():
    params = with_grads([3.0], [4.0])
    before = clip_grad_norm(params, 1)
    assert before.shape == ()
    assert before.item() == pytest.approx(5)
    assert grads(params) == [[pytest.approx(0.6)], [pytest.approx(0.8)]]


@pytest.mark.case("runtime", 58)
def test_values_are_clamped_and_the_largest_before_is_returned():
    params = with_grads([10.0, -5.0])
    before = clip_grad_value(params, 2)
    assert before.shape == ()
    assert before.item() == 10
    assert grads(params) == [[2, -2]]


def test_small_gradients_stay_as_they_are():
    params = with_grads([0.3], [-0.4])
    assert clip_grad_norm(params, 1).item() == pytest.approx(0.5)
    assert clip_grad_value(params, 1).item() == pytest.approx(0.4)
    assert grads(params) == [[pytest.approx(0.3)], [pytest.approx(-0.4)]]


@each_row("limit", [1e-3, 1.0, 300.0, 1e9, math.inf])
@each_row("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_bits_are_those_of_torch(limit, dtype):
    draw = torch.Generator().manual_seed(2)
    given = [(300 * torch.rand(40, generator=draw, dtype=torch.float64)).tolist() for _ in range(3)]
    mine, theirs = with_grads(*given, dtype=dtype), with_grads(*given, dtype=dtype)
    norm = clip_grad_norm(mine, limit)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, limit))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(mine, theirs, strict=True))


def test_gradients_that_are_short_enough_are_not_written_to():
    params = with_grads([0.3], [-0.4])
    clip_grad_norm(params, 1)
    assert [param.grad._version for param in params] == [0, 0]
    clip_grad_norm(params, 0.1)
    assert [param.grad._version for param in params] == [1, 1]


def test_an_infinite_limit_only_measures():
    params = with_grads([30.0], [-40.0])
    assert clip_grad_norm(params, math.inf).item() == pytest.approx(50)
    assert clip_grad_value(params, math.inf).item() == 40
    assert grads(params) == [[30], [-40]]


@each_row("clip", [clip_grad_norm, clip_grad_value])
def test_parameters_without_gradients_do_not_count(clip):
    idle = nn.Parameter(torch.ones(3))
    assert clip([], 1.0).item() == 0
    assert clip([idle], 1.0).item() == 0
    assert clip((param for param in [idle, *with_grads([-8.0])]), 1.0).item() == 8
    assert idle.grad is None
    (single,) = with_grads([-8.0])
    assert clip(single, 2.0).item() == 8
    assert single.grad.item() == pytest.approx(-2)


@each_row("clip", [clip_grad_norm, clip_grad_value])
def test_parameters_without_values_do_not_count(clip):
    assert clip(with_grads([], [-8.0]), 1.0).item() == 8
    assert clip(with_grads([]), 1.0).item() == 0


@each_row("clip", [clip_grad_norm, clip_grad_value])
def test_a_gradient_that_is_not_finite_shows_in_what_is_returned(clip):
    assert clip(with_grads([1.0], [math.inf]), 1.0).item() == math.inf
    assert math.isnan(clip(with_grads([1.0], [math.nan]), 1.0).item())


def test_mixed_dtypes_are_clipped_together():
    params = with_grads([3.0]) + with_grads([4.0], dtype=torch.float64)
    assert clip_grad_norm(params, 1).item() == pytest.approx(5)
    assert grads(params) == [[pytest.approx(0.6)], [pytest.approx(0.8)]]
    assert clip_grad_value(params, 0.7).item() == pytest.approx(0.8)
    assert grads(params) == [[pytest.approx(0.6)], [pytest.approx(0.7)]]


def test_the_numbers_are_torchs():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(7, 5), nn.Linear(7, 5)
    for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
        ours_p.grad = torch.randn_like(ours_p)
        theirs_p.grad = ours_p.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    assert torch.equal(clip_grad_norm(ours.parameters(), 0.5), norm)
    torch.nn.utils.clip_grad_value_(theirs.parameters(), 0.05)
    clip_grad_value(ours.parameters(), 0.05)
    for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(ours_p.grad, theirs_p.grad)


@each_row("clip", [clip_grad_norm, clip_grad_value])
@each_row("limit", [0, -1.0, math.nan])
def test_a_limit_that_is_not_above_zero_is_refused(clip, limit):
    params = with_grads([3.0])
    with pytest.raises(ValueError, match=f"{clip.__name__}: max_.* must be above 0"):
        clip(params, limit)
    assert grads(params) == [[3.0]]


@each_row("clip", [clip_grad_norm, clip_grad_value])
def test_scaled_gradients_are_refused_until_they_are_unscaled(clip):
    (param,) = with_grads([0.0])
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = GradScaler(init=4.0)
    scaler.scale((3 * param).sum()).backward()
    with pytest.raises(StateError, match=rf"{clip.__name__}: .* scaler.unscale_\(optimizer\)"):
        clip([param], 1.0)
    assert param.grad.item() == 12
    assert clip([param], 100.0, check=False).item() == 12
    scaler.unscale_(optimizer)
    assert clip([param], 1.0).item() == 3
    assert scaler.step(optimizer)
    scaler.update()
    assert param.item() == pytest.approx(-1)
