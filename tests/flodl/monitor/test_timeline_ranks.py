"""Timelines of several ranks: who recorded what, and all of them as one."""

from __future__ import annotations

import csv
import json
import re

import pytest
from hypothesis import given, strategies as st

from flodl.errors import DataError
from flodl.monitor import Timeline, TimelineEvent, TimelineSample, merge_timelines
from flodl.monitor.resources import GpuSnapshot, ResourceSample
from flodl.monitor.sampling import BusyMeter
from flodl.monitor.timeline_records import RankActivity
from tests.waiting import wait_for


def gpu(util, device=0):
    return GpuSnapshot(device, "H200", util, 1, 4)


def of_rank(rank, *, syncs=2, busy=80.0, late=0.0):
    """A second of one rank: a sample each 100 ms, a plan, exchanges and a wait."""
    events = [TimelineEvent(late, "plan", {"window": 0, "counts": [25, 10]}, rank)]
    for number in range(syncs):
        at = 100.0 * number + late
        events.append(TimelineEvent(at + 10, "sync_start", {}, rank))
        events.append(TimelineEvent(at + 15, "sync_end", {"ms": 5.0}, rank))
        events.append(TimelineEvent(at + 15, "wait", {"ms": 3.0}, rank))
    samples = [
        TimelineSample(100.0 * n + late, 50.0, None, [gpu(90.0 if rank else 2.0)], rank, busy)
        for n in range(10)
    ]
    return Timeline.from_samples(samples, events)


def test_a_timeline_of_a_rank_stamps_its_records(clock):
    class Machine:
        def sample(self):
            clock.now += 0.1
            return ResourceSample(10.0, 1, 2, ())

    timeline = Timeline(1, clock=clock, sampler=Machine(), rank=3)
    timeline.event("throttle", rank=1)
    timeline.start()
    wait_for(lambda: timeline.sample_count >= 1)
    timeline.stop()
    (event,) = timeline.events
    assert event.as_json() == {"t": 0.0, "k": "throttle", "r": 3, "rank": 1}
    assert timeline.samples[0].as_json()["r"] == 3
    assert "busy" not in timeline.samples[0].as_json()
    with pytest.raises(ValueError, match="rank of a timeline is -1; ranks count from 0"):
        Timeline(rank=-1)


def test_without_a_rank_nothing_is_stamped(clock):
    timeline = Timeline(clock=clock)
    timeline.event("sync_start")
    assert timeline.events[0].as_json() == {"t": 0.0, "k": "sync_start"}
    assert timeline.summary().ranks == {}


def test_the_busy_meter_tells_which_part_of_the_time_was_work(clock):
    meter = BusyMeter(clock)
    assert meter.percent() is None
    clock.now += 5.0  # before the first batch there is nothing to tell
    meter.begin()
    clock.now += 0.03
    meter.begin()  # no second time
    clock.now += 0.01
    meter.end()
    meter.end()
    clock.now += 0.06
    assert meter.percent() == 40.0
    meter.begin()
    clock.now += 0.1
    assert meter.percent() == 100.0  # a batch under way counts up to now
    clock.now += 0.05
    meter.end()
    clock.now += 0.05
    assert meter.percent() == 50.0
    clock.now += 0.1
    assert meter.percent() == 0.0
    assert meter.percent() is None  # no time has passed


def test_samples_carry_how_busy_the_rank_was(clock):
    class Machine:
        def sample(self):
            clock.now += 0.1
            return ResourceSample(10.0, 1, 2, ())

    timeline = Timeline(1, clock=clock, sampler=Machine(), rank=0)
    timeline.busy.begin()
    timeline.start()
    wait_for(lambda: timeline.sample_count >= 2)
    timeline.stop()
    assert [sample.busy for sample in timeline.samples[:2]] == [100.0, 100.0]
    assert timeline.summary().ranks[0].busy_pct == 100.0


def test_merged_records_are_in_the_order_of_the_first_clock():
    second = Timeline.from_samples(
        [TimelineSample(1000.0, 1.0)], [TimelineEvent(1010.0, "sync_start")]
    )
    first = Timeline.from_samples([TimelineSample(5.0, 2.0)], [TimelineEvent(0.0, "sync_start")])
    merged = merge_timelines([first, second], [0.0, -1002.5])
    # The earliest record is at -2.5 on the first clock: it becomes the beginning.
    assert [(one.t_ms, one.rank) for one in merged.samples] == [(0.0, 1), (7.5, 0)]
    assert [(one.t_ms, one.rank) for one in merged.events] == [(2.5, 0), (10.0, 1)]
    assert merged.elapsed_ms == 10.0


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=4))
def test_every_record_is_in_the_merged_timeline(offsets):
    parts = [of_rank(rank) for rank in range(len(offsets))]
    merged = merge_timelines(parts, offsets)
    assert merged.sample_count == 10 * len(parts)
    assert len(merged.events) == sum(len(part.events) for part in parts)
    assert [one.t_ms for one in merged.samples] == sorted(one.t_ms for one in merged.samples)
    assert min(one.t_ms for one in (*merged.samples, *merged.events)) >= 0
    for rank, part in enumerate(parts):
        own = [event for event in merged.events if event.rank == rank]
        assert [event.kind for event in own] == [event.kind for event in part.events]
        lengths = [own[-1].t_ms - event.t_ms for event in own]
        expected = [part.events[-1].t_ms - event.t_ms for event in part.events]
        assert lengths == pytest.approx(expected, abs=0.002)


