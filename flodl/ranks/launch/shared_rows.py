"""Memory that all ranks of one host map, so that they can add tensors without sending them.

The memory belongs to no file. It is freed when the last rank that maps it ends, also after a kill.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from flodl.ranks.group import Pending

if TYPE_CHECKING:
    from flodl.ranks.group import Group

_TOKEN = 32
"""Bytes at the end that prove that two ranks map the same memory."""
_ALIGNED = 64
"""Elements: ranks write to different cache lines."""


@final
class SharedRows:
    """One row of numbers per rank, readable and writable by all ranks.

    Args:
        memory: The mapped memory.
        group: The ranks.
        length: Elements of a row.
        dtype: Their dtype.

    Attributes:
        rows: The row of each rank, ``[length]``. Write only to your own, except in :meth:`add`.
    """

    def __init__(self, memory: mmap.mmap, group: Group, length: int, dtype: torch.dtype) -> None:
        count = group.world_size * length
        everything = torch.frombuffer(memory, dtype=dtype, count=count)
        self.rows: list[Tensor] = list(everything.view(group.world_size, length))
        self._group = group
        bounds = [length * rank // group.world_size for rank in range(group.world_size + 1)]
        bounds = [min(length, -(-bound // _ALIGNED) * _ALIGNED) for bound in bounds]
        self._own = slice(bounds[group.rank], bounds[group.rank + 1])

    @property
    def own(self) -> Tensor:
        """The row of this rank."""
        return self.rows[self._group.rank]

    def add(self, *, maximum: bool) -> None:
        """Add this rank's part of all rows, and write the sum to this part of every row.

        Call it after every rank has filled its row. A row is complete when all ranks have done it.

        Args:
            maximum: Take the maximum instead of the sum.
        """
        first, *others = (row[self._own] for row in self.rows)
        for other in others:
            if maximum:
                torch.maximum(first, other, out=first)
            else:
                first.add_(other)
        for other in others:
            other.copy_(first)


@final
class SharedSum(Pending):
    """The sum of the rows of all ranks, in progress.

    Args:
        group: The ranks.
        shared: Rows, filled by this rank.
        maximum: For each of them, whether to take the maximum instead.
    """

    def __init__(self, group: Group, shared: Sequence[SharedRows], maximum: Sequence[bool]) -> None:
        self._group, self._shared, self._maximum = group, shared, maximum
        self._filled = group.gather_later([0.0], prompt=True)

    def done(self) -> bool:
        """Return False: every rank has to call :meth:`wait`."""
        return False

    def wait(self) -> Any:
        """Wait for the other ranks twice: until they have filled, and until they have added."""
        self._filled.wait()
        for rows, maximum in zip(self._shared, self._maximum, strict=True):
            rows.add(maximum=maximum)
        return self._group.gather([0.0], prompt=True)


def share_rows(
    group: Group, lengths: Sequence[int], dtypes: Sequence[torch.dtype]
) -> list[SharedRows] | None:
    """Map memory for rows of these lengths; collective.

    Args:
        group: The ranks.
        lengths: Elements of each kind of row; equal on all ranks.
        dtypes: The dtype of each kind.

    Returns:
        Rows that hold zeros. None on all ranks if not every rank can map the same memory, as on
        several hosts.
    """
    sizes = [
        group.world_size * length * dtype.itemsize
        for length, dtype in zip(lengths, dtypes, strict=True)
    ]
    found: list[SharedRows] = []
    for size, length, dtype in zip(sizes, lengths, dtypes, strict=True):
        memory = _mapped(group, size)
        if memory is None:
            return None
        found.append(SharedRows(memory, group, length, dtype))
    return found


def _mapped(group: Group, size: int) -> mmap.mmap | None:
    """Memory of this many bytes that all ranks map, or None on all ranks; collective."""
    file, place = -1, None
    token = secrets.token_bytes(_TOKEN)
    if group.leads:
        file = _anonymous_file(size + _TOKEN, token)
        place = (f"/proc/{os.getpid()}/fd/{file}", token) if file >= 0 else None
    place = group.broadcast_object(place)
    memory = _map(place[0], size + _TOKEN, place[1]) if place is not None else None
    everywhere = all(group.gather_objects(memory is not None))
    if file >= 0:
        os.close(file)
    return memory if everywhere else None


def _anonymous_file(size: int, token: bytes) -> int:
    """Return the number of an open file in memory that ends with a token; -1 if there is none."""
    if not hasattr(os, "memfd_create"):
        return -1
    file = os.memfd_create("flodl-ranks", os.MFD_CLOEXEC)
    try:
        # Reserved now: memory that cannot be had later would kill the process.
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, token, size - len(token))
    except OSError:
        os.close(file)
        return -1
    return file


def _map(path: str, size: int, token: bytes) -> mmap.mmap | None:
    """Map a file of another process; None if it is not the one with this token."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # another host or container, or another user
        return None
    try:
        if os.fstat(file).st_size != size or os.pread(file, len(token), size - len(token)) != token:
            return None
        return mmap.mmap(file, size)
    except OSError:
        return None
    finally:
        os.close(file)
