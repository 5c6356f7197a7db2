"""The data of the models: the real data sets, small ones that ship with flodl, or noise."""

from __future__ import annotations

import functools
import gzip
import string
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from flodl.data import Cifar10, Mnist, Shakespeare, TensorDataSet, cifar, digits, mnist, shakespeare
from flodl.ddp_bench.models.text import CHARACTERS, WINDOW
from flodl.errors import DataError

if TYPE_CHECKING:
    from flodl.data.download import RemoteFile
    from flodl.ddp_bench.models import Task
    from flodl.ddp_bench.models.task import DataName

Source: TypeAlias = Literal["real", "packaged", "synthetic"]
"""Source of the data; only results on the real data sets compare with published results."""
SOURCES: tuple[str, ...] = get_args(Source)

ALPHABET = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase
"""The characters of tiny Shakespeare; a character's number is its index here."""

_REMOTE: dict[str, tuple[RemoteFile, ...]] = {
    "mnist": mnist.REMOTE_FILES,
    "cifar10": cifar.REMOTE_FILES,
    "shakespeare": shakespeare.REMOTE_FILES,
}
_SIZES = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000), "shakespeare": (7_842, 872)}
_IMAGE_SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2023, 0.1994, 0.2010)
_MARGIN = 4

NOTES = {
    "real": "",
    "packaged": "packaged data, small sets that ship with flodl: not comparable with published "
    "figures",
    "synthetic": "synthetic data, noise: nothing can be learned, not comparable with any figure",
}
"""The note about a source that every output contains."""


@final
@dataclass(frozen=True, slots=True)
class BenchData:
    """Training and test samples with the fields ``input`` and ``target``.

    Images are uint8, ``[N, C, H, W]``, with labels ``[N]``. Texts are character numbers ``[N, T]``;
    the targets are the next characters.
    """

    train: TensorDataSet
    test: TensorDataSet
    mirrored: bool
    """Whether a mirrored image still belongs to its class."""


def load(
    name: DataName,
    source: Source,
    folder: Path,
    *,
    batches: int | None = None,
    batch_size: int = 64,
    seed: int = 42,
    offline: bool = False,
) -> BenchData:
    """Load a data set.

    Args:
        name: Name of the data set.
        source: The real data set, the small replacement that ships with flodl, or noise of its
            shape.
        folder: Folder of the real data sets, each in its own subfolder.
        batches: Number of batches to keep for training; None: all. The test set stays whole;
            that of synthetic data is cut to the same length plus half a batch.
        batch_size: Samples of a batch.
        seed: Seed of synthetic data.
        offline: Whether to download nothing.

    Raises:
        DataError: The data is not available, or is less than one batch.
    """
    kept = None if batches is None else batches * batch_size
    if source == "synthetic":
        data = _synthetic(name, kept, batch_size, seed)
    elif source == "packaged":
        data = _packaged_text() if name == "shakespeare" else _packaged_images(name)
    else:
        if offline and (absent := missing_files([name], folder)):
            raise DataError(offline_message(absent))
        data = _real(name, folder / name)
    if kept is not None and len(data.train) > kept:
        shorter = [tensor[:kept] for tensor in data.train.tensors]
        data = BenchData(_pairs(*shorter), data.test, data.mirrored)
    if len(data.train) < batch_size:
        raise DataError(f"{len(data.train)} training samples do not fill a batch of {batch_size}")
    return data


def missing_files(names: Sequence[DataName], folder: Path) -> list[tuple[RemoteFile, Path]]:
    """Return the missing files of the real data sets, with their destinations."""
    wanted = [(file, folder / name / file.name) for name in names for file in _REMOTE[name]]
    return [(file, path.absolute()) for file, path in wanted if not path.exists()]


def offline_message(absent: Sequence[tuple[RemoteFile, Path]]) -> str:
    """Describe which files to download elsewhere and where to put them."""
    lines = [f"  {file.folders[-1]}{file.name}\n    -> {path}" for file, path in absent]
    return (
        f"{len(absent)} files are missing and --offline forbids to download them:\n"
        + "\n".join(lines)
        + "\nFetch them elsewhere and put each at its place, or train on what needs no file: "
        "--data packaged, or --synthetic"
    )


