"""Data sets in the form of MNIST: one IDX file of images, one of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from flodl.data.dataset import TensorDataSet
from flodl.data.idx import read_idx
from flodl.errors import DataError

if TYPE_CHECKING:
    import os

    from torch import Tensor


@final
class Mnist(TensorDataSet):
    """Images ``[N, 1, rows, columns]`` float32 in 0…1 and labels ``[N]`` int64."""

    @property
    def images(self) -> Tensor:
        """``[N, 1, rows, columns]`` float32."""
        return self.tensors[0]

    @property
    def labels(self) -> Tensor:
        """``[N]`` int64."""
        return self.tensors[1]

    @classmethod
    def parse(
        cls,
        images: bytes | str | os.PathLike[str],
        labels: bytes | str | os.PathLike[str],
    ) -> Mnist:
        """Read the two files, each as bytes or as a path, plain or compressed with gzip.

        Raises:
            DataError: A file is of another kind or cut short, or their counts differ.
        """
        pixels, classes = read_pair(images, labels)
        return cls(pixels.to(torch.float32).div_(255), classes, names=("image", "label"))


def read_pair(
    images: bytes | str | os.PathLike[str], labels: bytes | str | os.PathLike[str]
) -> tuple[Tensor, Tensor]:
    """Read images and labels that belong together.

    Returns:
        Images ``[N, 1, rows, columns]`` uint8 and labels ``[N]`` int64.

    Raises:
        DataError: A file is of another kind or cut short, or their counts differ.
    """
    pixels = read_idx(images, dimensions=3, what="images")
    classes = read_idx(labels, dimensions=1, what="labels")
    if len(pixels) != len(classes):
        raise DataError(
            f"{len(pixels):,} images and {len(classes):,} labels: each image needs one label; "
            "are these two files of one data set?"
        )
    return pixels.unsqueeze(1), classes.to(torch.int64)
