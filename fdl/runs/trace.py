"""Where two runs part: what their traces have in common, and the first step that differs."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias, final, get_args

from fdl.base.step_trace import Digest
from fdl.base.units import counted
from fdl.runs.trace_file import Trace, TraceError

What: TypeAlias = Literal[
    "initial weights", "data order", "data content", "loss", "gradients", "weights"
]
"""What differs. Within one step, the earlier entry comes first."""

_ORDER: tuple[What, ...] = get_args(What)
_BYTES = 8
_CHUNK = 4096 * _BYTES
_MOST_NAMED = 3


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first step at which two runs differ.

    Attributes:
        step: Counted from 1; 0 means before step 1. The first step whose record differs.
        what: What differs.
        detail: A plain sentence with the values of both runs, first run first.
        certain_from: The runs part in this step or later; 0: they may differ before step 1.
        certain_to: The runs part in this step or earlier.
        left: The value of the first run: sample numbers, a loss, a norm, or a digest.
        right: That of the second run.
        agreed_steps: Number of steps that both have and in which everything agrees.
        epoch: Epoch of the step, counted from 0; None before step 1.
        place: Place in the batch of the first sample that differs, counted from 0.
        tensors: Names of the tensors that differ, if the digests name them.
    """

    step: int
    what: What
    detail: str
    certain_from: int
    certain_to: int
    left: object
    right: object
    agreed_steps: int
    epoch: int | None = None
    place: int | None = None
    tensors: tuple[str, ...] = ()


@final
class Coverage:
    """What two traces have in common, so what an agreement proves.

    Attributes:
        a: The first trace.
        b: The second trace.
        first: The first step that both have.
        last: The last step that both have; below ``first`` if there is none.
        weights: The steps after which both have a digest of the weights.
        contents: The steps for whose first batch both have a digest.
        numbered: Whether the samples of all steps have numbers.
        norms: Whether both have gradient norms.
        ranks: Number of ranks; above 1, the traces are those of rank 0.
    """

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a, self.b = a, b
        self.first, self.last = max(a.first, b.first), min(a.last, b.last)
        self.weights = self._steps(a.weights, b.weights, self.first - 1)
        self.contents = self._steps(a.contents, b.contents, self.first)
        one, other = a.batches_of(self.first), b.batches_of(self.first)
        have_numbers = not (one and other) or (
            a.batch(one.start).numbered and b.batch(other.start).numbered
        )
        self.numbered = have_numbers and self.first <= self.last
        self.norms = bool(a.norms and b.norms)
        self.ranks = max(a.world_size, b.world_size)

    def sentence(self) -> str:
        """Say what the proof covers."""
        names = "the same samples in the same order, and " if self.numbered else ""
        steps = "step" if self.first == self.last else "steps"
        reach = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        last = f", the last one after step {self.weights[-1]}" if self.weights else ""
        weights, contents = (counted(len(one), "step") for one in (self.weights, self.contents))
        ranks = f" This is the view of rank 0 of {self.ranks}." if self.ranks > 1 else ""
        return (
            f"In {steps} {reach} both have {names}the same loss to the bit. Their weights have "
            f"equal digests at {weights}{last}, and their batches at {contents}.{ranks}"
        )

    def at(
        self, step: int, what: What, detail: str, left: object, right: object, **more: Any
    ) -> Difference:
        """A difference that the records of a step show.

        Unless ``more`` says so, the runs part in this step, and all steps before it agree.
        """
        numbers = self.a.batches_of(step)
        facts: dict[str, Any] = {
            "certain_from": step,
            "certain_to": step,
            "agreed_steps": step - self.first,
            "epoch": self.a.batch(numbers[0]).epoch if numbers else None,
            **more,
        }
        return Difference(step=step, what=what, detail=detail, left=left, right=right, **facts)

    def _steps(self, one: Mapping[int, Digest], other: Mapping[int, Digest], low: int) -> list[int]:
        """The steps from ``low`` on for which both have something."""
        return sorted(step for step in one.keys() & other.keys() if low <= step <= self.last)