def prepare(
    task: Task,
    inputs: Tensor,
    targets: Tensor,
    *,
    mirrored: bool = False,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Turn the samples of a batch into inputs and targets of the model.

    Args:
        task: The task.
        inputs: Inputs as stored in the data set.
        targets: Targets as stored in the data set.
        mirrored: Whether images may be flipped.
        training: Whether to crop and flip images, if the task asks for it.
        generator: Generator for the crops; None: torch's default one.
    """
    if task.data == "shakespeare":
        return inputs, targets
    if training and task.augment:
        inputs = crop_and_flip(inputs, flip=mirrored, generator=generator)
    images = inputs.float().div_(255)
    if task.data == "cifar10":
        mean, deviation = _channel_scale(images.device)
        images = images.sub_(mean).div_(deviation)
    return images, images if task.own_target else targets


@functools.cache
def _channel_scale(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the channels; cached, because each copy to a GPU has to wait."""
    mean, deviation = (torch.tensor(values, device=device) for values in (_MEAN, _DEVIATION))
    return mean.view(3, 1, 1), deviation.view(3, 1, 1)


def crop_and_flip(
    images: Tensor, *, flip: bool = True, generator: torch.Generator | None = None
) -> Tensor:
    """Shift every image by up to 4 pixels and mirror half of them, at random for each image.

    Args:
        images: ``[B, C, H, W]``; the border is filled with zeros (black).
        flip: Whether to mirror.
        generator: Generator on the CPU; None: torch's default one.
    """
    count, _, height, width = images.shape
    device = images.device

    def draw(limit: int) -> Tensor:
        drawn = torch.randint(0, limit, (count, 1), device="cpu", generator=generator)
        return drawn.to(device, non_blocking=True)

    rows = draw(2 * _MARGIN + 1) + torch.arange(height, device=device)
    columns = draw(2 * _MARGIN + 1) + torch.arange(width, device=device)
    mirror = draw(2).bool()
    if flip:
        columns = torch.where(mirror, columns.flip(1), columns)
    padded = pad(images, (_MARGIN,) * 4)
    which = torch.arange(count, device=device)[:, None, None]
    # Indexing moves the indexed dimensions to the front: [B, H, W, C].
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _pairs(inputs: Tensor, targets: Tensor) -> TensorDataSet:
    return TensorDataSet(inputs, targets, names=("input", "target"))


def _real(name: DataName, folder: Path) -> BenchData:
    if name == "shakespeare":
        text = Shakespeare.download(folder, WINDOW)
        return _split_text(text.data, text.targets)
    kind = Mnist if name == "mnist" else Cifar10
    train = kind.download(folder, "train", dtype=torch.uint8)
    test = kind.download(folder, "test", dtype=torch.uint8)
    return BenchData(_pairs(*train.tensors), _pairs(*test.tensors), name == "cifar10")


def _split_text(data: Tensor, targets: Tensor) -> BenchData:
    """Use the last tenth of the windows as the test set."""
    kept = len(data) * 9 // 10
    return BenchData(
        _pairs(data[:kept], targets[:kept]), _pairs(data[kept:], targets[kept:]), mirrored=False
    )


def _packaged_text() -> BenchData:
    packed = files("flodl.ddp_bench") / "text" / "shakespeare.txt.gz"
    text = gzip.decompress(packed.read_bytes()).decode("ascii")
    number_of = {character: number for number, character in enumerate(ALPHABET)}
    numbers = torch.tensor([number_of[character] for character in text], device="cpu")
    used = (len(numbers) - 1) // WINDOW * WINDOW
    return _split_text(numbers[:used].view(-1, WINDOW), numbers[1 : used + 1].view(-1, WINDOW))


def _packaged_images(name: DataName) -> BenchData:
    """Return enlarged handwritten digits: 8×8 pixels are too small for models of MNIST's size."""
    channels, height, width = _IMAGE_SHAPES[name]
    parts = []
    for part in ("train", "test"):
        images, labels = digits(part).tensors
        large = interpolate(images, size=(height, width), mode="bilinear", align_corners=False)
        pixels = large.mul(255).round().to(torch.uint8).expand(-1, channels, -1, -1).contiguous()
        parts.append(_pairs(pixels, labels))
    return BenchData(parts[0], parts[1], mirrored=False)


def _synthetic(name: DataName, kept: int | None, batch_size: int, seed: int) -> BenchData:
    train_size, test_size = _SIZES[name]
    if kept is not None:
        train_size = min(train_size, kept)
        test_size = min(test_size, kept + batch_size // 2)
    generator = torch.Generator().manual_seed(seed)
    train, test = (_noise(name, size, generator) for size in (train_size, test_size))
    return BenchData(train, test, mirrored=name == "cifar10")


def _noise(name: DataName, size: int, generator: torch.Generator) -> TensorDataSet:
    if name == "shakespeare":
        text = torch.randint(0, CHARACTERS, (size * WINDOW + 1,), generator=generator, device="cpu")
        return _pairs(text[:-1].view(-1, WINDOW), text[1:].view(-1, WINDOW))
    shape = (size, *_IMAGE_SHAPES[name])
    # 2^16 random pixels are enough noise, and drawing pixels takes most of the time.
    pixels = torch.randint(0, 256, (1 << 16,), generator=generator, device="cpu", dtype=torch.uint8)
    start = torch.randint(0, 1 << 16, (size, 1), generator=generator, device="cpu")
    numbers = torch.arange(shape[1] * shape[2] * shape[3], device="cpu")
    images = torch.cat([pixels[(part + numbers) & 0xFFFF] for part in torch.split(start, 4096)])
    labels = torch.randint(0, 10, (size,), generator=generator, device="cpu")
    return _pairs(images.view(shape), labels)
