"""Gaussian blur, read off from what it makes of a single bright pixel."""

from __future__ import annotations

import pytest
import torch

from flodl.graph import FlowBuilder
from flodl.nn import GaussianBlur, gaussian_blur_2d
from tests.rows import each_row


def bright_pixel(size=15, dtype=torch.float64):
    image = torch.zeros(1, 1, size, size, dtype=dtype)
    image[0, 0, size // 2, size // 2] = 1
    return image


def kernel(sigma):
    """The separable kernel: the sums over rows of a blurred pixel."""
    columns = gaussian_blur_2d(bright_pixel(25), sigma)[0, 0].sum(0)
    return columns[columns > 0]


@pytest.mark.case("runtime", 61)
def test_the_kernel_reaches_three_standard_deviations_and_keeps_the_brightness():
    assert len(kernel(1.5)) == 11
    assert len(kernel(1.0)) == 7
    assert kernel(1.0)[3].item() == pytest.approx(0.3990503, abs=1e-7)
    assert kernel(1.5).sum().item() == pytest.approx(1)
    torch.testing.assert_close(kernel(2.0), kernel(2.0).flip(0))


def test_rows_and_columns_are_blurred_alike():
    blurred = gaussian_blur_2d(bright_pixel(), 1.0)[0, 0]
    line = kernel(1.0)
    torch.testing.assert_close(blurred[4:11, 4:11], torch.outer(line, line))
    assert blurred[:4].abs().sum() == 0


def test_the_world_outside_the_image_is_black():
    blurred = gaussian_blur_2d(torch.ones(1, 1, 9, 9), 1.0)[0, 0]
    assert blurred[4, 4].item() == pytest.approx(1)
    # Half of the kernel and its centre remain on each axis.
    assert blurred[0, 0].item() == pytest.approx((0.5 + 0.3990503 / 2) ** 2, abs=1e-6)


@each_row("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_channels_stay_apart_and_shape_and_dtype_stay(dtype):
    x = torch.rand(2, 3, 8, 5).to(dtype)
    blurred = gaussian_blur_2d(x, 0.8)
    assert blurred.shape == x.shape
    assert blurred.dtype == dtype
    torch.testing.assert_close(blurred[:, 1:2], gaussian_blur_2d(x[:, 1:2], 0.8))


def test_no_gradient_flows_through():
    x = torch.rand(1, 1, 4, 4, requires_grad=True)
    assert not gaussian_blur_2d(x, 1.0).requires_grad


def test_the_module_blurs_in_a_graph_and_compiles_in_one_piece():
    module = GaussianBlur(1.5)
    x = torch.rand(2, 3, 12, 12)
    expected = gaussian_blur_2d(x, 1.5)
    assert torch.equal(FlowBuilder.from_(module).build()(x), expected)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), expected)
    assert repr(module) == "GaussianBlur(sigma=1.5)"


@each_row("sigma", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_width_that_is_none_is_refused(sigma):
    with pytest.raises(ValueError, match="sigma must be a positive number"):
        gaussian_blur_2d(bright_pixel(), sigma)
    with pytest.raises(ValueError, match="sigma must be a positive number"):
        GaussianBlur(sigma)


@each_row("image", [torch.zeros(3, 8, 8), torch.zeros(1, 3, 8, 8).byte()])
def test_anything_but_floating_images_is_refused(image):
    with pytest.raises(ValueError, match=r"images \[B, C, H, W\], got shape"):
        gaussian_blur_2d(image, 1.0)
