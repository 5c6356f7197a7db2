"""Mixed precision: the scaler has the numbers of torch's, and refuses what torch lets pass."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn

from flodl.errors import StateError
from flodl.nn.amp import (
    AutocastGuard,
    GradScaler,
    autocast,
    cast_parameters,
    is_autocast_enabled,
    scaling_in_progress,
)
from flodl.nn.clip import clip_grad_norm, clip_grad_value
from tests.rows import each_row

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def weight(*values: float, device: str = "cpu") -> nn.Parameter:
    return nn.Parameter(torch.tensor(values or (1.0,), device=device))


def backward(scaler: GradScaler | torch.amp.GradScaler, parameter: nn.Parameter, by: float) -> None:
    """A loss whose gradient is ``by`` everywhere."""
    scaler.scale((parameter * by).sum()).backward()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.case("runtime", 60)
def test_an_infinite_gradient_leaves_the_weights_and_halves_the_factor(device: str) -> None:
    parameter = weight(1.0, 2.0, device=device)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = GradScaler()
    assert scaler.scale_factor() == 65536
    backward(scaler, parameter, math.inf)
    assert scaler.step(optimizer) is False
    assert parameter.tolist() == [1.0, 2.0]
    scaler.update()
    assert scaler.scale_factor() == 32768


@pytest.mark.case("runtime", 60)
def test_two_thousand_finite_updates_double_the_factor() -> None:
    parameter = weight()
    optimizer = torch.optim.SGD([parameter], lr=1e-6)
    scaler = GradScaler()
    for number in range(1, 2001):
        assert scaler.scale_factor() == 65536, number
        optimizer.zero_grad()
        backward(scaler, parameter, 1.0)
        assert scaler.step(optimizer) is True
        scaler.update()
    assert scaler.scale_factor() == 131072


@pytest.mark.case("runtime", 60)
def test_clipping_before_unscale_is_refused_unless_asked_for() -> None:
    parameter = weight()
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = GradScaler()
    backward(scaler, parameter, 3.0)
    for clip in (clip_grad_norm, clip_grad_value):
        with pytest.raises(StateError, match=r"still scaled.*unscale_"):
            clip([parameter], 1.0)
    assert clip_grad_norm([parameter], math.inf, check=False).item() == 3.0 * 65536
    scaler.unscale_(optimizer)
    assert clip_grad_norm([parameter], 1.0).item() == 3.0
    assert scaler.step(optimizer) is True
    assert parameter.item() == pytest.approx(0.9)


def test_a_scaler_that_is_gone_or_updated_hinders_nobody() -> None:
    parameter = weight()
    scaler = GradScaler()
    backward(scaler, parameter, 1.0)
    assert scaling_in_progress()
    scaler.update()
    assert not scaling_in_progress()
    backward(scaler, parameter, 1.0)
    del scaler
    assert not scaling_in_progress()


def test_one_factor_serves_two_optimizers_and_one_infinity_shrinks_it() -> None:
    good, bad = weight(), weight()
    optimizers = [torch.optim.SGD([p], lr=0.5) for p in (good, bad)]
    scaler = GradScaler(1024.0)
    backward(scaler, good, 1.0)
    backward(scaler, bad, math.nan)
    assert [scaler.step(optimizer) for optimizer in optimizers] == [True, False]
    assert [good.item(), bad.item()] == [0.5, 1.0]
    scaler.update()
    assert scaler.scale_factor() == 512


def test_losses_scaled_one_after_the_other_between_two_updates() -> None:
    first, second = weight(), weight()
    scaler = GradScaler()
    for parameter in (first, second):
        backward(scaler, parameter, 1.0)
        assert scaling_in_progress()
        assert scaler.step(torch.optim.SGD([parameter], lr=0.5))
        assert not scaling_in_progress()
    assert first.item() == second.item() == 0.5


@pytest.mark.parametrize("device", DEVICES)
def test_step_clips_what_it_has_unscaled(device: str) -> None:
    parameter = weight(0.0, 0.0, device=device)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = GradScaler()
    scaler.scale((parameter * torch.tensor([3.0, 4.0], device=device)).sum()).backward()
    assert scaler.step(optimizer, clip_norm=1.0) is True
    assert parameter.tolist() == pytest.approx([-0.6, -0.8], abs=1e-6)


def test_gradients_whose_norm_overflows_are_finite_all_the_same() -> None:
    parameter = weight(*[1.0] * 4)
    scaler = GradScaler(1.0)
    backward(scaler, parameter, 3e38)
    assert scaler.step(torch.optim.SGD([parameter], lr=0.0)) is True


def test_parameters_without_gradient_and_empty_ones_do_not_matter() -> None:
    used, unused, empty = weight(), weight(), nn.Parameter(torch.empty(0))
    optimizer = torch.optim.SGD([used, unused, empty], lr=0.5)
    scaler = GradScaler()
    scaler.scale(used.sum() + empty.sum()).backward()
    assert scaler.step(optimizer) is True
    assert used.item() == 0.5
    assert unused.item() == 1.0


def test_sparse_gradients_are_unscaled_and_checked() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    nn.init.zeros_(table.weight)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    scaler = GradScaler()
    scaler.scale(table(torch.tensor([1, 1, 3])).sum()).backward()
    scaler.unscale_(optimizer)
    assert table.weight.grad is not None
    assert table.weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]]
    assert scaler.step(optimizer) is True
    scaler.update()
    optimizer.zero_grad()
    scaler.scale((table(torch.tensor([2])) * math.inf).sum()).backward()
    assert scaler.step(optimizer) is False


def test_a_half_precision_loss_does_not_overflow_by_scaling() -> None:
    loss = torch.tensor(4.0, dtype=torch.float16, requires_grad=True)
    scaled = GradScaler().scale(loss)
    assert scaled.dtype == torch.float32
    assert scaled.item() == 4 * 65536


def test_the_order_of_calls_is_watched() -> None:
    parameter = weight()
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = GradScaler()
    parameter.grad = torch.ones(1)
    for forgotten in (scaler.step, scaler.unscale_):
        with pytest.raises(StateError, match="without a scaled loss"):
            forgotten(optimizer)
    backward(scaler, parameter, 1.0)
    with pytest.raises(ValueError, match=r"clip_norm=0.*greater than 0"):
        scaler.step(optimizer, clip_norm=0)
    scaler.unscale_(optimizer)
    with pytest.raises(StateError, match="unscaled already"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(StateError, match=r"stepped already: call update\(\)"):
        scaler.step(optimizer)


def test_parameters_in_half_precision_are_refused() -> None:
    parameter = nn.Parameter(torch.ones(2, 3, dtype=torch.float16))
    scaler = GradScaler()
    scaler.scale(parameter.float().sum()).backward()
    with pytest.raises(ValueError, match=r"shape \[2, 3\] is float16"):
        scaler.step(torch.optim.SGD([parameter], lr=0.1))


@each_row(
    "wrong",
    [
        {"init": 0.0},
        {"init": math.inf},
        {"growth": 1.0},
        {"backoff": 1.0},
        {"backoff": 0.0},
        {"interval": 0},
    ],
)
def test_arguments_out_of_range_are_named(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"GradScaler\({name}="):
        GradScaler(**wrong)  # type: ignore[arg-type]


def test_the_factor_stays_between_the_smallest_and_the_largest_float() -> None:
    parameter = weight()
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    low = GradScaler(1e-38, backoff=0.001)
    for _ in range(3):
        backward(low, parameter, math.nan)
        low.step(optimizer)
        low.update()
        optimizer.zero_grad()
    assert low.scale_factor() == torch.finfo(torch.float32).tiny
    high = GradScaler(2.0**127, interval=1)
    high.update()
    assert high.scale_factor() == 2.0**127


FACTORS = st.sampled_from([0.25, 0.5, 1e-3, 2.0, 1.5, 4.0])


@given(
    gradients=st.lists(st.sampled_from([1.0, -0.37, math.inf, -math.inf, math.nan]), max_size=25),
    growth=FACTORS.filter(lambda factor: factor > 1),
    backoff=FACTORS.filter(lambda factor: factor < 1),
    interval=st.integers(1, 4),
    clip_norm=st.sampled_from([None, 0.5]),
)
def test_numbers_are_those_of_torchs_scaler(
    gradients: list[float], growth: float, backoff: float, interval: int, clip_norm: float | None
) -> None:
    ours = GradScaler(1024.0, growth, backoff, interval)
    theirs = torch.amp.GradScaler("cpu", 1024.0, growth, backoff, interval)
    mine, other = weight(5.5, -7.0), weight(5.5, -7.0)  # at 0, the last bit would be a half of it
    my_optimizer, other_optimizer = (torch.optim.Adam([p], lr=0.1) for p in (mine, other))
    for gradient in gradients:
        backward(ours, mine, gradient)
        backward(theirs, other, gradient)
        ours.step(my_optimizer, clip_norm=clip_norm)
        if clip_norm is not None:
            theirs.unscale_(other_optimizer)
            nn.utils.clip_grad_norm_([other], clip_norm)
        theirs.step(other_optimizer)
        ours.update()
        theirs.update()
        my_optimizer.zero_grad()
        other_optimizer.zero_grad()
        # Torch's factor goes on to 0, which makes NaN of every gradient; ours ends above it.
        assume(theirs.get_scale() >= torch.finfo(torch.float32).tiny)
        # Torch keeps its factor in float32, ours is a float.
        assert ours.scale_factor() == pytest.approx(theirs.get_scale(), rel=1e-5)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=0)
    expected = theirs.state_dict()
    assert ours.state_dict() == pytest.approx(expected, rel=1e-5)


@given(pattern=st.lists(st.booleans(), max_size=12))
def test_a_restored_scaler_goes_on_as_if_nothing_had_happened(pattern: list[bool]) -> None:
    scaler = GradScaler(256.0, interval=3)
    run(scaler, pattern)
    restored = GradScaler()
    restored.load_state_dict(scaler.state_dict())
    in_torch = torch.amp.GradScaler("cpu")
    in_torch.load_state_dict(scaler.state_dict())
    assert in_torch.get_scale() == scaler.scale_factor()
    back = GradScaler()
    back.load_state_dict(in_torch.state_dict())
    for each in (scaler, restored, back):
        run(each, [True, True, False, True, True, True])
    assert scaler.state_dict() == restored.state_dict() == back.state_dict()


def run(scaler: GradScaler, finite: list[bool]) -> None:
    parameter = weight()
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for each in finite:
        backward(scaler, parameter, 1.0 if each else math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_a_state_that_lacks_something_changes_nothing() -> None:
    scaler = GradScaler(8.0)
    with pytest.raises(ValueError, match=r"lacks growth_factor, .*it has scale"):
        scaler.load_state_dict({"scale": 4.0})
    with pytest.raises(ValueError, match=r"GradScaler\(growth=0.5\)"):
        scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0, "growth_factor": 0.5})
    assert scaler.scale_factor() == 8.0


@each_row("dtype", [torch.bfloat16, torch.float16])
def test_autocast_as_a_region_a_call_and_a_guard(dtype: torch.dtype) -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)

    def product() -> Tensor:
        assert is_autocast_enabled("cpu")
        y: Tensor = layer(x)
        return y

    with autocast(dtype, device_type="cpu"):
        assert product().dtype == dtype
    assert autocast(dtype, product, device_type="cpu").dtype == dtype
    assert not is_autocast_enabled("cpu")

    guard = AutocastGuard(dtype, "cpu")
    assert product().dtype == dtype
    guard.close()
    guard.close()
    assert not is_autocast_enabled("cpu")
    with pytest.raises(RuntimeError, match="shapes"), AutocastGuard(dtype, "cpu"):
        layer(torch.ones(2, 5))
    assert layer(x).dtype == torch.float32


def test_autocast_chooses_the_device_itself() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    with autocast(torch.bfloat16):
        assert is_autocast_enabled()
        assert torch.is_autocast_enabled(expected)
    assert not is_autocast_enabled()


def test_autocast_to_full_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.float32.*leave autocast out"):
        autocast(torch.float32)


def test_cast_parameters_takes_gradients_along_and_leaves_integers() -> None:
    layer = nn.Linear(3, 2)
    layer.register_parameter("count", nn.Parameter(torch.tensor([1, 2]), requires_grad=False))
    held = layer.weight
    layer(torch.ones(1, 3)).sum().backward()
    cast_parameters(layer.parameters(), torch.bfloat16)
    assert layer.weight is held
    assert layer.weight.dtype == torch.bfloat16
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.bfloat16
    assert layer.weight.grad.tolist() == [[1.0] * 3] * 2
    assert layer.count.dtype == torch.int64
    cast_parameters(layer, torch.float32)
    assert layer(torch.ones(1, 3)).dtype == torch.float32
    with pytest.raises(ValueError, match=r"torch.int64.*floating-point"):
        cast_parameters(layer, torch.int64)


def test_cast_parameters_warns_of_an_eps_that_vanishes() -> None:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    with pytest.warns(UserWarning, match=r"Adam has eps=1e-08.*float16.*eps=0.0001"):
        cast_parameters(layer.parameters(), torch.float16, optimizer)
    cast_parameters(layer.parameters(), torch.bfloat16, optimizer)  # has float32's range
    for harmless in (
        torch.optim.Adam(layer.parameters(), eps=1e-4),
        torch.optim.SGD(layer.parameters()),
    ):
        cast_parameters(layer.parameters(), torch.float16, harmless)


def test_cast_parameters_asks_the_optimizer_attached_to_the_module() -> None:
    class Attached(nn.Linear):
        optimizer: torch.optim.Optimizer

    layer = Attached(2, 2)
    layer.optimizer = torch.optim.AdamW(layer.parameters())
    with pytest.warns(UserWarning, match="AdamW has eps=1e-08"):
        cast_parameters(layer, torch.float16)


@pytest.mark.parametrize("device", DEVICES)
def test_the_example_learns_the_digits_in_half_precision(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[3] / "examples/mixed_precision.py"
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"^epoch \d  loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) == 8
    assert losses[-1] < 0.25 < losses[0]
    half = "float16" if device == "cuda" else "bfloat16"
    assert f"weights in torch.float32, products in torch.{half}" in printed
    assert ("scale factor" in printed) is (device == "cuda")
    accuracy = re.search(r"^accuracy (\S+)$", printed, re.MULTILINE)
    assert accuracy
    assert float(accuracy[1]) > 0.92
