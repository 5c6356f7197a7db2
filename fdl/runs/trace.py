"""Where two runs part: the first step at which their traces differ."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from fdl.runs.difference import Coverage, Difference, What, at_step, contents
from fdl.runs.trace_file import Trace, TraceError

_ORDER: tuple[What, ...] = (
    "initial weights", "data order", "data content", "loss", "gradients", "weights",
)  # fmt: skip
_CHUNK = 4096


def coverage(a: Trace, b: Trace) -> Coverage:
    """Return what two traces have in common."""
    first, last = max(a.first, b.first), min(a.last, b.last)
    numbered = all(
        a.batch(one.start).numbered and b.batch(other.start).numbered
        for one, other in [(a.batches_of(first), b.batches_of(first))]
        if one and other
    )
    return Coverage(
        first=first,
        last=last,
        weights=tuple(_common(a.weights, b.weights, first - 1, last)),
        contents=tuple(_common(a.contents, b.contents, first, last)),
        numbered=numbered and first <= last,
        norms=bool(a.norms and b.norms),
        ranks=max(a.world_size, b.world_size),
    )


def first_difference(a: Trace, b: Trace) -> Difference | None:
    """Return where two runs part; None if everything that both recorded agrees.

    Runs of different length are compared as far as both reach. :func:`coverage` says what an
    agreement proves.

    Raises:
        TraceError: The traces have no step in common. Or they agree, but one of them is damaged, or
            no digest of the weights is in both.
    """
    common = coverage(a, b)
    if common.last < common.first and not common.weights:
        raise TraceError(
            f"{a.folder.name} has {_reach(a)} and {b.folder.name} has {_reach(b)}: no step is in "
            "both",
            hint="compare runs that begin at the same step",
        )
    found = [
        one
        for one in (
            _weights(a, b, common),
            _ranks(a, b, common),
            _order(a, b, common),
            contents(a, b, common),
            _losses(a, b, common),
            _norms(a, b, common),
        )
        if one is not None
    ]
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


def _weights(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    agreed = None
    for step in common.weights:
        left, right = a.weights[step], b.weights[step]
        if left.digest == right.digest:
            agreed = step
            continue
        names = _tensors(a, b, step)
        named = f": {_listed(names)}" if names else ""
        after = f" after step {step}" if step else ""
        begin = step if agreed is None else agreed + 1
        return at_step(
            a, common, step, "weights" if step else "initial weights",
            f"the weights differ{after}{named}", left.digest.hex(), right.digest.hex(),
            certain_from=begin, agreed=max(0, begin - common.first), tensors=names,
        )  # fmt: skip
    return None


def _ranks(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    if a.world_size == b.world_size or common.last < common.first:
        return None
    left, right = a.world_size, b.world_size
    detail = f"a step trains the batches of {_plural(left, 'rank', 'ranks')} instead of "
    detail += _plural(right, "rank", "ranks")
    return at_step(a, common, common.first, "data order", detail, left, right)


def _order(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    """Compare which samples every step trains."""
    for step, last in _runs(a, b, common):
        ones, others = a.batches_of(step), b.batches_of(step)
        found = _count_differs(a, b, common, step)
        if found is None:
            if not ones or not others or _same_order(a, b, ones[0], others[0], step, last):
                continue
            found = _where(a, b, common, step, last)
        if found is not None:
            return found
    return None


def _losses(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    if common.last < common.first:
        return None
    place = _first_other(_from(a, common.first), _from(b, common.first))
    if place is None:
        return None
    begin_a, begin_b = (trace.batches_of(common.first).start for trace in (a, b))
    number = begin_a + place
    step = a.step_of(number)
    if step > common.last:
        return None
    left, right = a.losses[number], b.losses[begin_b + place]
    detail = f"the loss is {_value(left)} instead of {_value(right)}"
    begin = max((at + 1 for at in common.weights if at < step and _equal(a, b, at)),
                default=common.first)  # fmt: skip
    return at_step(a, common, step, "loss", detail, left, right, certain_from=begin)


def _norms(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    if not common.norms:
        return None
    left = a.norms[common.first - a.first : common.last - a.first + 1]
    right = b.norms[common.first - b.first : common.last - b.first + 1]
    place = _first_other(left, right)
    if place is None:
        return None
    step = common.first + place
    one, other = left[place], right[place]
    if one != one or other != other:  # nan: it was not recorded
        return None
    detail = f"the gradient norm is {_value(one)} instead of {_value(other)}"
    return at_step(a, common, step, "gradients", detail, one, other)


# --- Samples -----------------------------------------------------------------------------------


def _runs(a: Trace, b: Trace, common: Coverage) -> Iterator[tuple[int, int]]:
    """Cut the common steps where a stretch begins in one of the traces: first and last step."""
    starts = {common.first}
    for trace in (a, b):
        starts |= {
            one.batches.step
            for one in trace.stretches
            if common.first < one.batches.step <= common.last
        }
    cuts = [*sorted(starts), common.last + 1]
    for begin, end in pairwise(cuts):
        if begin < end:
            yield begin, end - 1


def _same_order(a: Trace, b: Trace, one: int, other: int, step: int, last: int) -> bool:
    """Whether equal rules give the same samples to the steps of both runs."""
    left, right = a.batch(one), b.batch(other)
    if left != right or a.order_digest(left.epoch) != b.order_digest(right.epoch):
        return False
    ends = a.batches_of(last), b.batches_of(last)
    if not all(ends) or len(a.batches_of(step)) != len(b.batches_of(step)):
        return False
    return ends[0][-1] - one == ends[1][-1] - other and a.batch(ends[0][-1]) == b.batch(ends[1][-1])


def _where(a: Trace, b: Trace, common: Coverage, first: int, last: int) -> Difference | None:
    """Return the first of some steps whose batches have other samples; None if there is none."""
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
        found = _count_differs(a, b, common, at)
        for one, other in zip(a.batches_of(at), b.batches_of(at), strict=False):
            found = found or _other_samples(a, b, common, at, one, other)
        if found is not None:
            return found
    return None


def _count_differs(a: Trace, b: Trace, common: Coverage, step: int) -> Difference | None:
    """Compare the numbers of batches of a step; the last common one may be incomplete."""
    one, other = len(a.batches_of(step)), len(b.batches_of(step))
    if one == other or step >= common.last:
        return None
    detail = f"step {step} trains {_plural(one, 'batch', 'batches')} instead of {other}"
    return at_step(a, common, step, "data order", detail, one, other)


def _other_samples(
    a: Trace, b: Trace, common: Coverage, step: int, one: int, other: int
) -> Difference | None:
    """Compare two batches of the same step."""
    left, right = a.batch(one), b.batch(other)
    if not (left.numbered and right.numbered):
        if left.numbered == right.numbered:
            return None
        detail = "the samples of only one of the runs have numbers"
        return at_step(a, common, step, "data order", detail, left.numbered, right.numbered)
    mine, yours = a.samples(one), b.samples(other)
    if mine is None or yours is None:
        return _unnamed(a, b, common, step, left.epoch, right.epoch)
    place = next((i for i, (x, y) in enumerate(zip(mine, yours, strict=False)) if x != y), None)
    if place is not None:
        detail = f"sample {mine[place]} instead of {yours[place]} at position {place} of the batch"
    elif len(mine) != len(yours):
        detail = f"the batch has {len(mine)} samples instead of {len(yours)}"
    else:
        return None
    return at_step(
        a, common, step, "data order", detail, mine.tolist(), yours.tolist(), place=place
    )


def _unnamed(
    a: Trace, b: Trace, common: Coverage, step: int, epoch: int, other: int
) -> Difference | None:
    """The difference of two orders whose samples cannot be named; None if they are equal."""
    left, right = a.order_digest(epoch), b.order_digest(other)
    if left == right and a.batch(a.batches_of(step)[0]) == b.batch(b.batches_of(step)[0]):
        return None
    return at_step(
        a, common, step, "data order",
        f"the order of the samples differs in epoch {epoch + 1}; the traces cannot name "
        "the samples",
        left.hex() if left else None, right.hex() if right else None, certain_to=common.last,
    )  # fmt: skip


# --- Values ------------------------------------------------------------------------------------


def _from(trace: Trace, step: int) -> array[float]:
    return trace.losses[trace.batches_of(step).start :]


def _first_other(one: array[Any], other: array[Any]) -> int | None:
    """Place of the first value that differs in its bits; None if there is none."""
    length = min(len(one), len(other))
    for begin in range(0, length, _CHUNK):
        end = min(begin + _CHUNK, length)
        left, right = one[begin:end].tobytes(), other[begin:end].tobytes()
        if left != right:
            return begin + next(
                i for i in range(end - begin) if left[8 * i : 8 * i + 8] != right[8 * i : 8 * i + 8]
            )
    return None


def _equal(a: Trace, b: Trace, step: int) -> bool:
    return a.weights[step].digest == b.weights[step].digest


def _common(
    one: Mapping[int, object], other: Mapping[int, object], low: int, high: int
) -> list[int]:
    return sorted(step for step in one.keys() & other.keys() if low <= step <= high)


def _tensors(a: Trace, b: Trace, step: int) -> tuple[str, ...]:
    left, right = a.weights[step].single, b.weights[step].single
    if a.names != b.names or not len(left) == len(right) == len(a.names):
        return ()
    pairs = zip(a.names, left, right, strict=True)
    return tuple(name for name, one, other in pairs if one != other)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


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
    return _plural(max(0, common.last - common.first + 1), "step", "steps")


def _plural(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
