from __future__ import annotations

import pytest
import torch

from flodl.data import Batch


def batch() -> Batch:
    return Batch([torch.zeros(4, 2), torch.arange(4)], ["image", "label"])


def test_tensors_are_reached_by_name_and_by_position() -> None:
    b = batch()
    assert b["label"] is b[1]
    assert b[-1] is b[1]
    assert b.names == ("image", "label")
    assert b.has("image")
    assert not b.has("picture")


def test_a_batch_unpacks_and_its_length_counts_tensors() -> None:
    image, label = batch()
    assert image.shape == (4, 2)
    assert label.shape == (4,)
    assert len(batch()) == 2
    assert batch().batch_size == 4


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no 'labels'; it has 'image', 'label'"):
        batch()["labels"]


def test_a_position_that_does_not_exist_says_how_many_there_are() -> None:
    with pytest.raises(IndexError, match="has 2 tensors, there is no number 2"):
        batch()[2]


def test_names_and_tensors_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="2 tensors needs as many names, got 1: image"):
        Batch([torch.zeros(1), torch.zeros(1)], ["image"])


def test_to_moves_every_tensor_and_keeps_the_names() -> None:
    moved = batch().to("meta")
    assert [tensor.device.type for tensor in moved] == ["meta", "meta"]
    assert moved.names == ("image", "label")


def test_repr_shows_shapes_and_dtypes() -> None:
    assert repr(batch()) == "Batch(image: [4, 2] torch.float32, label: [4] torch.int64)"
