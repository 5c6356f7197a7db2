"""The data of the benchmark: shapes, what ships, what is missing, augmentation."""

import gzip
from pathlib import Path

import pytest
import torch

from flodl.data import mnist
from flodl.ddp_bench.data import (
    ALPHABET,
    SOURCES,
    crop_and_flip,
    load,
    missing_files,
    offline_message,
    prepare,
)
from flodl.ddp_bench.models import TASKS
from flodl.errors import DataError
from tests.rows import each_row

NOWHERE = Path("nowhere")
SIZES = {"mnist": (60_000, 10_000), "shakespeare": (7_842, 872)}


@pytest.mark.parametrize("name", SIZES)
def test_synthetic_data_has_the_sizes_of_the_real(name):
    data = load(name, "synthetic", NOWHERE)
    assert (len(data.train), len(data.test)) == SIZES[name]


def test_synthetic_data_follows_the_seed():
    first, again, other = (
        load("mnist", "synthetic", NOWHERE, batches=2, seed=seed) for seed in (1, 1, 2)
    )
    assert first.train.tensors[0].equal(again.train.tensors[0])
    assert not first.train.tensors[0].equal(other.train.tensors[0])


@each_row("source", [one for one in SOURCES if one != "real"])
@each_row(
    ("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32)), ("shakespeare", (128,))]
)
def test_all_sources_have_the_same_shapes(source, name, shape):
    data = load(name, source, NOWHERE, batches=1)
    for part in (data.train, data.test):
        inputs, targets = part.tensors
        assert tuple(inputs.shape[1:]) == shape
        assert targets.shape[0] == inputs.shape[0]
        assert part.names == ("input", "target")


def test_fewer_batches_keep_the_beginning_of_the_training_set_and_the_whole_test_set():
    whole, cut = load("mnist", "packaged", NOWHERE), load("mnist", "packaged", NOWHERE, batches=3)
    assert len(cut.train) == 3 * 64
    assert cut.train.tensors[0].equal(whole.train.tensors[0][: 3 * 64])
    assert len(cut.test) == len(whole.test) == 359


def test_the_packaged_text_is_made_of_the_characters_of_the_real_one():
    import flodl.ddp_bench

    packed = Path(flodl.ddp_bench.__file__).parent / "text" / "shakespeare.txt.gz"
    text = gzip.decompress(packed.read_bytes()).decode("ascii")
    assert len(ALPHABET) == 65
    assert sorted(ALPHABET) == list(ALPHABET)
    assert set(text) <= set(ALPHABET)
    assert len(text) > 250_000
    data = load("shakespeare", "packaged", NOWHERE)
    first = "".join(ALPHABET[number] for number in data.train.tensors[0][0])
    assert first == text[:128]
    assert data.train.tensors[1][0, :-1].equal(data.train.tensors[0][0, 1:])


def test_too_little_data_for_a_batch_is_refused():
    with pytest.raises(DataError, match="do not fill a batch of 4000"):
        load("mnist", "packaged", NOWHERE, batch_size=4000)


@pytest.mark.case("distributed", 58)
def test_offline_names_every_missing_file_and_its_place(tmp_path):
    absent = missing_files(["mnist", "cifar10", "shakespeare"], tmp_path)
    message = offline_message(absent)
    for file, path in absent:
        assert file.name in message
        assert str(path) in message
    assert len(absent) == 6
    with pytest.raises(DataError, match="4 files are missing"):
        load("mnist", "real", tmp_path, offline=True)


@pytest.mark.case("distributed", 58)
@each_row("content", [b"", b"something else entirely"])
def test_a_truncated_or_corrupt_file_is_refused(tmp_path, content):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for file in mnist.REMOTE_FILES:
        (folder / file.name).write_bytes(content)
    with pytest.raises(DataError, match="not the file that belongs there"):
        load("mnist", "real", tmp_path, offline=True)


def test_every_image_is_moved_on_its_own():
    torch.manual_seed(3)
    image = torch.arange(1, 3 * 32 * 32 + 1, dtype=torch.float32).view(1, 3, 32, 32)
    moved = crop_and_flip(image.expand(64, -1, -1, -1))
    assert moved.shape == (64, 3, 32, 32)
    assert len({tuple(one.flatten().tolist()) for one in moved}) > 32


def test_a_crop_is_the_image_moved_with_black_around_it():
    torch.manual_seed(0)
    image = torch.rand(1, 2, 32, 32)
    padded = torch.nn.functional.pad(image, (4,) * 4)
    possible = [
        crop.flip(2) if mirrored else crop
        for top in range(9)
        for left in range(9)
        for mirrored in (False, True)
        for crop in [padded[0, :, top : top + 32, left : left + 32]]
    ]
    for one in crop_and_flip(image.expand(16, -1, -1, -1)):
        assert any(one.equal(crop) for crop in possible)


def test_digits_are_never_mirrored():
    image = torch.zeros(1, 1, 32, 32)
    image[..., :16] = 1
    moved = crop_and_flip(image.expand(32, -1, -1, -1), flip=False)
    assert moved[..., 5:10].sum() > 0
    assert moved[..., 22:27].sum() == 0


def test_equal_generators_give_equal_crops():
    images = torch.rand(8, 3, 32, 32)
    first, again = (
        crop_and_flip(images, generator=torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert first.equal(again)


def test_images_are_normalised_and_only_training_images_are_moved():
    task = TASKS["resnet"]
    images = torch.full((2, 3, 32, 32), 255, dtype=torch.uint8)
    plain, _ = prepare(task, images, torch.tensor([0, 1]))
    wanted = (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2023, 0.1994, 0.2010])
    torch.testing.assert_close(plain[0, :, 0, 0], wanted)
    assert plain.flatten(2).std(dim=2).max() < 1e-6
    assert images.dtype == torch.uint8
    assert int(images.min()) == 255


def test_the_autoencoder_is_to_give_its_input():
    images = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8)
    inputs, target = prepare(TASKS["conv-ae"], images, torch.tensor([0, 1]))
    assert target is inputs
    assert float(inputs.max()) <= 1
