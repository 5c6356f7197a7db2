"""The binary form of CIFAR-10: records of one label and three colour planes.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, and the
description of the binary version at https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from flodl.data.download import RemoteFile, fetch
from flodl.data.images import LabelledImages
from flodl.errors import DataError

_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS
_CLASSES = 10

_ARCHIVE = RemoteFile(
    name="cifar-10-binary.tar.gz",
    folders=("https://www.cs.toronto.edu/~kriz/",),
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
REMOTE_FILES = (_ARCHIVE,)
"""The file that :meth:`Cifar10.download` may fetch."""
_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}


@final
class Cifar10(LabelledImages):
    """Images ``[N, 3, 32, 32]`` (red, green, blue) and labels ``[N]`` int64, 0 to 9."""

    @classmethod
    def parse(
        cls,
        files: Sequence[bytes | str | os.PathLike[str]],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Cifar10:
        """Read files of records in order, each given as bytes or as a path.

        Args:
            files: One or more.
            dtype: Of the images. A floating dtype scales them to 0…1. uint8 keeps the bytes, which
                take a quarter of the memory; scale them on the device.

        Raises:
            DataError: There is no file, a file cannot be read, a file does not hold a whole number
                of records, or a label is above 9.
            ValueError: Another dtype.
        """
        if isinstance(files, (bytes, str, os.PathLike)) or not files:
            raise DataError(f"files={files!r:.60}: give a list of at least one file")
        records = torch.cat([_records(file, number) for number, file in enumerate(files)])
        return cls(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0], dtype)

    @classmethod
    def download(
        cls,
        root: str | os.PathLike[str],
        split: Literal["train", "test"] = "train",
        *,
        dtype: torch.dtype = torch.float32,
        mirror: str | None = None,
    ) -> Cifar10:
        """Read 50,000 (or 10,000) images from ``root``; download the archive (162 MiB) if missing.

        Args:
            root: Folder of the archive.
            split: ``"train"`` (50,000 images) or ``"test"`` (10,000 images).
            dtype: Of the images, as in :meth:`parse`.
            mirror: Address of a folder to download from instead.

        Raises:
            DataError: The archive cannot be downloaded or is damaged.
            ValueError: ``split`` has another value.
        """
        if split not in _MEMBERS:
            raise ValueError(f"split={split!r}: choose 'train' or 'test'")
        archive = fetch(_ARCHIVE, root, mirror=mirror)
        try:
            with tarfile.open(archive) as members:
                # The compressed stream is read in its own order, whatever members are wanted.
                content = {
                    member.name: members.extractfile(member).read()  # type: ignore[union-attr]
                    for member in members
                    if member.name in _MEMBERS[split]
                }
            return cls.parse([content[name] for name in _MEMBERS[split]], dtype=dtype)
        except (tarfile.TarError, KeyError, OSError) as error:
            raise DataError(
                f"{archive}: cannot be read: {error}; remove it and try again"
            ) from error


def _records(file: bytes | str | os.PathLike[str], number: int) -> Tensor:
    """Read the records of one file, ``[N, 3073]`` uint8."""
    name = f"file {number}" if isinstance(file, bytes) else str(Path(file))
    try:
        content = file if isinstance(file, bytes) else Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error}") from error
    if not content or len(content) % _RECORD:
        raise DataError(
            f"{name}: {len(content):,} bytes are not whole records of {_RECORD:,} bytes "
            "(a label and 32×32 pixels in three colours); is this the binary version of CIFAR-10?"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _RECORD)
    wrong = torch.nonzero(records[:, 0] >= _CLASSES)
    if len(wrong):
        record = int(wrong[0])
        raise DataError(
            f"{name}: record {record} has the label {int(records[record, 0])}; CIFAR-10 has 0 to 9 "
            "(CIFAR-100 has records of another form)"
        )
    return records
