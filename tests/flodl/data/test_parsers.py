from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flodl.data import DataLoader, Mnist, digits
from flodl.data.cifar import Cifar10
from flodl.data.idx import read_idx
from flodl.data.shakespeare import Shakespeare
from flodl.errors import DataError
from tests.rows import each_row


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


@each_row("pack", [bytes, gzip.compress])
def test_an_idx_file_may_hold_no_samples(pack: Callable[[bytes], bytes]) -> None:
    empty = read_idx(pack(images(0)), dimensions=3, what="images")
    assert (tuple(empty.shape), empty.dtype) == ((0, 3, 3), torch.uint8)


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


@each_row("cut", [0, 3, 10, 16, 20])
def test_a_file_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(DataError, match=r"images: .*(cut short|there are only)"):
        Mnist.parse(images()[:cut], labels())


def test_a_file_that_goes_on_is_refused() -> None:
    with pytest.raises(DataError, match=r"promises 2×3×3 = 18 bytes and there are more than 18"):
        Mnist.parse(images() + b"x", labels())


@each_row("cut", [2, 12, 25])
def test_a_compressed_file_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(DataError, match="images: cannot be read"):
        Mnist.parse(gzip.compress(images())[:cut], labels())


@each_row("pack", [bytes, gzip.compress])
@each_row("sizes", [(2**32 - 1,) * 3, (2**31, 1000, 1000), (0, 2**32 - 1, 2**32 - 1)])
def test_sizes_that_no_memory_holds_are_refused(
    sizes: tuple[int, int, int], pack: Callable[[bytes], bytes]
) -> None:
    damaged = pack(struct.pack(">4I", 2051, *sizes) + bytes(100))
    with pytest.raises(DataError, match=r"images: the header promises .* and there are"):
        Mnist.parse(damaged, labels())


def test_a_compressed_file_that_is_damaged_is_refused() -> None:
    packed = bytearray(gzip.compress(images()))
    packed[12] ^= 0xFF
    with pytest.raises(DataError, match="images: "):
        Mnist.parse(bytes(packed), labels())


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images \(.*absent\.gz\): cannot be read: .*No such file"):
        Mnist.parse(tmp_path / "absent.gz", labels())


@each_row("index", [2, -1])
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


def record(label: int, *, blue: int = 255) -> bytes:
    """One image of CIFAR-10: red 0, green 128."""
    return bytes([label]) + bytes(1024) + bytes([128] * 1024) + bytes([blue] * 1024)


@pytest.mark.case("runtime", 69)
def test_cifar_records_hold_a_label_and_three_colour_planes() -> None:
    data = Cifar10.parse([record(7)])
    assert data.labels.tolist() == [7]
    assert data.labels.dtype == torch.int64
    assert data.images.shape == (1, 3, 32, 32)
    assert torch.equal(data.images[0][2], torch.ones(32, 32))
    assert torch.equal(data.images[0][0], torch.zeros(32, 32))
    assert torch.allclose(data.images[0][1], torch.tensor(0.5019608))

    with pytest.raises(DataError, match=r"file 0: 100 bytes are not whole records"):
        Cifar10.parse([bytes(100)])
    with pytest.raises(DataError, match="file 0: record 0 has the label 10; CIFAR-10 has 0 to 9"):
        Cifar10.parse([record(10)])


def test_cifar_files_of_any_number_of_records_follow_one_another(tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(record(4) + record(5))
    data = Cifar10.parse([record(1) + record(2) + record(3), tmp_path / "b.bin"])
    assert data.labels.tolist() == [1, 2, 3, 4, 5]
    assert DataLoader(data, 2).names == ("image", "label")

    (tmp_path / "b.bin").write_bytes(record(4) + record(11))
    with pytest.raises(DataError, match=r"b\.bin: record 1 has the label 11"):
        Cifar10.parse([tmp_path / "b.bin"])
    with pytest.raises(DataError, match=r"absent\.bin: cannot be read"):
        Cifar10.parse([tmp_path / "absent.bin"])
    with pytest.raises(DataError, match="file 0: 0 bytes"):
        Cifar10.parse([b""])
    for nothing in ([], record(1), "data_batch_1.bin"):
        with pytest.raises(DataError, match="give a list of at least one file"):
            Cifar10.parse(nothing)  # type: ignore[arg-type]


def test_pixels_may_stay_bytes_until_they_are_on_the_device() -> None:
    cifar = Cifar10.parse([record(7)], dtype=torch.uint8)
    mnist = Mnist.parse(images(), labels(), dtype=torch.uint8)
    assert (cifar.images.dtype, cifar.images[0, :, 0, 0].tolist()) == (torch.uint8, [0, 128, 255])
    assert (mnist.images.dtype, int(mnist.images[0, 0, 0, 0])) == (torch.uint8, 128)
    assert cifar.images.is_contiguous()
    for streaming in (True, False):
        batch = next(DataLoader(cifar, 1, streaming=streaming).epoch(0))
        assert batch["image"].dtype == torch.uint8
    assert Mnist.parse(images(), labels(), dtype=torch.float16).images.dtype == torch.float16
    with pytest.raises(ValueError, match=r"dtype=torch.int64: choose a floating one"):
        Mnist.parse(images(), labels(), dtype=torch.int64)


@pytest.mark.case("runtime", 70)
def test_text_becomes_windows_and_the_characters_behind_them() -> None:
    data = Shakespeare.parse("hello world", 4)
    assert data.vocab_size == 8
    assert data.vocabulary == (" ", "d", "e", "h", "l", "o", "r", "w")
    assert data.data.shape == (2, 4)
    assert data.data[0].tolist() == [3, 2, 4, 4]
    assert data.targets[0].tolist() == [2, 4, 4, 5]
    assert data.decode(data.data[0]) == "hell"
    assert data.decode(data.targets[1]) == " wor"

    with pytest.raises(DataError, match=r"2 characters; one window of seq_len=5 .* need 6"):
        Shakespeare.parse("ab", 5)


def test_text_comes_as_characters_bytes_or_a_file(tmp_path: Path) -> None:
    text = "Größe, né?"
    (tmp_path / "text").write_bytes(text.encode())
    for source in (text, text.encode(), tmp_path / "text"):
        data = Shakespeare.parse(source, 3)
        assert data.data.shape == (3, 3)  # of characters, not of bytes
        assert data.decode(data.data.flatten()) == text[:9]
        assert data.decode(data.targets.flatten()) == text[1:]
    assert len(Shakespeare.parse("abcdef", 5)) == 1
    with pytest.raises(DataError, match="5 characters"):
        Shakespeare.parse("äöüäö", 5)
    with pytest.raises(DataError, match="the text: not UTF-8 at byte 1"):
        Shakespeare.parse(b"a\xff", 1)
    with pytest.raises(DataError, match="cannot be read"):
        Shakespeare.parse(tmp_path / "absent", 1)
    with pytest.raises(ValueError, match="seq_len=0"):
        Shakespeare.parse("abc", 0)
    with pytest.raises(
        IndexError, match="no character has the number 3; the vocabulary has 0 to 2"
    ):
        Shakespeare.parse("abc", 1).decode([3])