def test_files_and_timelines_merge_alike(tmp_path):
    parts = [of_rank(0), of_rank(1, late=3.0)]
    paths = []
    for rank, part in enumerate(parts):
        paths.append(tmp_path / f"timeline.{rank}.json")
        part.save_json(paths[-1])
    merged = merge_timelines(paths)
    assert merged.events == merge_timelines(parts).events
    merged.save_json(tmp_path / "timeline.json")
    back = Timeline.load(tmp_path / "timeline.json")
    assert (back.samples, back.events) == (merged.samples, merged.events)
    (tmp_path / "timeline.1.json").write_text("{")
    with pytest.raises(DataError, match=r"timeline\.1\.json is not a timeline"):
        merge_timelines(paths)
    with pytest.raises(ValueError, match="2 timelines need as many offsets, got 1"):
        merge_timelines(parts, [0.0])


def test_a_summary_tells_the_ranks_apart():
    merged = merge_timelines([of_rank(0, syncs=4, busy=70.0), of_rank(1, syncs=4, busy=90.0)])
    summary = merged.summary()
    assert summary.sample_count == 20
    assert summary.sync_count == 4, "both ranks tell of the same four"
    assert summary.ranks == {
        0: RankActivity(sync_count=4, sync_ms=20.0, wait_ms=12.0, busy_pct=pytest.approx(70.0)),
        1: RankActivity(sync_count=4, sync_ms=20.0, wait_ms=12.0, busy_pct=pytest.approx(90.0)),
    }


def test_what_all_ranks_tell_of_is_counted_once_and_as_long_as_the_slowest_took():
    def rank(number: int) -> Timeline:
        events = []
        for at in (0.0, 100.0):
            events.append(TimelineEvent(at, "sync_start"))
            events.append(TimelineEvent(at + 9, "sync_end", {"ms": 4.0 + 2 * number}))
        events.append(TimelineEvent(200.0, "wait", {"ms": 1.0}))
        events += [TimelineEvent(300.0 + at, "anchor", {"from": 1, "to": 2}) for at in (0, 9)]
        if number == 1:
            events.append(TimelineEvent(400.0, "throttle", {"rank": 0}))
        return Timeline.from_samples([], events)

    summary = merge_timelines([rank(0), rank(1), rank(2)]).summary()
    assert (summary.sync_count, summary.sync_avg_ms) == (2, 8.0)
    assert (summary.anchor_count, summary.throttle_count) == (2, 1)
    assert summary.event_count == 4 + 3 + 2 + 1, "a wait is of one rank alone"
    assert summary.ranks[0].sync_ms == 8.0


def test_the_machine_is_counted_once():
    merged = merge_timelines([of_rank(0), of_rank(1)])
    assert merged.summary().gpu_idle_pct == {0: 100.0}
    assert merged.idle_gaps(0, 5, 0) == [(0, 900)]
    assert merged.idle_gaps(0, 5, 0, rank=1) == []


def test_csv_has_the_rank_of_every_record(tmp_path):
    merge_timelines([of_rank(0), of_rank(1)]).save_csv(tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["t_ms", "rank", "busy_pct"]
    assert [row["rank"] for row in rows if row["event"] == "plan"] == ["0", "1"]
    assert {(row["rank"], row["busy_pct"]) for row in rows if not row["event"]} == {
        ("0", "80"),
        ("1", "80"),
    }
    plan = next(row for row in rows if row["event"] == "plan")
    assert json.loads(plan["fields"]) == {"window": 0, "counts": [25, 10]}
    assert plan["cpu_pct"] == ""


def test_the_page_holds_a_curve_per_rank(tmp_path):
    merge_timelines([of_rank(0), of_rank(1, late=2.0)]).save_html(tmp_path / "t.html")
    text = (tmp_path / "t.html").read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    samples = json.loads(data)["timeline"]["samples"]
    assert len(samples) == 20
    times = [[one["t"] for one in samples if one["r"] == rank][:2] for rank in (0, 1)]
    assert times == [[0.0, 100.0], [2.0, 102.0]]
    assert [one["busy"] for one in samples] == [80.0] * 20
