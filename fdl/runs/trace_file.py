"""The trace of a run: what every step did, read from ``steps.trace``."""

from __future__ import annotations

import hashlib
import math
import random
import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple, final

from fdl.base.errors import FdlError
from fdl.base.step_trace import (
    TRACE,
    UNNUMBERED,
    Batches,
    Digest,
    Order,
    Record,
    other_version,
    read_records,
    unpack_batches,
    unpack_digest,
    unpack_json,
    unpack_order,
    unpack_piece,
    unpack_samples,
    unpack_values,
)

_DIGEST_BYTES = 16
_WORD = 0xFFFFFFFF
_STATE_WORDS = 624
_LARGEST = _WORD // 20
"""From this number of samples on, torch draws 64 bits for each of them."""


def permutation(samples: int, seed: int) -> array[int]:
    """Return ``torch.randperm(samples)`` of a CPU generator with this seed.

    torch draws from a Mersenne Twister, as Python does; only the seeding differs.

    Raises:
        ValueError: There are so many samples that torch draws in another way.
    """
    if samples >= _LARGEST:
        raise ValueError(f"the order of {samples} samples is not computed")
    word = seed & _WORD
    state = [word]
    for index in range(1, _STATE_WORDS):
        word = (1812433253 * (word ^ (word >> 30)) + index) & _WORD
        state.append(word)
    twister = random.Random()  # noqa: S311 - repeats torch, keeps no secret
    twister.setstate((3, (*state, _STATE_WORDS), None))
    draw, order = twister.getrandbits, array("q", range(samples))
    for index in range(samples - 1):
        other = index + draw(32) % (samples - index)
        order[index], order[other] = order[other], order[index]
    return order


def order_digest(order: array[int]) -> bytes:
    """Return the digest of an order, as the trace holds it."""
    words = array("q", order)
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.sha256(words).digest()[:_DIGEST_BYTES]


_WEIGHTS = 0
_RANDOM, _SEQUENTIAL, _LISTED = 0, 1, 2


class TraceError(FdlError):
    """The traces do not say whether two runs agree; the message says why."""


class Batch(NamedTuple):
    """One batch of a trace."""

    epoch: int
    """Counted from 0."""
    start: int
    """Place of its first sample in the order of the epoch; of unnumbered data, number of the
    batch."""
    size: int
    """Number of samples; 0 if unknown."""
    numbered: bool
    """Whether its samples have numbers."""


class Stretch(NamedTuple):
    """Equally spaced batches of a trace."""

    first: int
    """Number of its first batch in the trace."""
    batches: Batches

    def step_of(self, number: int) -> int:
        """The step that trains a batch, counted from 1."""
        known = self.batches
        return known.step + (known.place + number - self.first) // known.parts


