"""The data set in the package, so that a first training needs no download."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

import torch
from torch import Tensor

from flodl.data.dataset import TensorDataSet
from flodl.data.images import pixel_values
from flodl.data.mnist import read_pair

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
