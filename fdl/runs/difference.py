"""What two traces have in common, and where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
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
    a: Trace, common: Coverage, step: int, what: What, detail: str, left: object, right: object
) -> Difference:
    """A difference whose step is certain."""
    return Difference(
        step=step, what=what, detail=detail, certain_from=step, certain_to=step, left=left,
        right=right, agreed_steps=step - common.first, epoch=epoch_of(a, step),
    )  # fmt: skip


def epoch_of(trace: Trace, step: int) -> int | None:
    """The epoch of a step, counted from 0; None if the trace does not have the step."""
    numbers = trace.batches_of(step)
    return trace.batch(numbers[0]).epoch if numbers else None
