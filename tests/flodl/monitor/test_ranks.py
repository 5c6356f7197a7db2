"""What the ranks of one training measured: sums and shares, and where they are shown."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import pytest

from flodl.monitor import (
    EpochMetrics,
    EpochRecord,
    GpuMetrics,
    Monitor,
    RankMetrics,
    RunInfo,
)
from flodl.monitor.records import RankSummary
from flodl.monitor.sinks import CsvSink, epoch_line
from flodl.train.run.loop_state import LoopState
from tests.rows import each_row


def metrics(epoch=0, ranks=2, **changes):
    """An epoch of a fast and a slow rank (and more slow ones)."""
    fast = RankMetrics(0.5, {"acc": 0.75}, 8000, 250, 10_000.0, "cuda:0")
    slow = RankMetrics(0.75, {"acc": 0.5}, 3200, 100, 10_000.0, "cuda:3")
    settings = {
        "per_rank": (fast, *[slow] * (ranks - 1)),
        "comm_ms": 120.0,
        "wait_ms": 420.0,
        "anchor": 10,
        "counts": (25, *[10] * (ranks - 1)),
    } | changes
    return EpochMetrics(epoch, 0.57, {}, 10_500.0, 1.06, [0.7, 0.3], **settings)


def record(measured):
    monitor = Monitor(2, terminal=False)
    monitor.log(measured.epoch, measured.epoch_ms / 1000, measured)
    (made,) = monitor.history
    monitor.finish()
    return made


def test_shares_and_speeds_follow_from_the_ranks():
    made = metrics()
    assert made.per_rank_throughput == (0.8, 0.32)
    assert made.per_rank_batch_share == (250 / 350, 100 / 350)
    idle = metrics(per_rank=(RankMetrics(math.nan), RankMetrics(math.nan, device="cuda")))
    assert all(math.isnan(value) for value in idle.per_rank_throughput)
    assert all(math.isnan(value) for value in idle.per_rank_batch_share)


def test_one_rank_shows_nothing_of_ranks(tmp_path):
    alone = EpochMetrics(0, 0.5, {}, 20.0, 3.2, [1.0])
    assert (alone.per_rank, alone.anchor, alone.counts) == ((), None, ())
    made = record(alone)
    assert made.ranks is None
    assert "ranks" not in made.as_json()
    assert epoch_line(made).split("  ")[1].startswith("loss=")
    assert "share" not in epoch_line(made)
    sink = CsvSink(tmp_path / "m.csv")
    sink.open(RunInfo(2, None))
    sink.record(made)
    sink.flush()
    assert (tmp_path / "m.csv").read_text().splitlines()[0].endswith(",vram_spill")


def test_the_line_tells_shares_anchor_and_waiting():
    line = epoch_line(record(metrics()))
    assert "  share 71/29  anchor 10  wait 4%  [10.5s" in line
    assert "anchor" not in epoch_line(record(metrics(anchor=None)))
    assert "share 4.7…11.6 (20 ranks)" in epoch_line(record(metrics(ranks=20)))


def test_in_a_narrow_row_metrics_give_way_then_the_ranks_then_the_remaining_time():
    made = replace(record(metrics()), metrics=(("loss", 0.57), ("acc", 0.6786)))
    wide = epoch_line(made)
    assert [epoch_line(made, room) for room in (len(wide), len(wide) - 1, 55, 40, 28, 20)] == [
        "epoch 1/2  loss=0.5700  acc=0.6786  share 71/29  anchor 10  wait 4%  [10.5s  ETA 10.5s]",
        "epoch 1/2  loss=0.5700  +1 more  share 71/29  anchor 10  wait 4%  [10.5s  ETA 10.5s]",
        "epoch 1/2  loss=0.5700  acc=0.6786  [10.5s  ETA 10.5s]",
        "epoch 1/2  loss=0.5700  +1 more  [10.5s]",
        "epoch 1/2  loss=0.5700  +1 …",
        "epoch 1/2  loss=0.5…",
    ]


def test_the_table_has_columns_for_every_rank(tmp_path):
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.open(RunInfo(3, None))
    sink.record(record(EpochMetrics(0, 0.5, {}, 20.0, 3.2, [1.0])))
    sink.flush()
    sink.record(record(metrics(1)))
    sink.flush()
    sink.record(record(metrics(2, ranks=3)))
    sink.finish(None)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["anchor"] for row in rows] == ["", "10", "10"]
    assert [row["wait_ms"] for row in rows] == ["", "420.000", "420.000"]
    assert [row["rank0_batches"] for row in rows] == ["", "250", "250"]
    assert [row["rank2_samples"] for row in rows] == ["", "", "3200"]
    assert rows[1]["rank1_busy_ms"] == "10000.000"


def test_records_and_checkpoints_keep_them():
    made = record(metrics())
    assert EpochRecord.from_json(json.loads(json.dumps(made.as_json()))) == made
    state = LoopState(history=[metrics()], records=[made])
    read = LoopState.from_json(json.loads(json.dumps(state.as_json())))
    assert read.history == [metrics()]
    assert list(read.records) == [made]


def test_values_that_are_not_finite_survive():
    odd = RankMetrics(math.inf, {"acc": -math.inf}, 1, 1, 2.0)
    state = LoopState(history=[metrics(per_rank=(odd, odd))])
    assert LoopState.from_json(state.as_json()).history == state.history
    form = record(metrics(per_rank=(odd, odd))).as_json()
    assert form["ranks"]["each"][0]["loss"] == "inf"
    assert RankMetrics.from_json(form["ranks"]["each"][0]) == odd


@each_row("damage", [{"each": [{}]}, {"counts": None}, {"anchor": "x"}])
def test_a_damaged_record_is_refused(damage):
    form = record(metrics()).as_json()
    form["ranks"] |= damage
    with pytest.raises(ValueError, match="record of an epoch"):
        EpochRecord.from_json(form)


def test_a_summary_of_an_epoch_without_length_says_no_waiting():
    assert RankSummary(metrics().per_rank).text(0.0) == "share 71/29"


def test_gpus_tell_their_part_of_an_epoch_in_metrics_records_and_after_json():
    measured = metrics()
    assert measured.gpu_metrics == (
        GpuMetrics(device=0, rank=0, throughput=0.8, chunk_ratio=250 / 350, shard_size=8000),
        GpuMetrics(device=3, rank=1, throughput=0.32, chunk_ratio=100 / 350, shard_size=3200),
    )
    made = record(measured)
    assert made.gpu_metrics == measured.gpu_metrics
    assert EpochRecord.from_json(json.loads(json.dumps(made.as_json()))).gpu_metrics == (
        made.gpu_metrics
    )


def test_processors_and_single_ranks_are_no_gpus():
    processor = RankMetrics(0.5, {}, 80, 10, 100.0, "cpu")
    gpu = RankMetrics(0.5, {}, 240, 30, 100.0, "cuda:1")
    mixed = metrics(per_rank=(processor, gpu))
    assert mixed.gpu_metrics == (
        GpuMetrics(device=1, rank=1, throughput=2.4, chunk_ratio=0.75, shard_size=240),
    )
    alone = metrics(per_rank=())
    assert alone.gpu_metrics == record(alone).gpu_metrics == ()


def test_a_gpu_without_work_has_no_throughput():
    idle = RankMetrics(math.nan, {}, 0, 0, 0.0, "cuda:0")
    (told, _) = metrics(per_rank=(idle, idle)).gpu_metrics
    assert math.isnan(told.throughput)
    assert math.isnan(told.chunk_ratio)
    assert told.shard_size == 0
