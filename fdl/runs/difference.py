"""What two traces have in common, and where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.runs.trace_file import Trace

What: TypeAlias = Literal[
    "initial weights", "data order", "data content", "loss", "gradients", "weights"
]
"""What differs. Within one step, the earlier entry comes first."""


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
@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """What two traces have in common, so what an agreement proves.

    Attributes:
        first: The first step that both have.
        last: The last step that both have; below ``first`` if there is none.
        weights: The steps after which both have a digest of the weights.
        contents: The steps for whose first batch both have a digest.
        numbered: Whether the samples of all steps have numbers.
        norms: Whether both have gradient norms.
        ranks: Number of ranks; above 1, the traces are those of rank 0.
    """

    first: int
    last: int
    weights: tuple[int, ...]
    contents: tuple[int, ...]
    numbered: bool
    norms: bool
    ranks: int

    def sentence(self) -> str:
        """Say what the proof covers."""
        names = "the same samples in the same order, and " if self.numbered else ""
        steps = "step" if self.first == self.last else "steps"
        reach = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        last = f", the last one after step {self.weights[-1]}" if self.weights else ""
        ranks = f" This is the view of rank 0 of {self.ranks}." if self.ranks > 1 else ""
        return (
            f"In {steps} {reach} both have {names}the same loss to the bit. Their weights have "
            f"equal digests at {_steps(self.weights)}{last}, and their batches at "
            f"{_steps(self.contents)}.{ranks}"
        )


def _steps(found: tuple[int, ...]) -> str:
    return "1 step" if len(found) == 1 else f"{len(found)} steps"


def at_step(
    a: Trace,
    common: Coverage,
    step: int,
    what: What,
    detail: str,
    left: object,
    right: object,
    *,
    certain_from: int | None = None,
    certain_to: int | None = None,
    agreed: int | None = None,
    place: int | None = None,
    tensors: tuple[str, ...] = (),
) -> Difference:
    """A difference that the records of a step show.

    Without ``certain_from`` and ``certain_to``, the runs part in this step; without ``agreed``, all
    steps before it agree.
    """
    return Difference(
        step=step,
        what=what,
        detail=detail,
        certain_from=step if certain_from is None else certain_from,
        certain_to=step if certain_to is None else certain_to,
        left=left,
        right=right,
        agreed_steps=step - common.first if agreed is None else agreed,
        epoch=epoch_of(a, step),
        place=place,
        tensors=tensors,
    )


def epoch_of(trace: Trace, step: int) -> int | None:
    """The epoch of a step, counted from 0; None if the trace does not have the step."""
    numbers = trace.batches_of(step)
    return trace.batch(numbers[0]).epoch if numbers else None


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
                left, right = (
                    one.sample_digests[_BYTES * names[places[0]] :][:_BYTES].hex() for one in (a, b)
                )
                detail = _told([names[at] for at in places], places)
                return at_step(
                    a, common, step, "data content", detail, left, right, place=places[0]
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
        return at_step(
            a, common, step, "data content", detail, left.digest.hex(), right.digest.hex(),
            certain_from=max(begin, common.first), place=places[0] if places else None,
        )  # fmt: skip
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
