"""Merge the timelines of all ranks into one, on the clock of rank 0."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from flodl.monitor.timeline import Timeline, merge_timelines
from flodl.ranks.launch.clock_offsets import clock_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flodl.ranks.group import Group
    from flodl.train.plan import TrainingPlan


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
    timeline = plan.timeline
    if not all(group.gather_objects(timeline is not None)) or timeline is None:
        return
    offsets = clock_offsets(group, lambda: timeline.elapsed_ms)
    with TemporaryDirectory() as folder:
        own = Path(folder) / "timeline.json"
        timeline.save_json(own)
        files = group.gather_objects_to_first(own.read_bytes())
        run = plan.run_dir
        if files is None or run is None:
            return
        parts = [Path(folder) / f"{rank}.json" for rank in range(len(files))]
        for part, content in zip(parts, files, strict=True):
            part.write_bytes(content)
        merged = timeline
        if group.world_size > 1:
            merged = merge_timelines(parts, [offset.ms for offset in offsets])
    merged.save_json(run.path / "timeline.json")
    merged.save_html(run.path / "timeline.html", title=f"Timeline of {run.path.name}")
