"""Read runs from their folders and group them by model and mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

from flodl.ddp_bench.analyze import (
    Verdict,
    averaging_fault,
    efficiency,
    ideal_time,
    shortage,
    verdict,
)
from flodl.ddp_bench.cell import MODES
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.records import LOG, TIMELINE, RunRecord, is_complete, read_run, run_folders
from flodl.errors import DataError
from flodl.monitor import Timeline

ALONE = "solo-0"


@final
@dataclass(frozen=True, slots=True)
class FiledRun:
    """A complete run with its folder, and its timeline if it can be read."""

    folder: Path
    record: RunRecord
    timeline: Timeline | None

    @property
    def title(self) -> str:
        """Name of the run in a report."""
        return f"{self.record.model}/{self.record.mode}, seed {self.record.seed}"


@final
@dataclass(frozen=True, slots=True)
class Unread:
    """A folder without a complete run, and the reason."""

    folder: Path
    reason: str


def read_folder(root: Path) -> tuple[list[FiledRun], list[Unread]]:
    """Read every run below a folder, ordered by model, mode and seed."""
    runs, unread = [], []
    for folder in run_folders(root):
        if not is_complete(folder):
            unread.append(Unread(folder, _last_words(folder)))
            continue
        try:
            record = read_run(folder)
        except DataError as error:
            unread.append(Unread(folder, str(error)))
            continue
        runs.append(FiledRun(folder, record, _timeline(folder)))
    runs.sort(key=lambda run: _place(run.record))
    return runs, unread


def _last_words(folder: Path) -> str:
    lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else ""
    if last.startswith("# failed: "):
        return last.removeprefix("# ")
    return f"ended after `{last[:80]}`" if last.startswith("epoch") else "ended before an epoch"


def _timeline(folder: Path) -> Timeline | None:
    try:
        return Timeline.load(folder / TIMELINE)
    except (OSError, DataError):
        return None


def _place(record: RunRecord) -> tuple[int, str, int, str, int]:
    models, modes = list(TASKS), list(MODES)
    return (
        models.index(record.model) if record.model in models else len(models),
        record.model,
        modes.index(record.mode) if record.mode in modes else len(modes),
        record.mode,
        record.seed,
    )


@final
@dataclass(frozen=True, slots=True)
class ModeSummary:
    """All seeds of one model in one mode."""

    runs: tuple[FiledRun, ...]

    @property
    def first(self) -> RunRecord:
        """The record of the first seed."""
        return self.runs[0].record

    @property
    def mode(self) -> str:
        """Name of the mode."""
        return self.first.mode

    @property
    def loss(self) -> float:
        """Mean final training loss."""
        return fmean(run.record.loss for run in self.runs)

    @property
    def eval(self) -> float:
        """Mean final evaluation."""
        return fmean(run.record.eval for run in self.runs)

    @property
    def spread(self) -> float:
        """Largest minus smallest final evaluation."""
        figures = [run.record.eval for run in self.runs]
        return max(figures) - min(figures)

    @property
    def seconds(self) -> float:
        """Mean training time."""
        return fmean(run.record.seconds for run in self.runs)

    @property
    def shortage(self) -> str:
        """Description of the data that a verdict still needs; empty if there is enough."""
        seeds = {run.record.seed for run in self.runs}
        return shortage(len(seeds), sum(run.record.seconds for run in self.runs))

    @property
    def ranks_apart(self) -> float | None:
        """The largest distance between the models of the ranks; None if unknown."""
        found = [run.record.ranks_apart for run in self.runs]
        return max((one for one in found if one is not None), default=None)

    def part(self, name: str) -> float | None:
        """Return ``comm_ms`` or ``wait_ms`` as a fraction of the training time; None if unknown."""
        total = self.first.total(name)
        return None if total is None else total / (self.first.seconds * 1000)

    def busy(self) -> list[float]:
        """Return the fraction of the training time that each rank worked; empty if unknown."""
        rows = [row.busy_ms for row in self.first.rows]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return []
        sums = [sum(column) for column in zip(*known, strict=True)]
        return [one / (self.first.seconds * 1000) for one in sums]


@final
@dataclass(frozen=True, slots=True)
class ModelSummary:
    """All modes of one model on one source of data."""

    model: str
    data: str
    modes: tuple[ModeSummary, ...]

    def mode(self, name: str) -> ModeSummary | None:
        """Return the summary of a mode; None if it was not trained."""
        return next((one for one in self.modes if one.mode == name), None)

    def ideal(self, ranks: int) -> float | None:
        """Return the time of this number of devices without any loss; None if it is unknown.

        Each device must have been measured alone, with two exceptions: all devices are alike, or
        the milliseconds per batch of each rank are simulated.
        """
        alone = [self.mode(f"solo-{rank}") for rank in range(ranks)]
        first = alone[0]
        if first is None:
            return None
        several = next((one for one in self.modes if one.first.world_size >= ranks), first)
        alike = len(set(several.first.devices)) == 1 and not several.first.simulated
        known = [one or (first if alike else None) for one in alone]
        paces = several.first.declared_ms
        if None in known and len(paces) == ranks:
            # The speeds are simulated, so the time of one gives the times of the others.
            return ideal_time([first.seconds * pace / paces[0] for pace in paces])
        if None in known:
            return None
        return ideal_time([one.seconds for one in known if one is not None])

    def efficiency(self, one: ModeSummary) -> float | None:
        """Return the fraction of its devices' combined speed that a mode used; None if unknown."""
        ideal = self.ideal(one.first.world_size)
        return None if ideal is None else efficiency(ideal, one.seconds)

    def fault(self, one: ModeSummary) -> str:
        """Describe the sign that a mode's averaging is broken; empty if there is none."""
        alone = self.mode(ALONE)
        if alone is None or one.first.world_size == 1 or self.data == "synthetic":
            return ""
        return averaging_fault(
            one.ranks_apart,
            one.eval,
            alone.eval,
            higher_is_better=one.first.higher_is_better,
        )

    def verdict(self, one: ModeSummary) -> Verdict | None:
        """Judge a mode of several ranks; None if there is nothing to compare it with."""
        alone, used = self.mode(ALONE), self.efficiency(one)
        if alone is None or one.first.world_size == 1 or self.data == "synthetic":
            return None
        if self.fault(one):
            return Verdict.BROKEN
        if used is None:
            return None
        if one.shortage or alone.shortage:
            return Verdict.NOT_ENOUGH
        return verdict(
            one.eval,
            alone.eval,
            higher_is_better=one.first.higher_is_better,
            seconds=one.seconds,
            seconds_alone=alone.seconds,
            used=used,
        )


def summarise(runs: Sequence[FiledRun]) -> list[ModelSummary]:
    """Group runs by model and source of data, then by mode."""
    groups: dict[tuple[str, str], dict[str, list[FiledRun]]] = {}
    for run in runs:
        modes = groups.setdefault((run.record.model, run.record.data), {})
        modes.setdefault(run.record.mode, []).append(run)
    return [
        ModelSummary(model, data, tuple(ModeSummary(tuple(seeds)) for seeds in modes.values()))
        for (model, data), modes in groups.items()
    ]
