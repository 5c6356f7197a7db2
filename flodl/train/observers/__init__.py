"""What flodl itself does at the moments of a training, after the callbacks of the program.

Files of this package have checkpoints, guards, the trace, acts, reports and the best model. Here
are their order, and the timeline.

Observers have the hooks of :class:`~flodl.train.callbacks.Callback`. Two hooks differ:

- ``on_step_end`` is called inside a step, and only if the optimizer has changed the parameters.
- ``on_barrier``, which callbacks lack, is called between two epochs while all ranks have the same
  model.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, final

from flodl.monitor.timeline import Timeline, merge_timelines
from flodl.ranks.clocks import clock_offsets
from flodl.train.callbacks import Callback, TrainingRun, call_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flodl.monitor import EpochMetrics, Timeline
    from flodl.ranks.group import Group
    from flodl.train.parts import Assembly
    from flodl.train.settings import TrainingPlan


def observers_of(
    plan: TrainingPlan, parts: Assembly, saving: Callback, marks: Marks, reporter: Callback
) -> Iterator[Callback]:
    """Return the observers of a training, in the order in which they are called.

    Args:
        plan: Says which are wanted; that of a rank above 0 wants fewer.
        parts: Have an average of the weights and a scheduler of torch, or None.
        saving: Saves the best model and the checkpoints.
        marks: Marks the epoch in the timeline.
        reporter: Shows and records the epoch.
    """
    if parts.average is not None:
        yield parts.average
    yield saving
    if parts.torch_schedule is not None:
        yield parts.torch_schedule
    if plan.timeline is not None:
        yield marks
    yield reporter
    if plan.metrics_fn is not None:
        yield EpochFunction(plan.metrics_fn)  # it sees an epoch that is shown and recorded


@final
@dataclass(frozen=True, slots=True)
class Marks(Callback):
    """Marks in the timeline of a rank; without one, they are nowhere."""

    timeline: Timeline | None

    def __call__(self, kind: str, **fields: object) -> None:
        """Mark an event."""
        if self.timeline is not None:
            self.timeline.event(kind, **fields)

    def busy(self, busy: bool) -> None:
        """Mark whether this rank computes."""
        if self.timeline is not None:
            (self.timeline.busy.begin if busy else self.timeline.busy.end)()

    def on_epoch_start(self, run: TrainingRun) -> None:
        """Mark the beginning of an epoch."""
        self("epoch_start", epoch=run.epoch)

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:  # noqa: ARG002
        """Mark the end of an epoch."""
        self("epoch_end", epoch=metrics.epoch, loss=metrics.avg_loss)


@final
@dataclass(frozen=True, slots=True)
class EpochFunction(Callback):
    """Calls the ``metrics_fn`` of a program; an error in it does not end the training."""

    function: Callable[[EpochMetrics], object]

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:
        """Call it; False ends the training."""
        if call_back("metrics_fn", metrics.epoch, self.function, metrics) is False:
            run.stop("metrics_fn returned False")


@contextmanager
def recorded(plan: TrainingPlan, group: Group) -> Iterator[TrainingPlan]:
    """Record a timeline of this rank inside the context, if the plan asks for one; collective.

    The context yields the plan with the timeline. At a regular end, the timeline of all ranks is
    in the run directory.
    """
    if not plan.record_timeline or plan.timeline is not None:
        yield plan
        return
    with Timeline(rank=group.rank if group.world_size > 1 else None) as timeline:
        timed = replace(plan, timeline=timeline)
        yield timed
    merge_into_run(timed, group)


def merge_into_run(plan: TrainingPlan, group: Group) -> None:
    """Write the timeline of all ranks into the run directory, as JSON and as a page; collective.

    It writes nothing if a rank has no timeline or the training has no run directory.
    """
    timeline, run = plan.timeline, plan.run_dir
    told = group.gather_objects((timeline is not None, run is not None))
    if timeline is None or not all(has for has, _ in told) or not any(keeps for _, keeps in told):
        return
    merged = merged_timeline(timeline, group)
    if merged is not None and run is not None:
        merged.save_json(run.path / "timeline.json")
        merged.save_html(run.path / "timeline.html", title=f"Timeline of {run.path.name}")


def merged_timeline(timeline: Timeline, group: Group, kept: Path | None = None) -> Timeline | None:
    """Merge the timelines of all ranks on rank 0, on its clock; None elsewhere; collective.

    Args:
        timeline: That of this rank.
        group: The ranks.
        kept: A folder for the timeline of each rank; None keeps only the merged one.
    """
    if group.world_size == 1:
        return timeline
    offsets = clock_offsets(group, lambda: timeline.elapsed_ms)
    with TemporaryDirectory() as scratch:
        own = Path(scratch) / "own.json"
        timeline.save_json(own)
        files = group.gather_objects_to_first(own.read_bytes())
        if files is None:
            return None
        folder = kept or Path(scratch)
        parts = [folder / f"timeline-rank{rank}.json" for rank in range(len(files))]
        for part, content in zip(parts, files, strict=True):
            part.write_bytes(content)
        return merge_timelines(parts, [offset.ms for offset in offsets])