def first_difference(a: Trace, b: Trace) -> Difference | None:
    """Return where two runs part; None if everything that both recorded agrees.

    Runs of different length are compared as far as both reach. :class:`Coverage` says what an
    agreement proves.

    Raises:
        TraceError: The traces have no step in common. Or they agree, but one of them is damaged, or
            no digest of the weights is in both.
    """
    common = Coverage(a, b)
    if common.last < common.first and not common.weights:
        raise TraceError(
            f"{a.folder.name} has {_reach(a)} and {b.folder.name} has {_reach(b)}: no step is in "
            "both",
            hint="compare runs that begin at the same step",
        )
    looks = (_weights, _ranks, _order, _batches, _samples, _losses, _norms)
    found = [one for look in looks if (one := look(common)) is not None]
    if found:
        return min(found, key=lambda one: (one.step, _ORDER.index(one.what)))
    for trace in (a, b):
        if trace.damage:
            raise TraceError(
                f"{trace.damage}; up to there, the runs agree for {_count(common)}",
                hint="train that run again",
            )
    if not common.weights:
        raise TraceError(
            f"the losses of {_count(common)} agree, but no step has a digest of the weights in "
            "both runs",
            hint="compare longer parts of the runs",
        )
    return None


# --- What may differ ---------------------------------------------------------------------------


def _weights(common: Coverage) -> Difference | None:
    found = _other_digest(common.weights, common.a.weights, common.b.weights)
    if found is None:
        return None
    step, begin = found
    left, right = common.a.weights[step], common.b.weights[step]
    names = _tensors(common, step)
    named = f": {_listed(names)}" if names else ""
    after = f" after step {step}" if step else ""
    return common.at(
        step, "weights" if step else "initial weights",
        f"the weights differ{after}{named}", left.digest.hex(), right.digest.hex(),
        certain_from=begin, agreed_steps=max(0, begin - common.first), tensors=names,
    )  # fmt: skip


def _ranks(common: Coverage) -> Difference | None:
    left, right = common.a.world_size, common.b.world_size
    if left == right or common.last < common.first:
        return None
    detail = f"a step trains the batches of {counted(left, 'rank')} instead of "
    detail += counted(right, "rank")
    return common.at(common.first, "data order", detail, left, right)


def _order(common: Coverage) -> Difference | None:
    """Compare which samples every step trains."""
    for step, last in _runs(common):
        ones, others = common.a.batches_of(step), common.b.batches_of(step)
        found = _count_differs(common, step)
        if found is None:
            if not ones or not others or _same_order(common, ones[0], others[0], step, last):
                continue
            found = _where(common, step, last)
        if found is not None:
            return found
    return None


def _losses(common: Coverage) -> Difference | None:
    if common.last < common.first:
        return None
    a, b = common.a, common.b
    begin_a, begin_b = (trace.batches_of(common.first).start for trace in (a, b))
    place = _first_other(a.losses[begin_a:], b.losses[begin_b:])
    if place is None:
        return None
    step = a.step_of(begin_a + place)
    if step > common.last:
        return None
    left, right = a.losses[begin_a + place], b.losses[begin_b + place]
    detail = f"the loss is {_value(left)} instead of {_value(right)}"
    known = [at for at in common.weights if at < step]
    equal = (at for at in known if a.weights[at].digest == b.weights[at].digest)
    begin = max((at + 1 for at in equal), default=common.first)
    return common.at(step, "loss", detail, left, right, certain_from=begin)


def _norms(common: Coverage) -> Difference | None:
    if not common.norms:
        return None
    left, right = (
        trace.norms[common.first - trace.first : common.last - trace.first + 1]
        for trace in (common.a, common.b)
    )
    for place in _changed(left.tobytes(), right.tobytes()):
        one, other = left[place], right[place]
        if one == one and other == other:  # nan: it was not recorded
            break
    else:
        return None
    detail = f"the gradient norm is {_value(one)} instead of {_value(other)}"
    return common.at(common.first + place, "gradients", detail, one, other)


