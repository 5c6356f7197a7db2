from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from flodl.data import DataLoader, Mnist, digits
from flodl.errors import DataError


def images(count: int = 2, *, magic: int = 2051, pixel: int = 128) -> bytes:
    return struct.pack(">4I", magic, count, 3, 3) + bytes([pixel] * count * 9)


def labels(count: int = 2, *, magic: int = 2049) -> bytes:
    return struct.pack(">2I", magic, count) + bytes(range(count))


@pytest.mark.case("runtime", 68)
def test_idx_files_are_scaled_checked_and_read_compressed_or_not() -> None:
    plain = Mnist.parse(images(), labels())
    assert plain.images.shape == (2, 1, 3, 3)
    assert plain.images.dtype == torch.float32
    assert torch.allclose(plain.images, torch.tensor(0.5019608))
    assert plain.labels.tolist() == [0, 1]
    assert plain.labels.dtype == torch.int64

    with pytest.raises(DataError, match="images: magic number 99, expected 2051"):
        Mnist.parse(images(magic=99), labels())

    packed = Mnist.parse(gzip.compress(images()), gzip.compress(labels()))
    assert torch.equal(packed.images, plain.images)
    assert torch.equal(packed.labels, plain.labels)


def test_paths_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "images.gz").write_bytes(gzip.compress(images()))
    (tmp_path / "labels").write_bytes(labels())
    data = Mnist.parse(tmp_path / "images.gz", str(tmp_path / "labels"))
    assert len(data) == 2
    assert DataLoader(data, 2).names == ("image", "label")


def test_fewer_labels_than_images_is_refused_with_both_counts() -> None:
    with pytest.raises(DataError, match="3 images and 2 labels: each image needs one label"):
        Mnist.parse(images(3), labels(2))


def test_swapped_files_are_recognised() -> None:
    with pytest.raises(DataError, match="are images and labels swapped"):
        Mnist.parse(labels(), images())


@pytest.mark.parametrize("cut", [0, 3, 10, 16, 20])
def test_a_file_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(DataError, match=r"images: .*(cut short|there are only)"):
        Mnist.parse(images()[:cut], labels())


def test_a_file_that_goes_on_is_refused() -> None:
    with pytest.raises(DataError, match=r"promises 2×3×3 = 18 bytes and there are more than 18"):
        Mnist.parse(images() + b"x", labels())


@pytest.mark.parametrize("cut", [2, 12, 25])
def test_a_compressed_file_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(DataError, match="images: cannot be read"):
        Mnist.parse(gzip.compress(images())[:cut], labels())


def test_a_compressed_file_that_is_damaged_is_refused() -> None:
    packed = bytearray(gzip.compress(images()))
    packed[12] ^= 0xFF
    with pytest.raises(DataError, match="images: "):
        Mnist.parse(bytes(packed), labels())


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images \(.*absent\.gz\): cannot be read: .*No such file"):
        Mnist.parse(tmp_path / "absent.gz", labels())


@pytest.mark.parametrize("index", [2, -1])
def test_an_index_outside_does_not_wrap_around(index: int) -> None:
    data = Mnist.parse(images(), labels())
    with pytest.raises(IndexError, match=f"index {index} is outside of a data set of 2 samples"):
        data.get_batch([0, index])


def test_the_packaged_digits_are_split_the_same_way_every_time() -> None:
    whole, train, test = digits("all"), digits("train"), digits("test")
    assert (len(whole), len(train), len(test)) == (1797, 1438, 359)
    assert whole.names == ("image", "label")
    image, label = whole.tensors
    assert (image.shape, image.dtype, label.dtype) == ((1797, 1, 8, 8), torch.float32, torch.int64)
    assert (float(image.min()), float(image.max())) == (0.0, 1.0)
    assert torch.equal((image * 16).round(), image * 16)
    assert label[:10].tolist() == list(range(10))

    held_out = sorted(1111 * k % 1797 for k in range(359))
    assert torch.equal(test.tensors[0], image[held_out])
    assert torch.equal(test.tensors[1], label[held_out])
    rest = sorted(set(range(1797)) - set(held_out))
    assert torch.equal(train.tensors[0], image[rest])
    assert torch.equal(train.tensors[1], label[rest])


def test_every_class_is_held_out_about_equally_often() -> None:
    counts = torch.bincount(digits("test").tensors[1], minlength=10)
    assert int(counts.min()) >= 30
    assert int(counts.max()) <= 40


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split='valid': choose 'train', 'test' or 'all'"):
        digits("valid")  # type: ignore[arg-type]
