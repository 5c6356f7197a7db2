"""Check one epoch of a ledger: each sample trained once, each batch made of the right samples.

The epoch is checked in pieces of a million samples. A piece needs the order of its samples,
which is drawn again, one counter per sample, and the batches that begin in it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from flodl.errors import RunDirectoryError
from flodl.ranks.ledger_format import HASH_BYTES, rows_hash

if TYPE_CHECKING:
    from flodl.ranks.sample_ledger import LedgerContents, LedgerFacts


PIECE = 1 << 20
"""Samples per piece, rounded down to whole batches; at least one batch."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """A batch that was not trained exactly once, or not with the right samples."""

    epoch: int
    batch: int
    ranks: tuple[int, ...]
    what: str


@final
@dataclass(frozen=True, slots=True)
class EpochShare:
    """How much of one epoch was trained."""

    epoch: int
    samples: int
    """Number of samples of the epoch."""
    trained: int
    """Samples trained exactly once."""
    doubled: int
    missing: int
    batches: int
    """Number of batches of the epoch."""
    batches_once: int
    left_out: int = 0
    """Samples that a guard left out, as the ledger says, and that no rank trained."""

    @property
    def complete(self) -> bool:
        """Whether every sample was trained exactly once, or left out by a guard."""
        return self.trained + self.left_out == self.samples


class _Piece(NamedTuple):
    """A part of an epoch."""

    batch: int
    """Number of its first batch."""
    start: int
    stop: int
    last: bool


@final
@dataclass(slots=True)
class _Spans:
    """Trained batches, as columns."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ranks: NDArray[np.int64]
    digests: NDArray[np.uint8]
    """``[batches, 8]``."""

    @property
    def stops(self) -> NDArray[np.int64]:
        """End of each batch."""
        return self.starts + self.sizes


