"""What figures of runs mean, by hand-computed examples."""

import math

import pytest

from flodl.ddp_bench.analyze import (
    Cause,
    Verdict,
    calibration,
    cause_of,
    efficiency,
    epoch_overlaps,
    ideal_time,
    idle_by_cause,
    idle_times,
    quantiles,
    sampled,
    verdict,
    worse_by,
)
from flodl.monitor.resources import GpuSnapshot
from flodl.monitor.timeline_records import EventKind, TimelineEvent, TimelineSample
from tests.rows import each_row


def event(t_ms, kind, told_by=None, **fields):
    return TimelineEvent(float(t_ms), EventKind(kind), fields, told_by)


def gpu(t_ms, util, device=0, rank=None):
    return TimelineSample(float(t_ms), gpus=(GpuSnapshot(device, "X", util, 1, 2),), rank=rank)


TRAINING = [event(0, "epoch_start", epoch=0)]


@pytest.mark.case("distributed", 55)
def test_the_published_figures_of_resnet_are_slow():
    ideal = ideal_time([3126.5, 3701.6])
    used = efficiency(ideal, 2649.7)
    assert ideal == pytest.approx(1694.9, abs=0.05)
    assert used == pytest.approx(0.64, abs=0.005)
    judged = verdict(
        0.9242,
        0.9166,
        higher_is_better=True,
        seconds=2649.7,
        seconds_alone=3126.5,
        used=used,
    )
    assert judged is Verdict.SLOW


@pytest.mark.case("distributed", 55)
@each_row(
    ("figure", "seconds", "used", "wanted"),
    [
        (0.90, 60, 0.90, Verdict.PASS),
        (0.882, 60, 0.95, Verdict.PASS),
        (0.881, 60, 0.95, Verdict.NO_CONVERGENCE),
        (math.nan, 60, 0.95, Verdict.NO_CONVERGENCE),
        (0.90, 60, 0.899, Verdict.FAIR),
        (0.90, 60, 0.75, Verdict.FAIR),
        (0.90, 60, 0.749, Verdict.SLOW),
        (0.90, 101, 0.5, Verdict.LOSS),
        (0.95, 100, 0.5, Verdict.SLOW),
    ],
)
def test_verdicts(figure, seconds, used, wanted):
    judged = verdict(
        figure, 0.90, higher_is_better=True, seconds=seconds, seconds_alone=100, used=used
    )
    assert judged is wanted


def test_worse_knows_the_direction():
    assert worse_by(0.9, 1.0, higher_is_better=True) == pytest.approx(0.1)
    assert worse_by(0.9, 1.0, higher_is_better=False) == pytest.approx(-0.1)
    assert worse_by(math.inf, 1.0, higher_is_better=False) == math.inf
    assert worse_by(0.0, 0.0, higher_is_better=False) == 0
    assert worse_by(0.1, 0.0, higher_is_better=False) == math.inf


@pytest.mark.case("distributed", 56)
@each_row(
    ("events", "wanted"),
    [
        ([], Cause.UNEXPLAINED),
        ([event(9_499, "sync_start")], Cause.UNEXPLAINED),
        ([event(9_500, "sync_start")], Cause.SYNC),
        ([event(11_500, "sync_end", ms=3.0)], Cause.SYNC),
        ([event(11_501, "sync_end", ms=3.0)], Cause.UNEXPLAINED),
        ([event(10_500, "cpu_avg_end", ms=3.0)], Cause.CPU_AVERAGING),
        ([event(10_400, "sync_start"), event(10_500, "cpu_avg_start")], Cause.CPU_AVERAGING),
        (
            [
                event(10_000, "sync_start"),
                event(10_400, "cpu_avg_start"),
                event(10_500, "epoch_end", epoch=0, loss=1.0),
            ],
            Cause.EPOCH_END,
        ),
        ([event(10_500, "anchor", **{"from": 1, "to": 2})], Cause.UNEXPLAINED),
    ],
)
def test_the_cause_of_a_gap_is_the_first_that_applies(events, wanted):
    assert cause_of(10_000, 11_000, TRAINING + events) is wanted


