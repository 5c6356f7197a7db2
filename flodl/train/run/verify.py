"""Prove from the files of a run which samples it trained.

Use ``python -m flodl.train.run.verify RUN`` on the command line.

The check draws the order of every epoch again from the seed. Each batch in the sample ledger must
hold the samples that belong at its place in that order. The check reads the ledger and the order
piece by piece; :mod:`flodl.ranks.epoch_check` says what an order takes. The checkpoint and
``run.json`` keep the length and the hash of the ledger, so a ledger that was rewritten as a whole
does not match them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch

from flodl.checkpoint.training import TrainingFile
from flodl.checkpoint.values import decode
from flodl.errors import CheckpointError, FlodlError
from flodl.ranks.epoch_check import EpochCheck, EpochShare, Finding
from flodl.ranks.sample_ledger import LedgerContents, LedgerFacts, read_ledger
from flodl.train.run.run_records import LAST, read_record

LEDGER = "samples.ledger"
MOST_FINDINGS = 100_000
"""Limit of the findings that are kept; further ones are only counted."""
_SHOWN = 20
"""Limit of the findings that are printed; the JSON has all that are kept."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The result of checking the sample ledger of a run."""

    run: str
    state: str
    """The state in ``run.json``; ``unknown`` without that file."""
    epochs: tuple[EpochShare, ...]
    """The epochs that were begun, and those that should be complete."""
    planned_epochs: int
    complete_epochs: int
    batches_once: int
    samples_once: int
    samples_doubled: int
    samples_left_out: int
    """Samples that a guard left out after a bad loss; the ledger names them."""
    samples_missing: int
    """Missing samples in epochs that should be complete."""
    rank_samples: dict[int, int]
    order: str
    """How the order was checked."""
    vouchers: tuple[str, ...]
    """Files that keep the length and the hash of the ledger and agree with it."""
    exceptions: tuple[Finding, ...]
    """Findings; at most the first :data:`MOST_FINDINGS`."""
    exceptions_left_out: int
    """How many more findings there are."""
    problems: tuple[str, ...]
    """Problems of the ledger as a whole."""
    notes: tuple[str, ...]
    ledger_bytes: int
    bytes_per_sample: float

    @property
    def proven(self) -> bool:
        """Whether every sample was trained exactly once in every epoch that was completed.

        Samples that a guard left out count if the ledger names them and no rank trained them.
        """
        return not self.exceptions and not self.problems

    @property
    def unfinished_epochs(self) -> tuple[EpochShare, ...]:
        """The epochs that are not complete."""
        return tuple(epoch for epoch in self.epochs if not epoch.complete)


def verify_run(run_dir: str | os.PathLike[str]) -> Verification:
    """Check the sample ledger of a run.

    All epochs of a complete run, and all epochs before the newest checkpoint, must be complete.
    Later epochs may be unfinished, but no sample of them may have been trained twice.

    Args:
        run_dir: The run directory.

    Raises:
        RunDirectoryError: There is no readable sample ledger.
    """
    folder = Path(run_dir)
    contents = read_ledger(folder / LEDGER)
    record = read_record(folder) or {}
    check = _Check(contents, folder)
    check.vouch(record)
    check.expect(record)
    check.go_through()
    return check.result(record)