def _samples(common: Coverage) -> Difference | None:
    """Compare the digests of all samples, which are there of data that is in memory.

    They say at which step the first changed sample is trained.
    """
    a, b = common.a, common.b
    changed = frozenset(changed_samples(a, b))
    if not changed:
        return None
    for step in range(common.first, common.last + 1):
        for number in a.batches_of(step):
            names = a.samples(number)
            if names is None:
                break
            places = [at for at, name in enumerate(names) if name in changed]
            if places:
                left, right = (
                    one.sample_digests[_BYTES * names[places[0]] :][:_BYTES].hex() for one in (a, b)
                )
                detail = _told([names[at] for at in places], places)
                return common.at(step, "data content", detail, left, right, place=places[0])
    return None


def _batches(common: Coverage) -> Difference | None:
    """Compare the digests of batches, which are taken at some steps only."""
    found = _other_digest(common.contents, common.a.contents, common.b.contents)
    if found is None:
        return None
    step, begin = found
    left, right = common.a.contents[step], common.b.contents[step]
    places = list(_changed(b"".join(left.single), b"".join(right.single)))
    numbers = common.a.batches_of(step)
    names = common.a.samples(numbers[0]) if numbers else None
    detail = f"the batch of step {step} has other content"
    if places and names is not None and places[-1] < len(names):
        detail = _told([names[at] for at in places], places)
    return common.at(
        step, "data content", detail, left.digest.hex(), right.digest.hex(),
        certain_from=max(begin, common.first), place=places[0] if places else None,
    )  # fmt: skip


# --- Order of the samples ----------------------------------------------------------------------


def _runs(common: Coverage) -> Iterator[tuple[int, int]]:
    """Cut the common steps where a stretch begins in one of the traces: first and last step."""
    starts = {common.first}
    for trace in (common.a, common.b):
        starts |= {
            one.batches.step
            for one in trace.stretches
            if common.first < one.batches.step <= common.last
        }
    cuts = [*sorted(starts), common.last + 1]
    for begin, end in pairwise(cuts):
        if begin < end:
            yield begin, end - 1


def _same_order(common: Coverage, one: int, other: int, step: int, last: int) -> bool:
    """Whether equal rules give the same samples to the steps of both runs."""
    a, b = common.a, common.b
    left, right = a.batch(one), b.batch(other)
    if left != right or a.order_digest(left.epoch) != b.order_digest(right.epoch):
        return False
    ends = a.batches_of(last), b.batches_of(last)
    if not all(ends) or len(a.batches_of(step)) != len(b.batches_of(step)):
        return False
    return ends[0][-1] - one == ends[1][-1] - other and a.batch(ends[0][-1]) == b.batch(ends[1][-1])


def _where(common: Coverage, first: int, last: int) -> Difference | None:
    """Return the first of some steps whose batches have other samples; None if there is none."""
    a, b = common.a, common.b
    one, other = a.batches_of(first)[0], b.batches_of(first)[0]
    step = first
    if a.batch(one) == b.batch(other) and a.batch(one).numbered:
        # The batches are cut alike, so the place in the orders gives the step at once.
        left, right = a.order(a.batch(one).epoch), b.order(b.batch(other).epoch)
        if left is not None and right is not None:
            start = a.batch(one).start
            place = _first_other(left[start:], right[start:])
            number = one if place is None else a.number_at(one, start + place)
            step = a.step_of(number)
    for at in range(step, last + 1):
        found = _count_differs(common, at)
        for one, other in zip(a.batches_of(at), b.batches_of(at), strict=False):
            found = found or _other_samples(common, at, one, other)
        if found is not None:
            return found
    return None


def _count_differs(common: Coverage, step: int) -> Difference | None:
    """Compare the numbers of batches of a step; the last common one may be incomplete."""
    one, other = len(common.a.batches_of(step)), len(common.b.batches_of(step))
    if one == other or step >= common.last:
        return None
    detail = f"step {step} trains {counted(one, 'batch')} instead of {other}"
    return common.at(step, "data order", detail, one, other)


