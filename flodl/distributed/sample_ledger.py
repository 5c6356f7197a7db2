"""Which rank trained which samples: one file of a run that only grows.

``samples.ledger`` begins with a line that names the form. Records follow: a kind (one byte), a
length (four, little-endian), the content, and 16 bytes of BLAKE2b over the 16 of the record before
and all of this one; so no record can be changed, moved, left out or put in without changing all
that follow. A record holds either the facts that decide the order of the samples, as JSON, or what
all ranks trained since the record before. Nothing is a pickle.

A checkpoint keeps :meth:`SampleLedger.mark`, the length of the file and the last 16 bytes; resuming
cuts the file back to it, so that work which is rolled back is rolled back here as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import torch

from flodl.distributed.ledger_format import (
    Stretch,
    pack_append,
    pack_segment,
    rows_hash,
    unpack_append,
)
from flodl.errors import RunDirectoryError

if TYPE_CHECKING:
    from io import RawIOBase

    from torch import Tensor

MAGIC = b"flodl samples 1\n"
_HEAD = struct.Struct("<cI")
_CHAIN_BYTES = 16
_FACTS, _TRAINED = b"F", b"T"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerFacts:
    """What decides which samples an epoch has, and in which order."""

    samples: int
    """Of the data set."""
    batch_size: int
    seed: int
    sampler: Literal["random", "sequential", "custom"]
    drop_last: bool
    epochs: int
    join_remainder: bool = False
    """Whether a last batch of one sample belongs to the batch before it."""
    since: int = 0
    """Batches of the training that one process had trained before, which keeps no record."""
    torch: str = str(torch.__version__)
    """Its version, which decides what its generators give."""

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self.samples, self.batch_size)
        if rest == 0 or self.drop_last or (self.join_remainder and rest == 1 and full > 0):
            return full
        return full + 1

    @property
    def used(self) -> int:
        """Samples that an epoch trains."""
        return self.batches * self.batch_size if self.drop_last else self.samples

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> LedgerFacts:
        """Read what was written; entries of later versions are ignored.

        Raises:
            ValueError: One is missing or has a value that cannot be.
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
    """Remembers what one rank has trained until somebody takes it.

    Args:
        rank: Of this process.
        batch_size: Samples of a full batch.
    """

    def __init__(self, rank: int, batch_size: int) -> None:
        self._rank, self._unit = rank, batch_size
        self._stretches: list[Stretch] = []

    def trained(self, epoch: int, number: int, position: int, rows: Tensor) -> None:
        """Remember a batch.

        Args:
            epoch: Its epoch.
            number: Its number in the epoch.
            position: Batches of all ranks before it.
            rows: ``[samples]`` int64 on the CPU, the sample numbers it was made of.
        """
        self.trained_samples(epoch, number * self._unit, position, rows)

    def trained_samples(self, epoch: int, start: int, position: int, rows: Tensor) -> None:
        """Remember a part of a batch, or one that was cut otherwise.

        Args:
            epoch: Its epoch.
            start: Place of its first sample in the epoch's order.
            position: Batches of all ranks before it.
            rows: As in :meth:`trained`.
        """
        size = len(rows)
        digest = rows_hash(rows.numpy().astype("<i8", copy=False).tobytes())
        if self._stretches:
            last = self._stretches[-1]
            step = start - last.last
            if (last.epoch, last.size) == (epoch, size) and (
                step == last.stride or (last.count == 1 and step > 0)
            ):
                last.stride = step
                last.hashes += digest
                return
        self._stretches.append(Stretch(epoch, start, size, position, 0, bytearray(digest)))

    def take(self) -> bytes:
        """Return what was trained since the last call, packed, and forget it; empty for nothing."""
        if not self._stretches:
            return b""
        segment = pack_segment(self._rank, self._unit, self._stretches)
        self._stretches = []
        return segment


