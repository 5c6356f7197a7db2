"""The sample ledger: an append-only file of a run that records which rank trained which samples.

``samples.ledger`` begins with a line that names the format. Records follow, each with:

- its kind (one byte);
- the length of its content (four bytes, little-endian);
- the content: the facts that decide the order of the samples, as JSON, or the samples that all
  ranks trained since the previous record, or those that a guard left out;
- a 16-byte BLAKE2b hash over the previous record's hash and this record.

So no record can be changed, moved, removed or inserted without changing all later hashes. The file
contains no pickles.

A checkpoint keeps :meth:`SampleLedger.mark`: the length of the file and the last hash. Resuming
cuts the file back to this length, so that work which is rolled back leaves the ledger, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, final

import numpy as np
import torch

from flodl.errors import RunDirectoryError
from flodl.ranks.ledger_format import (
    Stretch,
    pack_append,
    pack_segment,
    rows_hash,
    unpack_append,
)

if TYPE_CHECKING:
    from io import RawIOBase

    from torch import Tensor

MAGIC = b"flodl samples 1\n"
_HEAD = struct.Struct("<cI")
_CHAIN_BYTES = 16
_FACTS, _TRAINED, _LEFT_OUT = b"F", b"T", b"S"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerFacts:
    """The facts that decide which samples an epoch has, and in which order."""

    samples: int
    """Number of samples of the data set."""
    batch_size: int
    seed: int
    sampler: Literal["random", "sequential", "custom"]
    drop_last: bool
    epochs: int
    join_remainder: bool = False
    """Whether a last batch of one sample belongs to the batch before it."""
    since: int = 0
    """Batches that a single process trained earlier, without writing a ledger."""
    torch: str = str(torch.__version__)
    """Version of torch, which decides the output of its generators."""

    @property
    def batches(self) -> int:
        """Number of batches of an epoch."""
        full, rest = divmod(self.samples, self.batch_size)
        if rest == 0 or self.drop_last or (self.join_remainder and rest == 1 and full > 0):
            return full
        return full + 1

    @property
    def used(self) -> int:
        """Number of samples that an epoch trains."""
        return self.batches * self.batch_size if self.drop_last else self.samples

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> LedgerFacts:
        """Read the JSON form; unknown entries of later versions are ignored.

        Raises:
            ValueError: An entry is missing or has an impossible value.
        """
        known = {name: form[name] for name in cls.__dataclass_fields__ if name in form}
        try:
            facts = cls(**known)
            if facts.samples < 1 or facts.batch_size < 1 or facts.epochs < 0:
                raise ValueError("a count is below 1")
        except TypeError as problem:
            raise ValueError(str(problem)) from None
        return facts


@final
class SampleRecorder:
    """Records the samples that one rank trains, until :meth:`take`.

    Args:
        rank: Number of this process.
        batch_size: Samples of a full batch.
    """

    def __init__(self, rank: int, batch_size: int) -> None:
        self.rank, self._unit = rank, batch_size
        self._stretches: list[Stretch] = []
        self._left_out: list[Stretch] = []

    def trained_samples(self, epoch: int, start: int, position: int, rows: Tensor) -> None:
        """Record a batch, or a part of one.

        Args:
            epoch: Epoch of the samples.
            start: Position of the first sample in the epoch's order.
            position: Batches of all ranks before it.
            rows: ``[samples]`` int64 on the CPU, their numbers.
        """
        self._add(self._stretches, epoch, start, position, rows)

    def left_out_samples(self, epoch: int, start: int, position: int, rows: Tensor) -> None:
        """Record a batch that a guard leaves out; as :meth:`trained_samples`."""
        self._add(self._left_out, epoch, start, position, rows)

    def state(self) -> tuple[list[Stretch], list[Stretch]]:
        """Return a copy of what is recorded since :meth:`take`."""
        return deepcopy((self._stretches, self._left_out))

    def go_back(self, state: tuple[list[Stretch], list[Stretch]]) -> None:
        """Return to the result of :meth:`state`, which may be used again."""
        self._stretches, self._left_out = deepcopy(state)

    @staticmethod
    def _add(stretches: list[Stretch], epoch: int, start: int, position: int, rows: Tensor) -> None:
        size = len(rows)
        digest = rows_hash(rows.numpy().astype("<i8", copy=False).tobytes())
        if stretches:
            last = stretches[-1]
            step = start - last.last
            if (last.epoch, last.size) == (epoch, size) and (
                step == last.stride or (last.count == 1 and step > 0)
            ):
                last.stride = step
                last.hashes += digest
                return
        stretches.append(Stretch(epoch, start, size, position, 0, bytearray(digest)))

    def take(self) -> bytes:
        """Return the samples trained since the last call, packed, and reset; empty if none."""
        segment, self._stretches = self._packed(self._stretches), []
        return segment

    def take_left_out(self) -> bytes:
        """Return the samples left out since the last call, as :meth:`take` does."""
        segment, self._left_out = self._packed(self._left_out), []
        return segment

    def _packed(self, stretches: list[Stretch]) -> bytes:
        return pack_segment(self.rank, self._unit, stretches) if stretches else b""


@final
class SampleLedger:
    """The sample ledger file; one process writes it.

    Args:
        path: Path of the file; an earlier file is replaced.
        facts: Facts about the data.

    Raises:
        RunDirectoryError: The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], facts: LedgerFacts) -> None:
        self._path = Path(path)
        self._length, self._chain = len(MAGIC), _first_chain()
        self._behind: tuple[dict[str, Any], bytes] | None = None
        try:
            self._path.write_bytes(MAGIC)
        except OSError as error:
            raise _refused(self._path, error) from error
        self.state_facts(facts)

    @classmethod
    def reopen(
        cls,
        path: str | os.PathLike[str],
        mark: Mapping[str, Any],
        *,
        facts: LedgerFacts | None = None,
        source: str | os.PathLike[str] | None = None,
    ) -> SampleLedger:
        """Continue a ledger from a checkpoint; later records are cut off.

        Args:
            path: The file to continue.
            mark: The result of :meth:`mark` in the checkpoint.
            facts: Facts about the data from now on; written if they have changed.
            source: The ledger of another run that this run continues; the part before the
                checkpoint is copied.

        Raises:
            RunDirectoryError: The file is not the one of the checkpoint, or cannot be written.
        """
        origin = Path(source if source is not None else path)
        contents = read_ledger(origin)
        length, digest = mark["length"], mark["digest"]
        broken = contents.problems and contents.problems[0][0] < length
        if broken or contents.digest_at(length) != digest:
            raise RunDirectoryError(
                f"{origin} is not the sample ledger that the checkpoint was written with: it was "
                "cut, changed or replaced since; bring back the right one, or move this one away "
                "and resume from an earlier checkpoint"
            )
        ledger = cls.__new__(cls)
        ledger._path = Path(path)
        ledger._length, ledger._chain = length, bytes.fromhex(digest)
        ledger._behind = None
        try:
            if source is not None:
                _copy_start(origin, ledger._path, length)
            os.truncate(path, length)
        except OSError as error:
            raise _refused(ledger._path, error) from error
        if facts is not None and facts != contents.facts_at(length):
            ledger.state_facts(facts)
        return ledger

    @classmethod
    def follow(cls, path: str | os.PathLike[str], mark: Mapping[str, Any]) -> SampleLedger:
        """Follow a ledger that another process writes: give this object the same records.

        Args:
            path: The file; nothing is written to it before :meth:`take_over`.
            mark: The result of :meth:`mark` there.
        """
        ledger = cls.__new__(cls)
        ledger._path = Path(path)
        ledger._length, ledger._chain = mark["length"], bytes.fromhex(mark["digest"])
        ledger._behind = dict(mark), b""
        return ledger

    def take_over(self) -> None:
        """Write the ledger from now on: the other process is lost.

        That process may have been lost before or while it wrote the last record.

        Raises:
            RunDirectoryError: The file is not the one that was followed, or cannot be written.
        """
        assert self._behind is not None  # noqa: S101 - it followed
        (mark, record), self._behind = self._behind, None
        SampleLedger.reopen(self._path, mark)
        self._write(record, mark["length"])

    def state_facts(self, facts: LedgerFacts) -> None:
        """Write facts about the data; they apply to the records that follow.

        Raises:
            RunDirectoryError: The file cannot be written.
        """
        text = json.dumps(asdict(facts), separators=(",", ":"), ensure_ascii=False)
        self._add(_FACTS, text.encode())

    def append(self, position: int, segments: Sequence[bytes], *, left_out: bool = False) -> None:
        """Append the samples that all ranks have trained; write nothing if there are none.

        Args:
            position: Batches that all ranks together have trained.
            segments: The result of :meth:`SampleRecorder.take` of each rank.
            left_out: Whether a guard left them out: then of :meth:`SampleRecorder.take_left_out`.

        Raises:
            RunDirectoryError: The file cannot be written; it stays unchanged.
        """
        filled = [segment for segment in segments if segment]
        if filled:
            self._add(_LEFT_OUT if left_out else _TRAINED, pack_append(position, filled))

    def mark(self) -> dict[str, Any]:
        """Flush the file to disk and return its mark for a checkpoint, as JSON values.

        Raises:
            RunDirectoryError: The file cannot be written.
        """
        if self._behind is None:
            try:
                with self._path.open("r+b") as file:
                    os.fsync(file.fileno())
            except OSError as error:
                raise _refused(self._path, error) from error
        return self._place()

    def _place(self) -> dict[str, Any]:
        return {"length": self._length, "digest": self._chain.hex()}

    def _add(self, kind: bytes, content: bytes) -> None:
        head = _HEAD.pack(kind, len(content))
        chain = _link(self._chain, head, content)
        record = head + content + chain
        if self._behind is None:
            self._write(record, self._length)
        else:
            self._behind = self._place(), record
        self._length, self._chain = self._length + len(record), chain

    def _write(self, record: bytes, length: int) -> None:
        """Append a record to the file, which has this length."""
        try:
            with self._path.open("r+b", buffering=0) as file:
                file.seek(length)
                _write_all(file, record, length)
        except OSError as error:
            raise _refused(self._path, error) from error