@final
@dataclass(slots=True)
class EpochCheck:
    """Checks one epoch."""

    contents: LedgerContents
    epoch: int
    facts: LedgerFacts
    before: int = field(kw_only=True)
    """First samples of the epoch, which one process trained before the ledger began."""
    required: bool = field(kw_only=True)
    """Whether the epoch must be complete."""
    rank_samples: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Samples that each rank trained."""
    strange: bool = False
    """Whether a batch was outside the training or was made of other samples."""
    _note: Callable[[Finding], None] = field(init=False)
    _reach: list[tuple[int, int, int]] = field(default_factory=list)
    """Start, end and rank of the batches that begin in earlier pieces and end after them."""

    def go_through(self, note: Callable[[Finding], None]) -> EpochShare:
        """Check the epoch and return how much of it was trained.

        Args:
            note: Receives every finding.

        Raises:
            RunDirectoryError: The ledger has changed since it was read.
        """
        self._note = note
        facts, sums = self.facts, [0, 0, 0, 0, 0]
        planned = self.epoch < self.contents.facts.epochs
        begun = self.epoch in self.contents.epoch_facts
        order = drawn_order(facts, self.epoch) if planned and begun else None
        for piece in _pieces(facts):
            part = self._check_piece(piece, order, planned)
            sums = [total + one for total, one in zip(sums, part, strict=True)]
        trained, doubled, missing, once, left_out = sums
        return EpochShare(
            self.epoch,
            samples=facts.used,
            trained=trained,
            doubled=doubled,
            missing=missing,
            batches=facts.batches,
            batches_once=once,
            left_out=left_out,
        )

    def _check_piece(
        self, piece: _Piece, order: DrawnOrder | None, planned: bool
    ) -> tuple[int, int, int, int, int]:
        """Check a piece.

        Returns:
            Samples trained once, more often, never, batches trained once, and samples left out.
        """
        spans = self._spans(piece)
        for rank, size in zip(spans.ranks.tolist(), spans.sizes.tolist(), strict=True):
            self.rank_samples[rank] += size
        inside = (spans.stops <= self.facts.used) & planned
        known = self._inside(spans, inside, "lies outside of the training")
        over = [stop for _, stop, _ in self._reach if planned and stop <= self.facts.used]
        cover = _cover(piece, known, over, self.before)
        without = self._left_out(piece, order)
        sums = self._judge(piece, cover, without, spans)
        if order is not None and piece.stop > piece.start:
            self._compare(piece, known, order)
        self._reach = [one for one in self._reach if one[1] > piece.stop] + [
            (int(spans.starts[place]), int(spans.stops[place]), int(spans.ranks[place]))
            for place in np.flatnonzero(spans.stops > piece.stop).tolist()
        ]
        return sums

    def _left_out(self, piece: _Piece, order: DrawnOrder | None) -> NDArray[np.int64]:
        """Count how often a guard left every sample of a piece out."""
        spans = self._spans(piece, left_out=True)
        inside = spans.stops <= piece.stop
        known = self._inside(spans, inside, "was left out and lies outside of the training")
        if order is not None and piece.stop > piece.start:
            self._compare(piece, known, order)
        return _cover(piece, known, [], 0)

    def _inside(self, spans: _Spans, inside: NDArray[np.bool_], what: str) -> _Spans:
        """Return the batches that lie inside the training; say what the others are."""
        for place in np.flatnonzero(~inside).tolist():
            self._say(int(spans.starts[place]), int(spans.ranks[place]), what)
        return _Spans(
            spans.starts[inside], spans.sizes[inside], spans.ranks[inside], spans.digests[inside]
        )

    def _spans(self, piece: _Piece, *, left_out: bool = False) -> _Spans:
        """Read the batches that begin in a piece; the last piece includes those after the end."""
        starts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        columns: list[tuple[int, int]] = []
        digests: list[NDArray[np.uint8]] = [np.empty((0, HASH_BYTES), np.uint8)]
        stop = None if piece.last else piece.stop
        for rank, one in self.contents.stretches(self.epoch, piece.start, stop, left_out=left_out):
            at = one.first + one.stride * np.arange(one.count, dtype=np.int64)
            mine = at >= piece.start
            if stop is not None:
                mine &= at < stop
            starts.append(at[mine])
            hashes = np.frombuffer(one.hashes, np.uint8).reshape(-1, HASH_BYTES)
            digests.append(hashes[mine])
            columns.append((one.size, rank))
        counts = [len(one) for one in starts[1:]]
        sizes, ranks = np.array(columns, dtype=np.int64).reshape(-1, 2).T
        return _Spans(
            np.concatenate(starts),
            np.repeat(sizes, counts),
            np.repeat(ranks, counts),
            np.concatenate(digests),
        )

    def _compare(self, piece: _Piece, spans: _Spans, order: DrawnOrder) -> None:
        """Compare each batch that begins in a piece with the hash of the right samples."""
        rows = _row_bytes(order(piece.start, piece.stop))
        wanted = spans.digests.tobytes()
        columns = zip(
            spans.starts.tolist(), spans.stops.tolist(), spans.ranks.tolist(), strict=True
        )
        for place, (start, stop, rank) in enumerate(columns):
            if stop <= piece.stop:
                own = rows[(start - piece.start) * 8 : (stop - piece.start) * 8]
            else:
                own = _row_bytes(order(start, stop))
            if rows_hash(own) != wanted[place * HASH_BYTES : (place + 1) * HASH_BYTES]:
                self._say(start, rank, "was made of other samples than belong there")

    def _judge(
        self, piece: _Piece, cover: NDArray[np.int64], without: NDArray[np.int64], spans: _Spans
    ) -> tuple[int, int, int, int, int]:
        """Count samples and batches; report every batch that was not trained exactly once.

        A batch that a guard left out must not be trained.
        """
        size = self.facts.batch_size
        batches = (self.facts.batches if piece.last else piece.stop // size) - piece.batch
        edges = np.arange(batches) * size
        least, most = _edges(cover, edges)
        accounted, all_most = _edges(cover + without, edges)
        wrong = np.flatnonzero((all_most > 1) | (self.required & (accounted == 0)))
        if len(wrong):
            who = _Ranks(spans, self._reach)
            for batch in wrong.tolist():
                start = piece.start + batch * size
                stop = start + size if batch + 1 < batches else piece.stop
                if most[batch] > 1:
                    what = "was trained more than once"
                elif all_most[batch] > 1:
                    what = "was left out by a guard, and trained or left out again"
                else:
                    what = "was not trained"
                self._note(Finding(self.epoch, piece.batch + batch, who.between(start, stop), what))
        return (
            int((cover == 1).sum()),
            int((cover > 1).sum()),
            int((cover + without == 0).sum()),
            int(((least == 1) & (most == 1)).sum()),
            int(((cover == 0) & (without > 0)).sum()),
        )

    def _say(self, start: int, rank: int, what: str) -> None:
        self.strange = True
        batch = min(start // self.facts.batch_size, max(self.facts.batches - 1, 0))
        self._note(Finding(self.epoch, batch, (rank,), what))


@final
class _Ranks:
    """Finds the ranks that trained given samples of a piece."""

    def __init__(self, spans: _Spans, reached: list[tuple[int, int, int]]) -> None:
        by_start = np.argsort(spans.starts, kind="stable")
        self._starts, self._stops = spans.starts[by_start], spans.stops[by_start]
        self._ranks = spans.ranks[by_start]
        self._longest = int(spans.sizes.max(initial=0))
        self._reached = reached

    def between(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the ranks that trained a sample from ``start`` to ``stop - 1``."""
        low, high = np.searchsorted(self._starts, [start - self._longest, stop]).tolist()
        near = self._ranks[low:high][self._stops[low:high] > start]
        over = [rank for begin, end, rank in self._reached if begin < stop and end > start]
        return tuple(sorted({*near.tolist(), *over}))