@final
class SampleLedger:
    """The file; one process writes it.

    Args:
        path: Where; an earlier file is replaced.
        facts: About the data.

    Raises:
        RunDirectoryError: It cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], facts: LedgerFacts) -> None:
        self._path = Path(path)
        self._length, self._chain = len(MAGIC), _first_chain()
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
        """Go on where a checkpoint was written; what came later is cut off.

        Args:
            path: The file to go on with.
            mark: What the checkpoint kept of :meth:`mark`.
            facts: About the data from now on; written down where they have changed.
            source: The ledger of the run that this one continues, where that is another one; its
                beginning is copied.

        Raises:
            RunDirectoryError: The file is not the one of the checkpoint, or cannot be written.
        """
        origin = Path(source if source is not None else path)
        contents = read_ledger(origin)
        length, digest = mark["length"], mark["digest"]
        broken = contents.problems and contents.problems[0][0] < length
        if broken or contents.marks.get(length) != digest:
            raise RunDirectoryError(
                f"{origin} is not the sample ledger that the checkpoint was written with: it was "
                "cut, changed or replaced since; bring back the right one, or move this one away "
                "and resume from an earlier checkpoint"
            )
        ledger = cls.__new__(cls)
        ledger._path = Path(path)
        ledger._length, ledger._chain = length, bytes.fromhex(digest)
        try:
            if source is not None:
                ledger._path.write_bytes(origin.read_bytes()[:length])
            os.truncate(path, length)
        except OSError as error:
            raise _refused(ledger._path, error) from error
        if facts is not None and facts != contents.facts_at(length):
            ledger.state_facts(facts)
        return ledger

    def state_facts(self, facts: LedgerFacts) -> None:
        """Write down facts about the data; they hold for what follows.

        Raises:
            RunDirectoryError: The file cannot be written.
        """
        text = json.dumps(asdict(facts), separators=(",", ":"), ensure_ascii=False)
        self._add(_FACTS, text.encode())

    def append(self, position: int, segments: Sequence[bytes]) -> None:
        """Write down what all ranks have trained since the last time; nothing if that is nothing.

        Args:
            position: Batches that all ranks together have trained.
            segments: What :meth:`SampleRecorder.take` gave, of each rank.

        Raises:
            RunDirectoryError: The file cannot be written; it is as it was before.
        """
        filled = [segment for segment in segments if segment]
        if filled:
            self._add(_TRAINED, pack_append(position, filled))

    def mark(self) -> dict[str, Any]:
        """Wait until the disk has everything, and return what a checkpoint keeps: JSON values.

        Raises:
            RunDirectoryError: The disk refuses.
        """
        try:
            with self._path.open("r+b") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise _refused(self._path, error) from error
        return {"length": self._length, "digest": self._chain.hex()}

    def _add(self, kind: bytes, content: bytes) -> None:
        head = _HEAD.pack(kind, len(content))
        chain = _link(self._chain, head, content)
        record = head + content + chain
        try:
            with self._path.open("r+b", buffering=0) as file:
                file.seek(self._length)
                _write_all(file, record, self._length)
        except OSError as error:
            raise _refused(self._path, error) from error
        self._length, self._chain = self._length + len(record), chain


@final
@dataclass(frozen=True, slots=True)
class Appended:
    """One record of what was trained."""

    offset: int
    """Where it begins in the file."""
    position: int
    segments: list[tuple[int, list[Stretch]]]
    """Rank, and what it trained."""
    facts: LedgerFacts
    """Those that held."""


@final
@dataclass(slots=True)
class LedgerContents:
    """What a ledger says."""

    appends: list[Appended] = field(default_factory=list)
    stated: list[tuple[int, LedgerFacts]] = field(default_factory=list)
    """Facts, and the length of the file from which on they hold."""
    marks: dict[int, str] = field(default_factory=dict)
    """Digest by length, wherever a record ends."""
    problems: list[tuple[int, str]] = field(default_factory=list)
    """From which byte on it is not as it was written, and why."""
    torn: int = 0
    """Bytes of a last record that was not written completely."""
    size: int = 0
    """Bytes of the file."""

    @property
    def facts(self) -> LedgerFacts:
        """The facts stated last."""
        return self.stated[-1][1]

    def facts_at(self, length: int) -> LedgerFacts:
        """The facts that held when the file was so long."""
        return [facts for begin, facts in self.stated if begin <= length][-1]


def read_ledger(path: str | os.PathLike[str]) -> LedgerContents:
    """Read a ledger and check that every record follows from the one before.

    Raises:
        RunDirectoryError: The file cannot be read or is no ledger.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read the sample ledger {os.fspath(path)}: {error.strerror or error}"
        ) from error
    if not data.startswith(MAGIC):
        raise RunDirectoryError(f"{os.fspath(path)} is no sample ledger of this version of flodl")
    contents = LedgerContents(size=len(data))
    at, chain = len(MAGIC), _first_chain()
    while at < len(data):
        head = data[at : at + _HEAD.size]
        size = _HEAD.unpack(head)[1] if len(head) == _HEAD.size else 0
        end = at + _HEAD.size + size + _CHAIN_BYTES
        if end > len(data):
            contents.torn = len(data) - at
            break
        content, stored = data[at + _HEAD.size : end - _CHAIN_BYTES], data[end - _CHAIN_BYTES : end]
        if stored != _link(chain, head, content):
            why = "does not follow from those before it: something was changed, moved, left out"
            contents.problems.append((at, f"the record at byte {at} {why} or put in"))
        _take_in(contents, at, end, head[:1], content)
        contents.marks[end] = stored.hex()
        at, chain = end, stored
    if not contents.stated:
        raise RunDirectoryError(f"{os.fspath(path)} says nothing about the data: it is damaged")
    return contents


def _take_in(contents: LedgerContents, at: int, end: int, kind: bytes, content: bytes) -> None:
    try:
        if kind == _FACTS:
            contents.stated.append((end, LedgerFacts.from_json(json.loads(content))))
        elif kind == _TRAINED and contents.stated:
            position, segments = unpack_append(content)
            contents.appends.append(Appended(at, position, segments, contents.facts))
        else:
            raise ValueError("it is of no known kind")
    except (ValueError, TypeError, AttributeError) as problem:
        contents.problems.append((at, f"the record at byte {at} cannot be read: {problem}"))


def _write_all(file: RawIOBase, data: bytes, length: int) -> None:
    """Write at the end of a file that is so long; a failure takes back what was written."""
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