@pytest.mark.case("distributed", 56)
def test_a_gap_before_the_training_is_the_start_up_whatever_else_happened():
    events = [event(5_000, "epoch_start", epoch=0), event(5_100, "sync_start")]
    assert cause_of(0, 4_000, events) is Cause.STARTUP
    assert cause_of(5_499, 6_500, events) is Cause.STARTUP
    assert cause_of(5_500, 6_500, events) is Cause.SYNC
    assert cause_of(10_000, 11_000, []) is Cause.STARTUP


@pytest.mark.case("distributed", 56)
def test_gaps_are_found_per_gpu_and_summed_by_cause():
    busy = [gpu(t, 80) for t in range(0, 10_000, 100)]
    idle = [gpu(t, 4.9) for t in range(10_000, 10_600, 100)]
    after = [gpu(t, 5.0) for t in range(10_600, 12_000, 100)]
    events = [*TRAINING, event(10_300, "sync_start")]
    (gap,) = idle_times([*busy, *idle, *after], events)
    assert (gap.device, gap.start_ms, gap.end_ms, gap.cause) == ("gpu0", 10_000, 10_600, Cause.SYNC)
    assert idle_by_cause([gap]) == {Cause.SYNC: 600}


def test_too_short_gaps_do_not_count():
    samples = [gpu(t, 80) for t in (0, 100)] + [gpu(t, 0) for t in (200, 300, 400, 500, 600)]
    assert idle_times([*samples, gpu(699, 80)], TRAINING) == []


def test_a_gpu_that_every_rank_has_seen_is_counted_once():
    samples = [
        gpu(t, 0.0, device=device, rank=rank)
        for t in range(0, 2_000, 100)
        for rank in (0, 1)
        for device in (0, 1)
    ]
    assert [gap.device for gap in idle_times(samples, TRAINING)] == ["gpu0", "gpu1"]


def test_ranks_on_processors_are_idle_when_they_do_not_work():
    samples = [
        TimelineSample(float(t), cpu=50.0, rank=rank, busy=99.0 if rank == 0 else 1.0)
        for t in range(0, 2_000, 100)
        for rank in (0, 1)
    ]
    (gap,) = idle_times(samples, TRAINING)
    assert gap.device == "rank 1"


@pytest.mark.case("distributed", 56)
@each_row(
    ("values", "wanted"),
    [
        ([7], (7, 7)),
        ([2, 1], (2, 2)),
        ([3, 1, 2], (2, 3)),
        (list(range(20)), (10, 19)),
        (list(range(100, 0, -1)), (51, 96)),
    ],
)
def test_quantiles_are_places_of_the_sorted_values(values, wanted):
    assert quantiles(values) == wanted


def test_nothing_has_no_quantiles():
    with pytest.raises(ValueError, match="quantiles need at least one value"):
        quantiles([])


def test_calibration_reads_the_events_of_rank_0():
    events = [
        event(0, "sync_start", 0),
        event(1, "sync_start", 1),
        event(100, "sync_start", 0),
        event(150, "anchor", 0, **{"from": 10, "to": 15}),
        event(160, "anchor", 1, **{"from": 10, "to": 15}),
        event(300, "sync_start", 0),
        event(310, "throttle", 0, rank=1),
        event(400, "anchor", 0, **{"from": 15, "to": 14}),
    ]
    found = calibration(events)
    assert found.anchors == (10, 15, 14)
    assert (found.throttles, found.syncs, found.p50_ms, found.p95_ms) == (1, 3, 200, 200)
    assert calibration([]).p50_ms is None


def test_epochs_overlap_where_a_rank_is_ahead():
    events = [
        event(0, "epoch_start", 0, epoch=0),
        event(0, "epoch_start", 1, epoch=0),
        event(90, "epoch_start", 0, epoch=1),
        event(100, "epoch_end", 0, epoch=0, loss=1.0),
        event(120, "epoch_end", 1, epoch=0, loss=1.0),
        event(125, "epoch_start", 1, epoch=1),
        event(200, "epoch_end", 0, epoch=1, loss=1.0),
        event(200, "epoch_end", 1, epoch=1, loss=1.0),
    ]
    assert epoch_overlaps(events) == [(1, 30)]


def test_a_long_trajectory_is_shown_at_twenty_places():
    assert sampled(5) == [0, 1, 2, 3, 4]
    assert sampled(20) == list(range(20))
    places = sampled(200)
    assert len(places) == len(set(places)) == 20
    assert (places[0], places[-1]) == (0, 199)