@final
@dataclass(slots=True)
class _Check:
    """One verification in progress."""

    contents: LedgerContents
    folder: Path
    expected: int = 0
    """Epochs that must be complete."""
    shares: list[EpochShare] = field(default_factory=list)
    exceptions: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    vouchers: list[str] = field(default_factory=list)
    ranks: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    left_out: int = 0
    unordered: bool = False

    def __post_init__(self) -> None:
        self.problems += [text for _, text in self.contents.problems]
        if self.contents.torn:
            self.notes.append(
                f"{self.contents.torn} bytes at the end are of a record that was not written to "
                "its end; they count for nothing"
            )

    def vouch(self, record: Mapping[str, Any]) -> None:
        """Compare the ledger with its length and hash in the checkpoint and in ``run.json``."""
        mark, complete = self._checkpoint()
        self.expected = max(self.expected, complete)
        self._compare(LAST, mark)
        self._compare("run.json", record.get("ledger"))
        if not self.vouchers and not self.problems:
            self.notes.append("nothing outside of the record vouches for it")

    def expect(self, record: Mapping[str, Any]) -> None:
        """Read from ``run.json`` how many epochs must be complete."""
        epochs = record.get("epochs")
        if record.get("state") == "complete" and isinstance(epochs, int):
            self.expected = max(self.expected, epochs)

    def go_through(self) -> None:
        """Check every epoch that was begun or should be complete."""
        begun = self.contents.epoch_facts
        if not begun:
            self.problems.append("no sample is recorded")
        since, first = self._since()
        for epoch in sorted({*begun, *range(since, self.expected)}):
            before = first if epoch == since else 0
            self._check_epoch(epoch, begun.get(epoch, self.contents.facts), before)

    def _since(self) -> tuple[int, int]:
        """Return the epoch, and the sample in it, from which on the ledger has entries."""
        facts = self.contents.stated[0][1]
        epoch, batch = divmod(facts.since, max(facts.batches, 1))
        if facts.since:
            self.notes.append(
                f"the first {facts.since} batches were trained by one process, which goes through "
                "an epoch in its order and keeps no record"
            )
        return epoch, batch * facts.batch_size

    def result(self, record: Mapping[str, Any]) -> Verification:
        """Return the result."""
        trained = sum(share.trained + share.doubled for share in self.shares)
        facts = self.contents.facts
        order = (
            "not drawn again: the sampler is the program's own, so places were checked alone"
            if self.unordered
            else f"drawn again ({facts.sampler}, seed {facts.seed})"
        )
        return Verification(
            run=str(self.folder),
            state=str(record.get("state", "unknown")),
            epochs=tuple(self.shares),
            planned_epochs=facts.epochs,
            complete_epochs=sum(share.complete for share in self.shares),
            batches_once=sum(share.batches_once for share in self.shares),
            samples_once=sum(share.trained for share in self.shares),
            samples_doubled=sum(share.doubled for share in self.shares),
            samples_left_out=sum(share.left_out for share in self.shares),
            samples_missing=sum(s.missing for s in self.shares if s.epoch < self.expected),
            rank_samples=dict(sorted(self.ranks.items())),
            order=order,
            vouchers=tuple(self.vouchers),
            exceptions=tuple(self.exceptions),
            exceptions_left_out=self.left_out,
            problems=tuple(self.problems),
            notes=tuple(self.notes),
            ledger_bytes=self.contents.size,
            bytes_per_sample=self.contents.size / trained if trained else 0.0,
        )

    def _checkpoint(self) -> tuple[Any, int]:
        """Return the ledger's mark in the newest checkpoint, and its number of complete epochs."""
        path = self.folder / LAST
        if not path.exists():
            return None, 0
        try:
            file = TrainingFile.open(path)
            # Only the plain values are needed, so every tensor becomes an empty one.
            extra = decode(file.description["extra"], lambda _: torch.empty(0))
            complete = int(file.value("position")[0])
            return extra.get("distributed", {}).get("ledger"), complete
        except (CheckpointError, ValueError, TypeError, KeyError, AttributeError) as problem:
            self.problems.append(f"{LAST} cannot be compared with the record: {problem}")
            return None, 0

    def _compare(self, name: str, mark: Any) -> None:
        if mark is None:
            return
        length, digest = mark.get("length"), mark.get("digest")
        if self.contents.digest_at(length) == digest:
            if not any(at < length for at, _ in self.contents.problems):
                self.vouchers.append(name)
        else:
            self.problems.append(
                f"{name} belongs to another record: one whose first {length} bytes end in the hash "
                f"{digest}"
            )

    def _check_epoch(self, epoch: int, facts: LedgerFacts, before: int) -> None:
        check = EpochCheck(
            self.contents, epoch, facts, before=before, required=epoch < self.expected
        )
        share = check.go_through(self._note)
        self.shares.append(share)
        self.unordered = self.unordered or facts.sampler == "custom"
        for rank, samples in check.rank_samples.items():
            self.ranks[rank] += samples
        if check.strange and str(torch.__version__) != facts.torch:
            hint = (
                f"torch is {torch.__version__} here and was {facts.torch}: it may shuffle otherwise"
            )
            if hint not in self.notes:
                self.notes.append(hint)

    def _note(self, finding: Finding) -> None:
        if len(self.exceptions) < MOST_FINDINGS:
            self.exceptions.append(finding)
        else:
            self.left_out += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a run and print the result.

    Returns:
        0: proven, 1: not proven, 2: the run cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="python -m flodl.train.run.verify",
        description="Prove from its record that a run trained every sample of an epoch once.",
    )
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    given = parser.parse_args(arguments)
    try:
        found = verify_run(given.run)
    except FlodlError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    form = {"schema_version": 1, **asdict(found), "proven": found.proven}
    text = json.dumps(form, indent=2) if given.json else "\n".join(_lines(found))
    sys.stdout.write(f"{text}\n")
    return 0 if found.proven else 1


def _lines(found: Verification) -> Iterator[str]:
    verdict = "proven" if found.proven else "NOT PROVEN"
    yield f"{Path(found.run).name or found.run}: {verdict} ({found.state})"
    yield f"  epochs   {found.complete_epochs} of {found.planned_epochs} complete"
    for share in found.unfinished_epochs:
        yield f"           epoch {share.epoch + 1}: {share.trained:,} of {share.samples:,} samples"
    yield (
        f"  samples  {found.samples_once:,} once, {found.samples_doubled:,} more than once, "
        f"{found.samples_missing:,} missing, in {found.batches_once:,} whole batches"
    )
    if found.samples_left_out:
        yield f"           {found.samples_left_out:,} left out by a guard; acts.jsonl says why"
    total = sum(found.rank_samples.values()) or 1
    shares = (f"{rank}: {n:,} ({n / total:.1%})" for rank, n in found.rank_samples.items())
    yield f"  ranks    {'  '.join(shares)}"
    yield f"  order    {found.order}"
    agree = f"; as {' and '.join(found.vouchers)} say" if found.vouchers else ""
    yield (
        f"  record   {found.ledger_bytes:,} bytes, {found.bytes_per_sample:.2f} per sample{agree}"
    )
    for text in found.notes:
        yield f"  note     {text}"
    for text in found.problems:
        yield f"  PROBLEM  {text}"
    for one in found.exceptions[:_SHOWN]:
        who = f" (rank {', '.join(map(str, one.ranks))})" if one.ranks else ""
        yield f"  PROBLEM  epoch {one.epoch + 1}, batch {one.batch}{who} {one.what}"
    more = len(found.exceptions) - _SHOWN + found.exceptions_left_out
    if more > 0:
        yield f"           and {more:,} more"


if __name__ == "__main__":
    sys.exit(main())
