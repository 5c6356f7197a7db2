"""Timelines in files: what JSON, CSV and the page hold, and what comes back."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest
from hypothesis import given, settings, strategies as st

from flodl.errors import DataError
from flodl.monitor.resources import GpuSnapshot
from flodl.monitor.timeline import Timeline
from flodl.monitor.timeline_records import EventKind, TimelineEvent, TimelineSample
from tests.rows import each_row

MIB = 1024**2
HOSTILE = '</script><script>alert(1)</script> & "naïve", 学习\n$data'

rank = st.none() | st.integers(0, 9)
percent = st.none() | st.just(math.nan) | st.floats(0, 100)
size = st.integers(0, 2**50)
gpus = st.dictionaries(st.integers(0, 7), st.tuples(percent, size, size), max_size=3)
samples = st.lists(
    st.builds(
        lambda t, cpu, ram, devices, rank, busy: TimelineSample(
            t,
            cpu,
            ram,
            [
                GpuSnapshot(device=device, name=f"GPU №{device}", util=u, reserved=used, total=all_)
                for device, (u, used, all_) in devices.items()
            ],
            rank,
            busy,
        ),
        st.floats(0, 1e9),
        percent,
        st.none() | st.tuples(size, size),
        gpus,
        rank,
        st.none() | st.floats(0, 100),
    ),
    max_size=12,
)
# An infinite value comes back as nan, which a summary shows.
whole, number = st.integers(0, 10**9), st.floats(allow_infinity=False) | st.integers(-5, 5)
events = st.lists(
    st.builds(
        lambda t, one, rank: TimelineEvent(t, *one, rank),
        st.floats(0, 1e9),
        st.one_of(
            st.tuples(st.just("epoch_start"), st.fixed_dictionaries({"epoch": whole})),
            st.tuples(
                st.just("epoch_end"), st.fixed_dictionaries({"epoch": whole, "loss": number})
            ),
            st.tuples(st.sampled_from(["sync_start", "cpu_avg_start"]), st.just({})),
            st.tuples(
                st.sampled_from(["sync_end", "cpu_avg_end"]), st.fixed_dictionaries({"ms": number})
            ),
            st.tuples(st.just("anchor"), st.fixed_dictionaries({"from": whole, "to": whole})),
            st.tuples(st.just("idle"), st.fixed_dictionaries({"dev": whole, "ms": number})),
            st.tuples(
                st.just("custom"),
                st.fixed_dictionaries({"label": st.text() | st.just(HOSTILE)}),
            ),
            st.tuples(
                st.just("plan"),
                st.fixed_dictionaries({"window": whole, "counts": st.lists(whole, max_size=3)}),
            ),
            st.tuples(st.just("guard"), st.fixed_dictionaries({"rank": whole, "what": st.text()})),
        ),
        rank,
    ),
    max_size=12,
)


def example():
    """Two samples, the second with two GPUs, and events with awkward values."""
    return Timeline.from_samples(
        [
            TimelineSample(0.0),
            TimelineSample(
                100.5,
                12.25,
                (3 * MIB, 8 * MIB),
                [
                    GpuSnapshot(device=0, name="H200", util=math.nan, reserved=9, total=8),
                    GpuSnapshot(device=1, name="</script>", util=2.5, reserved=5, total=8),
                ],
            ),
        ],
        [
            TimelineEvent(1.0, "epoch_end", {"epoch": 0, "loss": math.nan}),
            TimelineEvent(100.5, "anchor", {"from": 3, "to": 4}),
            TimelineEvent(200.0, "custom", {"label": HOSTILE}),
        ],
    )


def test_json_has_the_short_names(tmp_path):
    example().save_json(tmp_path / "new" / "timeline.json")
    text = (tmp_path / "new" / "timeline.json").read_text("utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {
        "total_ms": 200.0,
        "devices": {"0": "H200", "1": "</script>"},
        "samples": [
            {"t": 0.0, "cpu": None, "ram": None, "gpus": []},
            {
                "t": 100.5,
                "cpu": 12.25,
                "ram": [3 * MIB, 8 * MIB],
                "gpus": [
                    {"d": 0, "u": None, "vu": 8, "va": 9, "vt": 8},
                    {"d": 1, "u": 2.5, "vu": 5, "va": 5, "vt": 8},
                ],
            },
        ],
        "events": [
            {"t": 1.0, "k": "epoch_end", "epoch": 0, "loss": None},
            {"t": 100.5, "k": "anchor", "from": 3, "to": 4},
            {"t": 200.0, "k": "custom", "label": HOSTILE},
        ],
    }


@settings(max_examples=30)
@given(samples, events)
def test_what_json_holds_comes_back(tmp_path_factory, samples, events):
    path = tmp_path_factory.mktemp("json") / "timeline.json"
    kept = Timeline.from_samples(samples, events)
    kept.save_json(path)
    back = Timeline.load(path)
    assert back.samples == kept.samples
    assert repr(back.summary()) == repr(kept.summary())  # nan is not equal to itself
    assert [event.as_json() for event in back.events] == [event.as_json() for event in kept.events]
    before = path.read_bytes()
    back.save_json(path)
    assert path.read_bytes() == before


def test_a_loss_that_was_not_finite_comes_back_as_nan(tmp_path):
    example().save_json(tmp_path / "timeline.json")
    loss = Timeline.load(tmp_path / "timeline.json").events[0].fields["loss"]
    assert math.isnan(loss)


def test_csv_has_a_row_per_sample_and_event_in_the_order_of_time(tmp_path):
    example().save_csv(tmp_path / "timeline.csv")
    with (tmp_path / "timeline.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == [
        *("t_ms", "cpu_pct", "ram_used", "ram_total"),
        *("gpu0_pct", "gpu0_vram_used", "gpu0_vram_alloc", "gpu0_vram_total"),
        *("gpu1_pct", "gpu1_vram_used", "gpu1_vram_alloc", "gpu1_vram_total"),
        *("event", "fields"),
    ]
    load = ["12.25", str(3 * MIB), str(8 * MIB), "", "8", "9", "8", "2.5", "5", "5", "8"]
    assert rows[1:] == [
        ["0", *[""] * 13],
        ["1", *[""] * 11, "epoch_end", '{"epoch": 0, "loss": null}'],
        ["100.5", *load, "", ""],
        ["100.5", *[""] * 11, "anchor", '{"from": 3, "to": 4}'],
        ["200", *[""] * 11, "custom", json.dumps({"label": HOSTILE}, ensure_ascii=False)],
    ]


@given(samples, events)
@pytest.mark.slow
def test_every_value_stands_in_the_csv(tmp_path_factory, samples, events):
    path = tmp_path_factory.mktemp("csv") / "timeline.csv"
    kept = Timeline.from_samples(samples, events)
    kept.save_csv(path)
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    measured = [row for row in rows if not row["event"]]
    for sample, row in zip(kept.samples, measured, strict=True):
        assert math.isclose(float(row["t_ms"]), sample.t_ms, rel_tol=1e-14)
        assert (row["cpu_pct"] == "") == (sample.cpu is None)
        assert [row["ram_used"], row["ram_total"]] == [*map(str, sample.ram or ("", ""))]
        for gpu in sample.gpus:
            assert int(row[f"gpu{gpu.device}_vram_alloc"]) == gpu.reserved
    happened = [(row["event"], json.loads(row["fields"] or "{}")) for row in rows if row["event"]]
    assert happened == [(event.kind, event.fields_as_json()) for event in kept.events]


@each_row(
    "text",
    ["", "[]", "{", "{}", '{"total_ms": 1, "samples": [{"t": 0}], "events": []}',
     '{"total_ms": 1, "samples": [], "events": [{"t": 0, "k": "party"}]}',
     '{"total_ms": 1, "samples": [{"t":0,"cpu":"x","ram":null,"gpus":[]}], "events": []}',
     '{"total_ms": 1, "samples": [], "events": [{"t": 0, "k": "sync_start", "r": "one"}]}',
     '{"total_ms": null, "samples": [], "events": []}', "\udcff"],
)  # fmt: skip
def test_a_file_that_is_no_timeline_is_refused_by_name(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=r"other\.json is not a timeline .*Timeline\.save_json"):
        Timeline.load(path)


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Timeline.load(tmp_path / "none.json")


def test_the_page_fetches_nothing_and_survives_hostile_names(tmp_path):
    example().save_html(tmp_path / "new" / "t.html", title="</title><script>x()</script> $data")
    text = (tmp_path / "new" / "t.html").read_text("utf-8")
    assert not re.search(r"https?:", re.sub(r"'sha256-[^']*'", "", text).lower())
    assert not re.search(r"@import|url\(|\bimport\(|fetch\(|XMLHttpRequest|WebSocket|src=", text)
    assert "</title><script>x()" not in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    form = json.loads(data, parse_constant=pytest.fail)["timeline"]
    example().save_json(tmp_path / "t.json")
    assert form == json.loads((tmp_path / "t.json").read_text("utf-8"))
    assert list(form["devices"].values()) == ["H200", "</script>"]
    assert form["events"][2]["label"] == HOSTILE
    assert {event["k"] for event in form["events"]} < set(EventKind)
    assert text.count("</script>") == 2, "the data and the program"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "timeline.json"
    path.mkdir()
    for save in (Timeline().save_json, Timeline().save_csv, Timeline().save_html):
        with pytest.raises(OSError, match=r"timeline\.json"):
            save(path)
    assert list(tmp_path.iterdir()) == [path]
