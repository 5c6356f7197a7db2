"""Where two runs part, and why: the traces say where, the records say why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from fdl.base.units import printable
from fdl.runs.acts import Cause, left_out
from fdl.runs.causes import CONTENT, causes, likely
from fdl.runs.find import shortened
from fdl.runs.trace import Coverage, changed_samples, first_difference, named
from fdl.runs.trace_file import read_trace

if TYPE_CHECKING:
    from fdl.runs.run import Run
    from fdl.runs.trace import Difference, What
    from fdl.runs.trace_file import Trace

AGREE, PART, UNKNOWN = 0, 1, 2
"""Exit codes, as those of ``diff``."""

_MOST_CAUSES = 6


@final
@dataclass(frozen=True)
class Verdict:
    """What two runs have in common and where they part.

    Attributes:
        runs: The runs.
        common: The steps and digests that both have.
        difference: Where they part; None if everything that both recorded agrees.
        suspect: What the causes have to explain.
        causes: What differs in their records, the most likely cause first. Also if they agree.
    """

    runs: tuple[Run, Run]
    common: Coverage
    difference: Difference | None
    suspect: What
    causes: tuple[Cause, ...]

    @property
    def likely(self) -> list[Cause]:
        """The causes that can change what differs first."""
        if self.difference is None:
            return []
        return likely(list(self.causes), self.suspect)

    @property
    def certain(self) -> Cause | None:
        """The cause, if the records allow only one."""
        found = self.likely
        return found[0] if len(found) == 1 else None

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON data."""
        return {
            "runs": [str(run.path) for run in self.runs],
            "agree": self.difference is None,
            "steps": {"first": self.common.first, "last": self.common.last},
            "proof": self.common.sentence(),
            "difference": asdict(self.difference) if self.difference else None,
            "certain": self.certain is not None,
            "causes": [
                {**asdict(one), "likely": one in self.likely, "sentence": one.sentence()}
                for one in self.causes
            ],
        }


def compare(left: Run, right: Run) -> Verdict:
    """Find where two runs part.

    Raises:
        TraceError: A run has no trace, or the traces do not say whether the runs agree.
        FdlError: A ``config.json`` cannot be read.
    """
    traces = read_trace(left.path), read_trace(right.path)
    difference = first_difference(*traces)
    suspect = _suspect(difference)
    found = causes((left, right), traces, suspect, difference.step if difference else None)
    if difference is not None and difference.what == "data content":
        found.append(Cause(CONTENT, "the data", None, None, lines=(difference.detail,)))
    if difference is not None and difference.what == "data order":
        found = _because_of_data(found, (left, right), traces)
    return Verdict((left, right), Coverage(*traces), difference, suspect, tuple(found))


def _because_of_data(
    found: list[Cause], runs: tuple[Run, Run], traces: tuple[Trace, Trace]
) -> list[Cause]:
    """Causes with the changed data in place of the acts of guards, if these acted because of it."""
    if not any(one.kind == "acts" for one in found):
        return found
    changed = changed_samples(*traces)
    for which, run in zip(("first", "second"), runs, strict=True):
        known = left_out(run)
        samples = [one for one in changed if one in known]
        if samples:
            lines = (
                f"{named(samples)} {'has' if len(samples) == 1 else 'have'} other content",
                f"the guards of the {which} run left out the batch: {known[samples[0]]} "
                "(both counted from 0)",
            )
            data = Cause(CONTENT, "the data", None, None, lines=lines)
            return [*(one for one in found if one.kind != "acts"), data]
    return found


def _suspect(found: Difference | None) -> What:
    """What the causes have to explain."""
    if found is None:
        return "loss"
    # The step before had an equal loss and no digest of its weights: its update may differ.
    return "weights" if found.what == "loss" and found.certain_from < found.step else found.what


def text(verdict: Verdict) -> str:
    """The verdict as lines for a terminal."""
    found = verdict.difference
    names = [str(shortened(run.path)) for run in verdict.runs]
    lines = [f"{printable(names[0])}  (first)", f"{printable(names[1])}  (second)", ""]
    if found is None:
        lines += [f"The runs agree. {verdict.common.sentence()}", *_irrelevant(verdict)]
    else:
        lines += [_where(found), *_why(verdict)]
    return "\n".join(lines) + "\n"


def _where(found: Difference) -> str:
    agreed = {0: "", 1: "The runs agree for 1 step. "}.get(
        found.agreed_steps, f"The runs agree for {found.agreed_steps:,} steps. "
    )
    step = f"At step {found.step:,}" if found.step else "Before step 1"
    epoch = f", in epoch {found.epoch + 1}" if found.epoch is not None and found.step else ""
    text = f"{agreed}{step}{epoch}: {printable(found.detail)}."
    if found.certain_from < found.certain_to:
        first = f"step {found.certain_from:,}" if found.certain_from else "the beginning"
        text += f" They first differ between {first} and step {found.certain_to:,}."
    return text


def _why(verdict: Verdict) -> list[str]:
    found = verdict.likely
    if not found:
        lines = ["", "No recorded difference explains this. Not recorded are:"]
        return [
            *lines,
            "  - the files of the data",
            "  - code outside of the program's git repository",
            "  - random numbers that the program draws without a seed",
            *_irrelevant(verdict),
        ]
    if verdict.certain is not None:
        return ["", f"Cause: {_told(verdict.certain)}", *_lines(verdict.certain)]
    lines = ["", "Candidate causes, the most likely first:"]
    for number, cause in enumerate(found[:_MOST_CAUSES], 1):
        lines += [f"  {number}. {_told(cause)}", *(f"   {line}" for line in _lines(cause))]
    return [*lines, *_more(found)]


def _irrelevant(verdict: Verdict) -> list[str]:
    """Differences of the records that changed nothing that was compared."""
    others = [one for one in verdict.causes if one not in verdict.likely]
    if not others:
        return []
    lines = ["", "Their records differ in:"]
    lines += [f"  {_told(one)}" for one in others[:_MOST_CAUSES]]
    return [*lines, *_more(others)]


def _more(found: list[Cause]) -> list[str]:
    more = len(found) - _MOST_CAUSES
    return [f"  and {more} more; --json lists them all"] if more > 0 else []


def _told(cause: Cause) -> str:
    return printable(cause.sentence())


def _lines(cause: Cause) -> list[str]:
    return [f"  {printable(line)}" for line in cause.lines]