@final
class LedgerContents:
    """The contents of a ledger: an index in memory; the batches stay in the file.

    The index takes 24 bytes per record and 40 per record and epoch, independent of the number of
    batches. :meth:`stretches` reads the file again.

    Attributes:
        path: The file.
        size: Size of the file in bytes.
        stated: Facts, each with the length of the file from which on they apply.
        problems: Damaged records: the byte at which each begins, and the reason.
        torn: Bytes of a last record that was not written completely.
        epoch_facts: The facts that applied when an epoch was first trained.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.stated: list[tuple[int, LedgerFacts]] = []
        self.problems: list[tuple[int, str]] = []
        self.torn = 0
        self.epoch_facts: dict[int, LedgerFacts] = {}
        self._ends, self._chains = array("Q"), bytearray()
        self._rows = array("Q")
        """Per record and epoch: epoch, first sample, end of the last, file position, length."""
        self._left_out = array("Q")
        """The same for samples that a guard left out."""

    @property
    def facts(self) -> LedgerFacts:
        """The latest facts."""
        return self.stated[-1][1]

    def facts_at(self, length: int) -> LedgerFacts:
        """Return the facts that applied when the file had this length."""
        return [facts for begin, facts in self.stated if begin <= length][-1]

    def digest_at(self, length: int) -> str | None:
        """Return the hash that ends at byte ``length``; None if no record ends there."""
        place = bisect_left(self._ends, length)
        if place == len(self._ends) or self._ends[place] != length:
            return None
        return self._chains[place * _CHAIN_BYTES : (place + 1) * _CHAIN_BYTES].hex()

    def stretches(
        self, epoch: int, start: int, stop: int | None, *, left_out: bool = False
    ) -> Iterator[tuple[int, Stretch]]:
        """Read the trained batches of a part of an epoch, with their ranks, in file order.

        Args:
            epoch: Number of the epoch, counted from 0.
            start: First sample of the part, by its position in the epoch's order.
            stop: End of the part; None: no end.
            left_out: Read the batches that a guard left out instead.

        Yields:
            Every stretch of the records that overlap the part; some of its batches may be outside.

        Raises:
            RunDirectoryError: The file has changed since it was read.
        """
        index = self._left_out if left_out else self._rows
        rows = np.frombuffer(index, dtype=np.uint64).reshape(-1, 5)
        wanted = (rows[:, 0] == epoch) & (rows[:, 2] > start)
        if stop is not None:
            wanted &= rows[:, 1] < stop
        with _opened(self.path) as file:
            for offset, length in rows[wanted, 3:].tolist():
                for rank, stretches in self._reread(file, offset, length):
                    yield from ((rank, one) for one in stretches if one.epoch == epoch)

    def _reread(self, file: BinaryIO, offset: int, length: int) -> list[tuple[int, list[Stretch]]]:
        file.seek(offset + _HEAD.size)
        try:
            return unpack_append(file.read(length))[1]
        except ValueError as problem:
            raise RunDirectoryError(f"{self.path} changed while it was read: {problem}") from None

    def take_in(self, at: int, kind: bytes, content: bytes, chain: bytes) -> None:
        """Add a record that begins at byte ``at`` to the index."""
        end = at + _HEAD.size + len(content) + _CHAIN_BYTES
        try:
            if kind == _FACTS:
                self.stated.append((end, LedgerFacts.from_json(json.loads(content))))
            elif kind in (_TRAINED, _LEFT_OUT) and self.stated:
                self._index(at, content, kind)
            else:
                raise ValueError("it is of an unknown kind")
        except (ValueError, TypeError, AttributeError) as problem:
            self.problems.append((at, f"the record at byte {at} cannot be read: {problem}"))
        self._ends.append(end)
        self._chains += chain

    def _index(self, at: int, content: bytes, kind: bytes) -> None:
        rows = self._rows if kind == _TRAINED else self._left_out
        reach: dict[int, tuple[int, int]] = {}
        _, segments = unpack_append(content)
        for _, stretches in segments:
            for one in stretches:
                low, high = reach.get(one.epoch, (one.first, 0))
                reach[one.epoch] = min(low, one.first), max(high, one.last + one.size)
        if any(high >= 1 << 63 for _, high in reach.values()) or max(reach, default=0) >= 1 << 63:
            raise ValueError("it holds an impossible number")
        for epoch, (low, high) in reach.items():
            self.epoch_facts.setdefault(epoch, self.facts)
            rows.extend((epoch, low, high, at, len(content)))


def read_ledger(path: str | os.PathLike[str]) -> LedgerContents:
    """Read a ledger record by record and check the chain of hashes.

    Raises:
        RunDirectoryError: The file cannot be read or is not a ledger.
    """
    where = Path(path)
    with _opened(where) as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise RunDirectoryError(f"{where} is not a sample ledger of this version of flodl")
        contents = LedgerContents(where, size)
        at, chain = len(MAGIC), _first_chain()
        while at < size:
            head = file.read(_HEAD.size)
            length = _HEAD.unpack(head)[1] if len(head) == _HEAD.size else 0
            end = at + _HEAD.size + length + _CHAIN_BYTES
            if end > size:
                contents.torn = size - at
                break
            content, stored = file.read(length), file.read(_CHAIN_BYTES)
            if stored != _link(chain, head, content):
                why = "does not follow from those before it: something was changed, moved, left out"
                contents.problems.append((at, f"the record at byte {at} {why} or put in"))
            contents.take_in(at, head[:1], content, stored)
            at, chain = end, stored
    if not contents.stated:
        raise RunDirectoryError(f"{where} says nothing about the data: it is damaged")
    return contents


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read the sample ledger {path}: {error.strerror or error}"
        ) from error


def _copy_start(origin: Path, target: Path, length: int) -> None:
    """Copy the first ``length`` bytes of a file."""
    with origin.open("rb") as source, target.open("wb") as copy:
        while length > 0 and (piece := source.read(min(length, 1 << 20))):
            length -= copy.write(piece)


def _write_all(file: RawIOBase, data: bytes, length: int) -> None:
    """Append to a file of this length; on a failure, cut the file back to it."""
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except OSError:
        file.truncate(length)
        raise


def _first_chain() -> bytes:
    return hashlib.blake2b(MAGIC, digest_size=_CHAIN_BYTES).digest()


def _link(chain: bytes, head: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(chain + head + content, digest_size=_CHAIN_BYTES).digest()


def _refused(path: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"cannot write the sample ledger {path}: {error.strerror or error}")