def _other_samples(common: Coverage, step: int, one: int, other: int) -> Difference | None:
    """Compare two batches of the same step."""
    left, right = common.a.batch(one), common.b.batch(other)
    if not (left.numbered and right.numbered):
        if left.numbered == right.numbered:
            return None
        detail = "the samples of only one of the runs have numbers"
        return common.at(step, "data order", detail, left.numbered, right.numbered)
    mine, yours = common.a.samples(one), common.b.samples(other)
    if mine is None or yours is None:
        return _unnamed(common, step, left.epoch, right.epoch)
    place = next((i for i, (x, y) in enumerate(zip(mine, yours, strict=False)) if x != y), None)
    if place is not None:
        detail = f"sample {mine[place]} instead of {yours[place]} at position {place} of the batch"
    elif len(mine) != len(yours):
        detail = f"the batch has {len(mine)} samples instead of {len(yours)}"
    else:
        return None
    return common.at(step, "data order", detail, mine.tolist(), yours.tolist(), place=place)


def _unnamed(common: Coverage, step: int, epoch: int, other: int) -> Difference | None:
    """The difference of two orders whose samples cannot be named; None if they are equal."""
    a, b = common.a, common.b
    left, right = a.order_digest(epoch), b.order_digest(other)
    if left == right and a.batch(a.batches_of(step)[0]) == b.batch(b.batches_of(step)[0]):
        return None
    return common.at(
        step, "data order",
        f"the order of the samples differs in epoch {epoch + 1}; the traces cannot name "
        "the samples",
        left.hex() if left else None, right.hex() if right else None, certain_to=common.last,
    )  # fmt: skip


# --- Values ------------------------------------------------------------------------------------


def _other_digest(
    steps: Sequence[int], one: Mapping[int, Digest], other: Mapping[int, Digest]
) -> tuple[int, int] | None:
    """The first step whose digests differ, and the first one in which the runs may have parted."""
    begin = None
    for step in steps:
        if one[step].digest != other[step].digest:
            return step, step if begin is None else begin
        begin = step + 1
    return None


def _first_other(one: array[Any], other: array[Any]) -> int | None:
    """Place of the first value that differs in its bits; None if there is none."""
    return next(_changed(one.tobytes(), other.tobytes()), None)


def _changed(left: bytes, right: bytes) -> Iterator[int]:
    """The numbers of the groups of eight bytes that differ, as far as both reach."""
    end = min(len(left), len(right))
    for begin in range(0, end, _CHUNK):
        part = slice(begin, min(begin + _CHUNK, end))
        if left[part] == right[part]:
            continue
        for at in range(part.start, part.stop, _BYTES):
            if left[at : at + _BYTES] != right[at : at + _BYTES]:
                yield at // _BYTES


def changed_samples(a: Trace, b: Trace) -> list[int]:
    """Return the numbers of the samples with other content, as far as both know their digests."""
    return list(_changed(a.sample_digests, b.sample_digests))


def _tensors(common: Coverage, step: int) -> tuple[str, ...]:
    a, b = common.a, common.b
    left, right = a.weights[step].single, b.weights[step].single
    if a.names != b.names or not len(left) == len(right) == len(a.names):
        return ()
    pairs = zip(a.names, left, right, strict=True)
    return tuple(name for name, one, other in pairs if one != other)


def named(samples: list[int]) -> str:
    """Return a text that names samples, the first ones of many."""
    return f"{'sample' if len(samples) == 1 else 'the samples'} {_listed(list(map(str, samples)))}"


def _told(names: list[int], places: list[int]) -> str:
    if len(names) == 1:
        return f"{named(names)} has other content, at position {places[0]} of the batch"
    return f"{named(names)} have other content"


def _listed(names: Sequence[str]) -> str:
    """The names, the first ones of many."""
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _value(value: float) -> str:
    """A value with its bits: as float32 if that holds it exactly."""
    try:
        packed = struct.pack(">f", value)
        exact = struct.unpack(">f", packed)[0] == value
    except OverflowError:
        exact = False
    return f"{value!r} (0x{(packed if exact else struct.pack('>d', value)).hex()})"


def _reach(trace: Trace) -> str:
    if trace.last < trace.first:
        return "no step"
    return f"steps {trace.first} to {trace.last}"


def _count(common: Coverage) -> str:
    count = max(0, common.last - common.first + 1)
    return f"{count:,} {'step' if count == 1 else 'steps'}"
