"""Where the content of the data differs between two traces: the step, and the sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdl.runs.difference import Coverage, Difference, epoch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.runs.trace_file import Trace

_BYTES = 8
_MOST_NAMED = 3


def contents(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    """Return the first step whose batches have other content; None if no digest says so.

    The digests of samples are of data that is in memory. They say at which step the first changed
    sample is trained. The digests of batches are taken at some steps only.
    """
    found = [one for one in (_batches(a, b, common), _samples(a, b, common)) if one is not None]
    return min(found, key=lambda one: one.step, default=None)


def changed_samples(a: Trace, b: Trace) -> list[int]:
    """Return the numbers of the samples with other content, as far as both know their digests."""
    return list(_changed(a.sample_digests, b.sample_digests))


def named(samples: list[int]) -> str:
    """Return a text that names samples, the first ones of many."""
    shown = ", ".join(str(name) for name in samples[:_MOST_NAMED])
    more = f" and {len(samples) - _MOST_NAMED} more" if len(samples) > _MOST_NAMED else ""
    return f"sample {shown}" if len(samples) == 1 else f"the samples {shown}{more}"


def _samples(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    """Compare the digests of all samples."""
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
                digests = (
                    one.sample_digests[_BYTES * names[places[0]] :][:_BYTES].hex() for one in (a, b)
                )
                return Difference(
                    step=step,
                    what="data content",
                    detail=_told([names[at] for at in places], places),
                    certain_from=step,
                    certain_to=step,
                    left=next(digests),
                    right=next(digests),
                    agreed_steps=step - common.first,
                    epoch=epoch_of(a, step),
                    place=places[0],
                )
    return None


def _batches(a: Trace, b: Trace, common: Coverage) -> Difference | None:
    """Compare the digests of batches."""
    agreed = None
    for step in common.contents:
        left, right = a.contents[step], b.contents[step]
        if left.digest == right.digest:
            agreed = step
            continue
        begin = step if agreed is None else agreed + 1
        places = list(_changed(b"".join(left.single), b"".join(right.single)))
        numbers = a.batches_of(step)
        names = a.samples(numbers[0]) if numbers else None
        detail = f"the batch of step {step} has other content"
        if places and names is not None and places[-1] < len(names):
            detail = _told([names[at] for at in places], places)
        return Difference(
            step=step,
            what="data content",
            detail=detail,
            certain_from=max(begin, common.first),
            certain_to=step,
            left=left.digest.hex(),
            right=right.digest.hex(),
            agreed_steps=step - common.first,
            epoch=epoch_of(a, step),
            place=places[0] if places else None,
        )
    return None


def _changed(left: bytes, right: bytes) -> Iterator[int]:
    """The numbers of the digests that differ, as far as both reach."""
    end = min(len(left), len(right))
    if left[:end] == right[:end]:
        return
    for at in range(0, end, _BYTES):
        if left[at : at + _BYTES] != right[at : at + _BYTES]:
            yield at // _BYTES


def _told(names: list[int], places: list[int]) -> str:
    if len(names) == 1:
        return f"{named(names)} has other content, at position {places[0]} of the batch"
    return f"{named(names)} have other content"
