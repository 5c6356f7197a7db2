"""The page made of a folder of runs."""

import pytest

from flodl.ddp_bench.records import RunFolder
from flodl.ddp_bench.report import report
from flodl.ddp_bench.summary import read_folder, summarise
from flodl.monitor import Timeline
from flodl.monitor.timeline_records import EventKind, TimelineEvent, TimelineSample
from tests.flodl.ddp_bench.figures import record, row

GPUS = ("GPU A", "GPU B")


@pytest.fixture
def filed(tmp_path):
    def write(run, *, seed="", timeline=None):
        folder = RunFolder(tmp_path / run.model / run.mode / seed)
        folder.begin(["gpu0: GPU A"])
        folder.finish(run)
        if timeline is not None:
            timeline.save_json(folder.path / "timeline.json")

    return write


def trained(mode, seconds, figure, **values):
    several = not mode.startswith("solo")
    rows = (
        row(
            eval=figure,
            train_ms=seconds * 1000,
            busy_ms=(seconds * 500, seconds * 900) if several else None,
            comm_ms=seconds * 20 if several else None,
            wait_ms=seconds * 80 if several else None,
        ),
    )
    devices = GPUS if several else (GPUS[int(mode[-1])],)
    transport = "nccl" if several else "nobody"
    defaults = {"model": "resnet-graph", "devices": devices, "transport": transport}
    return record(mode=mode, rows=rows, **(defaults | values))


def page_of(folder):
    return report(*read_folder(folder))


def test_one_seed_is_not_enough_for_a_verdict(filed, tmp_path):
    filed(trained("solo-0", 3126.5, 0.9166))
    filed(trained("solo-1", 3701.6, 0.9169))
    filed(trained("nccl-cadence", 2649.7, 0.9242))
    page = page_of(tmp_path)
    assert "| 64% | not enough data |" in page
    assert "(1 of 3 seeds of nccl-cadence)" in page
    assert "--seeds 3" in page


def test_ranks_with_different_models_are_broken_whatever_they_reach(filed, tmp_path):
    filed(trained("solo-0", 30, 0.95))
    rows = (row(eval=0.96, ranks_apart=1e-7), row(eval=0.96, ranks_apart=0.02))
    filed(record(model="resnet-graph", mode="nccl-cadence", devices=GPUS, rows=rows))
    page = page_of(tmp_path)
    assert "| BROKEN |" in page
    assert "- nccl-cadence: the ranks hold different models: 0.02 of their norm apart" in page


@pytest.mark.case("distributed", 55)
def test_ideal_time_efficiency_and_verdict_are_in_the_report(filed, tmp_path):
    for seed in (1, 2, 3):
        for mode, seconds, figure in (
            ("solo-0", 3126.5, 0.9166),
            ("solo-1", 3701.6, 0.9169),
            ("nccl-cadence", 2649.7, 0.9242),
        ):
            filed(trained(mode, seconds, figure, config={"seed": seed}), seed=f"seed-{seed}")
    page = page_of(tmp_path)
    assert "not enough data" not in page
    assert "| nccl-cadence | +0.0076 | 1.000 | 1.18× | 1694.92 s | 64% | SLOW |" in page
    assert "1.00 : 1.18" in page
    assert "Best accuracy: **nccl-cadence** (0.9242)." in page
    assert "Fastest within 2% of solo-0: **nccl-cadence**" in page
    assert "| nccl-cadence | 0.5 | 0.9242 ±0 (3 seeds) | +0.0117 (0.9125) | 2649.70 |" in page
    assert "| 50% / 90% | – | 2.0% | 8.0% |" in page
    assert "- gpu0: GPU A\n- gpu1: GPU B" in page


