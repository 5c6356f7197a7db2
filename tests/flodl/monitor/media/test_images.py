"""PNG files from tensors, arrays and Pillow's images, read back by Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from flodl.monitor.media.images import CapturedImage, encode_png
from tests.rows import each_row

PIL = pytest.importorskip("PIL.Image")


def pixels(value) -> np.ndarray:
    """What another program reads from the file."""
    return np.asarray(PIL.open(io.BytesIO(CapturedImage(value).encode().png)))


@each_row("channels", [1, 2, 3, 4])
@each_row("size", [(1, 1), (7, 5), (64, 33)])
def test_a_file_holds_the_bytes_that_were_given(size, channels):
    given = np.random.default_rng(0).integers(0, 256, (*size, channels), np.uint8)
    read = np.asarray(PIL.open(io.BytesIO(encode_png(given))))
    assert (read.reshape(given.shape) == given).all()


def test_every_form_of_the_same_image_gives_the_same_file():
    image = np.random.default_rng(1).integers(0, 256, (6, 9, 3), np.uint8)
    tensor = torch.tensor(image).permute(2, 0, 1)
    forms = [
        image,
        tensor,
        tensor.to(torch.float32) / 255,
        tensor.to(torch.float64) / 255,
        tensor[None],
        image[None],
        np.moveaxis(image, 2, 0),
        PIL.fromarray(image),
    ]
    for form in forms:
        assert (pixels(form) == image).all()


def test_grey_images_and_masks():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    for form in (grey, torch.tensor(grey), torch.tensor(grey)[None], PIL.fromarray(grey)):
        assert (pixels(form) == grey).all()
    mask = torch.tensor([[True, False]])
    assert pixels(mask).tolist() == [[255, 0]]
    palette = PIL.fromarray(grey).convert("P")
    assert pixels(palette).shape == (3, 4, 3)


def test_a_batch_is_a_grid_with_the_images_in_reading_order():
    batch = torch.arange(6.0).reshape(6, 1, 1, 1).expand(6, 1, 4, 4) / 10
    captured = CapturedImage(batch).encode()
    read = np.asarray(PIL.open(io.BytesIO(captured.png)))
    assert captured.count == 6
    assert read.shape == (4 * 3 + 2 * 2, 4 * 2 + 2)
    corners = [read[row * 6, column * 6] for row in range(3) for column in range(2)]
    assert corners == [int(255 * at / 10 + 0.5) for at in range(6)]
    assert CapturedImage(torch.rand(100, 1, 2, 2)).encode().count == 64


def test_values_outside_of_the_range_are_clamped_and_nan_is_black():
    captured = CapturedImage(torch.tensor([[-1.0, 0.5, 3.0, float("nan"), float("inf")]]))
    read = np.asarray(PIL.open(io.BytesIO(captured.encode().png)))
    assert read.tolist() == [[0, 128, 255, 0, 255]]
    assert captured.clamped == (-1.0, 3.0)


def test_a_later_change_of_the_tensor_does_not_matter():
    image, array = torch.zeros(1, 4, 4), np.zeros((4, 4), np.uint8)
    captured, other = CapturedImage(image), CapturedImage(array)
    image.fill_(1)
    array[:] = 255
    for one in (captured, other):
        assert not np.asarray(PIL.open(io.BytesIO(one.encode().png))).any()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.rand(5), r"shape \[5\]"),
        (torch.rand(2, 5, 5), r"shape \[2, 5, 5\]: pass a tensor"),
        (torch.rand(9, 9, 3), r"\[9, 9, 3\] has its channels last; pass \.permute\(2, 0, 1\)"),
        (torch.rand(8, 9, 9, 3), r"pass \.permute\(0, 3, 1, 2\)"),
        (torch.zeros(4, 4, dtype=torch.int64), r"dtype int64 with shape \[4, 4\]"),
        (torch.rand(3, 0, 4), r"shape \[3, 0, 4\]"),
        (np.zeros((3, 5000, 5000), np.bool_)[:, ::1], "1 to 16777216 pixels"),
        ("photo.png", "not an array of numbers"),
    ],
)
def test_an_error_names_the_shape_and_what_to_pass(value, says):
    with pytest.raises(ValueError, match=says):
        CapturedImage(value)