@final
class Trace:
    """The trace of one run.

    Batches are numbered from 0 in the order of training. Without accumulation, every step has one.

    Attributes:
        folder: The run directory.
        facts: The session that wrote the latest steps: ``world_size``, ``rank``, ``accumulate``,
            ``data``, ``device``, ``engine``, ``continues`` and others.
        first: The first step, counted from 1. Above 1 if the run continues another one.
        losses: The loss of each batch, as float64, which holds a float32 exactly.
        norms: The gradient norm of each step from ``first`` on; nan if it is missing. Empty if
            gradients are not clipped.
        weights: Digest of the weights by the step after which it was taken; 0: before the first.
        contents: Digest of the first batch of a step, by step.
        sample_digests: 8 bytes for each sample of the data, from the first one on; may be shorter
            than the data, and is empty if the data was not in memory.
        names: Names of the tensors in the first digest of weights.
        state: How the last session ended; empty if the run has not ended, or was killed.
        torn: Bytes of a last record that was not written completely.
        damage: Why the rest of the file cannot be read, or empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = {}
        self.first = 1
        self.losses: array[float] = array("d")
        self.norms: array[float] = array("d")
        self.weights: dict[int, Digest] = {}
        self.contents: dict[int, Digest] = {}
        self.names: list[str] = []
        self.sample_digests = b""
        self.state = ""
        self.torn = 0
        self.damage = ""
        self.stretches: list[Stretch] = []
        self._begun = 0
        """Number of the first batch of the session."""
        self._orders: dict[int, Order] = {}
        self._pieces: dict[int, dict[int, array[int]]] = {}
        self._data: dict[int, dict[str, Any]] = {}
        self._known: dict[int, array[int] | None] = {}

    @property
    def last(self) -> int:
        """The last step of which a loss is known; ``first - 1`` without one."""
        return self.step_of(len(self.losses) - 1) if self.losses else self.first - 1

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(self.facts.get("world_size", 1))

    @property
    def continues(self) -> str:
        """Name of the run that this run continues, or empty."""
        origin = self.facts.get("continues")
        return str(origin.get("run", "")) if isinstance(origin, dict) else ""

    def step_of(self, number: int) -> int:
        """The step that trains a batch, counted from 1."""
        return self._stretch(number).step_of(number)

    def batches_of(self, step: int) -> range:
        """The numbers of the batches of a step; empty if the trace does not have the step."""
        begin, end = self._first_batch(step), self._first_batch(step + 1)
        return range(begin, end)

    def batch(self, number: int) -> Batch:
        """One batch by its number."""
        stretch = self._stretch(number)
        known = stretch.batches
        start = known.start + (number - stretch.first) * known.stride
        if known.flags & UNNUMBERED:
            return Batch(known.epoch, start, known.size, numbered=False)
        size = known.size
        if known.many == 0:
            size = _within(self._data.get(known.epoch, {}), start, size)
        return Batch(known.epoch, start, size, numbered=True)

    def number_at(self, number: int, place: int) -> int:
        """The number of the batch that has a place of the order, in the stretch of a batch."""
        stretch = self._stretch(number)
        return stretch.first + (place - stretch.batches.start) // max(1, stretch.batches.stride)

    def samples(self, number: int) -> array[int] | None:
        """The sample numbers of a batch; None if the trace cannot name them."""
        batch = self.batch(number)
        order = self.order(batch.epoch) if batch.numbered else None
        return None if order is None else order[batch.start : batch.start + batch.size]

    def order(self, epoch: int) -> array[int] | None:
        """The sample numbers of an epoch in order; None if they are not known."""
        if epoch not in self._known:
            self._known[epoch] = self._find_order(epoch)
        return self._known[epoch]

    def order_digest(self, epoch: int) -> bytes | None:
        """The digest of the order of an epoch; None if it is not known."""
        order = self._orders.get(epoch)
        return order.digest if order is not None else None

    def take(self, record: Record) -> None:
        """Add a record.

        Raises:
            ValueError: Its content is malformed.
            struct.error: Its content has another length.
        """
        content = record.content
        match record.kind:
            case "H":
                self._begin(unpack_json(content))
            case "N":
                self.names = [str(name) for name in unpack_json(content)]
            case "O":
                order = unpack_order(content)
                self._orders[order.epoch] = order
                self._data[order.epoch] = self.facts.get("data", {})
            case "I":
                piece = unpack_piece(content)
                self._pieces.setdefault(piece.epoch, {})[piece.start] = piece.numbers
            case "B":
                self._add_batches(unpack_batches(content))
            case "L":
                first, values = unpack_values(content)
                del self.losses[self._begun + first :]
                self.losses.extend(values)
            case "G":
                self._add_norms(*unpack_values(content))
            case "D":
                digest = unpack_digest(content)
                kept = self.weights if digest.what == _WEIGHTS else self.contents
                kept[digest.step] = digest
            case "S":
                first, digests = unpack_samples(content)
                self.sample_digests = self.sample_digests[: 8 * first] + digests
            case "Z":
                self.state = str(unpack_json(content).get("state", ""))

    def _begin(self, facts: dict[str, Any]) -> None:
        """Begin a session; it replaces the steps of earlier ones from its own first step on."""
        after = int(facts["after"])
        if not self.facts:
            self.first = after + 1
        self.facts, self.state = facts, ""
        if after < self.first - 1:
            self.first = after + 1
        number = self._first_batch(after + 1)
        del self.losses[number:]
        del self.norms[max(0, after + 1 - self.first) :]
        self.stretches = [one for one in self.stretches if one.first < number]
        self.weights = {step: one for step, one in self.weights.items() if step <= after}
        self.contents = {step: one for step, one in self.contents.items() if step <= after}
        self._begun = number

    def _add_batches(self, batches: Batches) -> None:
        if batches.parts < 1:
            raise ValueError("batches of a step that has none")
        self.stretches.append(Stretch(self._begun + batches.number, batches))

    def _add_norms(self, step: int, values: array[float]) -> None:
        place = step - self.first
        if place < 0:
            raise ValueError("norms of steps before the first one")
        missing = place - len(self.norms)
        self.norms.extend([math.nan] * missing)
        del self.norms[place:]
        self.norms.extend(values)

    def _first_batch(self, step: int) -> int:
        """Number of the first batch of a step; the number of all batches after the last step."""
        place = bisect_right(self.stretches, step, key=lambda one: one.batches.step) - 1
        # The batches of one step can be in several stretches: take the first of them.
        while (
            place > 0
            and self.stretches[place].batches.step == step
            and (self.stretches[place - 1].step_of(self.stretches[place].first - 1) == step)
        ):
            place -= 1
        if place < 0:
            return 0
        known = self.stretches[place]
        number = known.first + max(0, (step - known.batches.step) * known.batches.parts
                                   - known.batches.place)  # fmt: skip
        end = len(self.losses)
        if place + 1 < len(self.stretches):
            end = min(end, self.stretches[place + 1].first)
        return min(number, end)

    def _stretch(self, number: int) -> Stretch:
        place = bisect_right(self.stretches, number, key=lambda one: one.first) - 1
        if place < 0:
            raise IndexError(f"the trace has no batch {number}")
        return self.stretches[place]

    def _find_order(self, epoch: int) -> array[int] | None:
        order = self._orders.get(epoch)
        if order is None:
            return None
        data = self._data.get(epoch, {})
        samples = int(data.get("samples", 0))
        if order.form == _RANDOM:
            try:
                found = permutation(samples, int(data["seed"]) + epoch)
            except (KeyError, ValueError):
                return None
        elif order.form == _SEQUENTIAL:
            found = array("q", range(samples))
        elif order.form == _LISTED:
            found = _joined(self._pieces.get(epoch, {}))
        else:
            same = (one for one in self._orders.values() if one.digest == order.digest)
            earlier = next((one for one in same if one.form == _LISTED), None)
            if earlier is None:
                return None
            found = _joined(self._pieces.get(earlier.epoch, {}))
        return found if order_digest(found) == order.digest else None


def read_trace(folder: Path) -> Trace:
    """Read the trace of a run directory, up to its last whole record.

    Raises:
        TraceError: The trace is missing, or this version of fdl cannot read it.
    """
    file = folder / TRACE
    found = read_records(file)
    if found is None:
        version = other_version(file)
        if version:
            raise TraceError(
                f"{file} has version {version} of its format, and this fdl reads version 1",
                hint="pip install --upgrade flodl",
            )
        raise TraceError(
            f"{folder} has no {TRACE}: the run was made without one (an earlier flodl, "
            ".trace(False), or a loop of your own)",
            hint="train again with a Trainer that has a run directory",
        )
    trace = Trace(folder)
    trace.torn, trace.damage = found.torn, found.damage
    for record in found.records:
        try:
            trace.take(record)
        except (ValueError, KeyError, TypeError, AttributeError, struct.error, zlib.error):
            trace.damage = f"the record at byte {record.at} of {file} cannot be read"
            break
    if not trace.facts:
        raise TraceError(f"{file} ends before its first step", hint="train again")
    return trace


def _within(data: dict[str, Any], start: int, size: int) -> int:
    """The size of a batch that begins at this place: the last one of an epoch may differ."""
    samples = int(data.get("samples", 0))
    if not samples or data.get("drop_last"):
        return size
    if data.get("join_remainder") and samples - (start + size) == 1 and samples > size:
        return size + 1
    return min(size, samples - start)


def _joined(pieces: dict[int, array[int]]) -> array[int]:
    whole = array("q")
    for start in sorted(pieces):
        if start == len(whole):
            whole.extend(array("q", pieces[start]))
    return whole