def test_the_second_device_must_be_measured_unless_it_is_like_the_first(filed, tmp_path):
    filed(trained("solo-0", 100, 0.9))
    filed(trained("cpu-async", 60, 0.9))
    (summary,) = summarise(read_folder(tmp_path)[0])
    assert summary.ideal(2) is None
    filed(trained("cpu-async", 60, 0.9, devices=("GPU A", "GPU A")))
    (summary,) = summarise(read_folder(tmp_path)[0])
    assert summary.ideal(2) == pytest.approx(50)


@pytest.mark.parametrize("data", ["packaged", "synthetic"])
def test_other_data_is_flagged_and_not_compared_with_the_reference(filed, tmp_path, data):
    filed(trained("solo-0", 10, 0.5, data=data))
    filed(trained("cpu-sync", 10, 0.5, data=data, devices=("GPU A", "GPU A")))
    page = page_of(tmp_path)
    assert f"## resnet-graph ({data} data)" in page
    assert "0.9125" not in page
    assert f"- {data} data" in page
    if data == "synthetic":
        assert "PASS" not in page
        assert "SLOW" not in page
        assert "Best" not in page


def test_runs_that_did_not_end_are_listed_with_their_last_words(tmp_path):
    for name, words in (("sync", "epoch 3: loss=1, eval=1, k=1, time=1s"), ("solo-0", "")):
        folder = RunFolder(tmp_path / "mlp" / name)
        folder.begin(["gpu0: A"])
        if words:
            folder.tell(words)
    failed = RunFolder(tmp_path / "mlp" / "cpu-async")
    failed.begin([])
    failed.tell("# failed: rank 1 ended with signal SIGKILL")
    page = page_of(tmp_path)
    assert "failed: rank 1 ended with signal SIGKILL" in page
    assert "ended after `epoch 3: loss=1" in page
    assert "ended before an epoch" in page
    assert "No complete run was found." in page


def test_seeds_are_put_together(filed, tmp_path):
    for seed, figure in ((1, 0.90), (2, 0.92)):
        filed(trained("solo-0", 10, figure, config={"seed": seed}), seed=f"seed-{seed}")
    page = page_of(tmp_path)
    assert "| solo-0 | 0.5 | 0.91 ±0.01 (2 seeds) |" in page


def test_idle_times_calibration_and_overlap_are_told(filed, tmp_path):
    events = [
        TimelineEvent(0.0, EventKind.EPOCH_START, {"epoch": 0}, 0),
        TimelineEvent(5_000.0, EventKind.SYNC_START, {}, 0),
        TimelineEvent(5_100.0, EventKind.ANCHOR, {"from": 10, "to": 15}, 0),
        TimelineEvent(6_000.0, EventKind.SYNC_START, {}, 0),
        TimelineEvent(7_000.0, EventKind.EPOCH_START, {"epoch": 1}, 0),
        TimelineEvent(7_250.0, EventKind.EPOCH_END, {"epoch": 0, "loss": 1.0}, 1),
    ]
    samples = [
        TimelineSample(float(t), cpu=1.0, rank=0, busy=0.0 if 5_000 <= t < 6_000 else 90.0)
        for t in range(0, 8_000, 100)
    ]
    filed(trained("cpu-cadence", 10, 0.9), timeline=Timeline.from_samples(samples, events))
    page = page_of(tmp_path)
    run = "resnet-graph/cpu-cadence, seed 42"
    assert f"| {run} | rank 0 | 5.0 | 1000 | sync |" in page
    assert f"| {run} | 10 → 15 | – | 0 | 2 | 1000 | 1000 |" in page
    assert f"| {run} | 1 | 250 | 250 |" in page


def test_memory_is_told_where_there_is_a_gpu(filed, tmp_path):
    filed(trained("solo-0", 10, 0.9, vram={"peak": 2.0**31, "mean": 2.0**30}))
    assert "| resnet-graph/solo-0, seed 42 | 2.00 | 1.00 |" in page_of(tmp_path)


def test_a_folder_without_runs_gives_a_page_as_well(tmp_path):
    assert "No complete run was found." in page_of(tmp_path / "nothing")