def _pieces(facts: LedgerFacts) -> Iterator[_Piece]:
    """Split an epoch between batches; an epoch without samples is one piece."""
    step = max(1, PIECE // facts.batch_size)
    for batch in range(0, max(facts.batches, 1), step):
        last = batch + step >= facts.batches
        stop = facts.used if last else (batch + step) * facts.batch_size
        yield _Piece(batch, batch * facts.batch_size, stop, last)


def _cover(piece: _Piece, spans: _Spans, over: list[int], before: int) -> NDArray[np.int64]:
    """Count how often every sample of a piece was trained.

    Args:
        piece: The part of the epoch.
        spans: The batches that begin in it.
        over: Ends of the batches that began in earlier pieces.
        before: First samples of the epoch, which one process trained before the ledger began.
    """
    length = piece.stop - piece.start
    begins = spans.starts - piece.start
    ends = np.minimum(spans.stops - piece.start, length)
    change = np.bincount(begins, minlength=length + 1) - np.bincount(ends, minlength=length + 1)
    for stop in over:
        change[0] += 1
        change[min(stop - piece.start, length)] -= 1
    cover: NDArray[np.int64] = np.cumsum(change[:length])
    cover[: max(0, before - piece.start)] += 1
    return cover


def _edges(
    counts: NDArray[np.int64], edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the least and the largest count of each batch."""
    if not len(edges):
        return edges, edges
    return np.minimum.reduceat(counts, edges), np.maximum.reduceat(counts, edges)


def _row_bytes(rows: NDArray[np.int64]) -> memoryview:
    return np.ascontiguousarray(rows, dtype="<i8").data.cast("B")


IN_MEMORY = 1 << 27
"""Above this number of samples, a permutation is drawn into a memory-mapped file, with four bytes
per sample, so that the system can free the memory."""

DrawnOrder: TypeAlias = Callable[[int, int], NDArray[np.int64]]
"""Returns the sample numbers at the positions ``start … stop-1`` of one epoch."""


def drawn_order(facts: LedgerFacts, epoch: int) -> DrawnOrder | None:
    """Draw the order of an epoch as flodl's samplers do; None if only the program can do it."""
    if facts.sampler == "sequential":
        return lambda start, stop: np.arange(start, stop, dtype=np.int64)
    if facts.sampler == "custom":
        return None
    drawn = permutation(facts.samples, facts.seed + epoch)
    return lambda start, stop: drawn[start:stop].astype(np.int64)


def permutation(samples: int, seed: int) -> NDArray[np.signedinteger]:
    """Return ``torch.randperm(samples)``; 32-bit numbers have the same order as 64-bit ones.

    Args:
        samples: Number of samples.
        seed: Seed of torch's generator.

    Raises:
        RunDirectoryError: The disk has no space for an order that is too large for the memory.
    """
    kind = torch.int32 if samples < 1 << 31 else torch.int64
    mapped = samples > IN_MEMORY
    drawn = _mapped(samples, kind) if mapped else torch.empty(samples, dtype=kind, device="cpu")
    torch.randperm(samples, generator=torch.Generator().manual_seed(seed), out=drawn)
    return drawn.numpy()


def _mapped(count: int, kind: torch.dtype) -> torch.Tensor:
    """Return a tensor in a file without a name; the file is deleted with the tensor.

    Raises:
        RunDirectoryError: The disk has no space for it.
    """
    size = count * kind.itemsize
    with tempfile.TemporaryFile() as file:
        try:
            reserve = getattr(os, "posix_fallocate", None)
            if reserve is not None:  # if the disk fills up later, the process would be killed
                reserve(file.fileno(), 0, size)
            file.truncate(size)
        except OSError as error:
            raise RunDirectoryError(
                f"the order of {count:,} samples needs {size:,} bytes of temporary space in "
                f"{tempfile.gettempdir()}: {error.strerror or error}; set TMPDIR to a folder with "
                "enough space"
            ) from error
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=kind)
