"""Data sets in the form of MNIST: one IDX file of images, one of labels."""

from __future__ import annotations

import os
from importlib.resources import files
from typing import Literal, final

import torch
from torch import Tensor

from flodl.data.dataset import TensorDataSet
from flodl.data.download import RemoteFile, fetch
from flodl.data.idx import read_idx
from flodl.data.images import LabelledImages, pixel_values
from flodl.errors import DataError

_FOLDERS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _file(name: str, sha256: str) -> RemoteFile:
    return RemoteFile(name=name, folders=_FOLDERS, sha256=sha256)


_FILES = {
    "train": (
        _file(
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        _file(
            "train-labels-idx1-ubyte.gz",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
    ),
    "test": (
        _file(
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        _file(
            "t10k-labels-idx1-ubyte.gz",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
}

REMOTE_FILES = tuple(file for pair in _FILES.values() for file in pair)
"""The files that :meth:`Mnist.download` may fetch."""


@final
class Mnist(LabelledImages):
    """Images ``[N, 1, rows, columns]`` and labels ``[N]`` int64."""

    @classmethod
    def parse(
        cls,
        images: bytes | str | os.PathLike[str],
        labels: bytes | str | os.PathLike[str],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Mnist:
        """Read the two files, each as bytes or as a path, plain or compressed with gzip.

        Args:
            images: IDX file of three dimensions.
            labels: IDX file of one dimension.
            dtype: Of the images. A floating dtype scales them to 0…1. uint8 keeps the bytes, which
                take a quarter of the memory; scale them on the device.

        Raises:
            DataError: A file has another format or is cut short, or their counts differ.
            ValueError: Another dtype.
        """
        return cls(*read_pair(images, labels), dtype)

    @classmethod
    def download(
        cls,
        root: str | os.PathLike[str],
        split: Literal["train", "test"] = "train",
        *,
        dtype: torch.dtype = torch.float32,
        mirror: str | None = None,
    ) -> Mnist:
        """Read 60,000 (or 10,000) images from ``root``; download the two files if missing.

        Args:
            root: Folder of the files.
            split: ``"train"`` (60,000 images) or ``"test"`` (10,000 images).
            dtype: Of the images, as in :meth:`parse`.
            mirror: Address of a folder to download from instead.

        Raises:
            DataError: A file cannot be downloaded, or is not the expected one.
            ValueError: ``split`` has another value.
        """
        if split not in _FILES:
            raise ValueError(f"split={split!r}: choose 'train' or 'test'")
        images, labels = (fetch(file, root, mirror=mirror) for file in _FILES[split])
        return cls.parse(images, labels, dtype=dtype)


def read_pair(
    images: bytes | str | os.PathLike[str], labels: bytes | str | os.PathLike[str]
) -> tuple[Tensor, Tensor]:
    """Read images and labels that belong together.

    Returns:
        Images ``[N, 1, rows, columns]`` uint8 and labels ``[N]`` int64.

    Raises:
        DataError: A file has another format or is cut short, or their counts differ.
    """
    pixels = read_idx(images, dimensions=3, what="images")
    classes = read_idx(labels, dimensions=1, what="labels")
    if len(pixels) != len(classes):
        raise DataError(
            f"{len(pixels):,} images and {len(classes):,} labels: each image needs one label; "
            "are these two files of one data set?"
        )
    return pixels.unsqueeze(1), classes.to(torch.int64)


# --- The data set in the package, so that a first training needs no download -------------------

_SAMPLES = 1797
_HELD_OUT = _SAMPLES // 5
_STRIDE = 1111


def digits(split: Literal["train", "test", "all"] = "train") -> TensorDataSet:
    """Load 8×8 images of handwritten digits (see ``uci_digits/ATTRIBUTION.md``).

    One fifth is the test part, always with the same samples: ``1111·k mod 1797`` for ``k = 0 …
    358``. The file is ordered by writer and class. The ratio 1111/1797 is close to the golden
    ratio, so these samples are spread evenly over the file. No random generator is involved,
    because its numbers could change with another version.

    Args:
        split: ``"train"`` (1,438 samples), ``"test"`` (the other 359) or ``"all"`` (1,797, in the
            order of the file).

    Returns:
        A data set with the fields ``image`` (``[N, 1, 8, 8]`` float32 in 0…1) and ``label``
            (``[N]`` int64, 0 to 9).

    Raises:
        ValueError: ``split`` has another value.
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f"split={split!r}: choose 'train', 'test' or 'all'")
    folder = files("flodl.data") / "uci_digits"
    pixels, labels = read_pair(
        (folder / "images.idx3-ubyte.gz").read_bytes(),
        (folder / "labels.idx1-ubyte.gz").read_bytes(),
    )
    images = pixel_values(pixels, 16, torch.float32)
    if split != "all":
        held_out = _held_out()
        chosen = held_out if split == "test" else ~held_out
        images, labels = images[chosen], labels[chosen]
    return TensorDataSet(images, labels, names=("image", "label"))


def _held_out() -> Tensor:
    """Return a mask of the samples in the test part, ``[1797]`` bool."""
    mask = torch.zeros(_SAMPLES, dtype=torch.bool, device="cpu")
    mask[torch.arange(_HELD_OUT, device="cpu") * _STRIDE % _SAMPLES] = True
    return mask
