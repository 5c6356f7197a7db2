"""The swimlane page in a real browser: what it draws, says and answers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from flodl.monitor.resources import GpuSnapshot
from flodl.monitor.timeline import Timeline, merge_timelines
from flodl.monitor.timeline_records import TimelineEvent, TimelineSample

from .chromium import Browser
from .test_report import DRAWN, unnamed

GIB = 1024**3
TOTAL_MS = 60_000


def load(t_ms: float) -> TimelineSample:
    """A machine whose first GPU pauses from 20 s to 26 s and whose second is always busy."""
    wave = math.sin(t_ms / 1500)
    paused = 20_000 <= t_ms < 26_000
    return TimelineSample(
        t_ms,
        55 + 25 * wave,
        (int((6 + 1.5 * math.sin(t_ms / 20_000)) * GIB), 16 * GIB),
        [
            GpuSnapshot(0, "H200", 1.0 if paused else 88 + 8 * wave, int(60 * GIB), 141 * GIB),
            GpuSnapshot(1, "H200", 93 - 5 * wave, int(58 * GIB + GIB * wave), 141 * GIB),
        ],
    )


def happenings() -> list[TimelineEvent]:
    """Six epochs of ten seconds, an exchange each second, and one of everything else."""
    events = []
    for epoch in range(6):
        events.append(TimelineEvent(10_000 * epoch, "epoch_start", {"epoch": epoch}))
        end = {"epoch": epoch, "loss": 2 / (epoch + 1)}
        events.append(TimelineEvent(10_000 * epoch + 9_800, "epoch_end", end))
    for second in range(60):
        events.append(TimelineEvent(1000 * second, "sync_start"))
        events.append(TimelineEvent(1000 * second + 120, "sync_end", {"ms": 120}))
    events += [
        TimelineEvent(12_000, "cpu_avg_start"),
        TimelineEvent(12_400, "cpu_avg_end", {"ms": 400.0}),
        TimelineEvent(15_000, "anchor", {"from": 10, "to": 12}),
        TimelineEvent(30_000, "throttle", {"rank": 1}),
        TimelineEvent(45_000, "custom", {"label": "learning rate ÷ 10"}),
        TimelineEvent(50_000, "idle", {"dev": 1, "ms": 1500}),
    ]
    return events


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timeline") / "timeline.html"
    samples = [load(100.0 * index) for index in range(TOTAL_MS // 100 + 1)]
    Timeline.from_samples(samples, happenings()).save_html(path, title="two GPUs")
    return path


def texts(browser: Browser, selector: str) -> list[str]:
    found = browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)"
    )
    return [" ".join(text.split()) for text in found]


def view(browser: Browser) -> list[float]:
    """First and last second shown, which is the same on all charts."""
    ranges = browser.evaluate("page.timeline.charts.map(one => one.range)")
    assert all(one == ranges[0] for one in ranges), ranges
    return list(ranges[0])


def show(browser: Browser, start: float, end: float) -> None:
    browser.evaluate(f"page.timeline.focus.zoom([{start}, {end}])")
    browser.settle()


def rows(browser: Browser) -> dict[str, str]:
    """What the read-out says at the moment pointed at."""
    found = browser.evaluate(
        "[...document.querySelectorAll('#stage .readout:not([hidden]) span:has(> i)')]"
        ".map(one => [one.querySelector('i').textContent, one.lastChild.textContent])"
    )
    return dict(found)


def point(browser: Browser, t_ms: float) -> None:
    """Move the mouse to a moment, in the middle of the lanes."""
    left, top = browser.evaluate(
        "(r => [r.left, r.top])(document.getElementById('stage').getBoundingClientRect())"
    )
    x = browser.evaluate(f"page.timeline.lanes.scales.px({t_ms / 1000})")
    browser.point(left + x, top + 40)


PIXELS = r"""
((name, charts) => charts.reduce((sum, chart) => {
  const canvas = chart.canvas.querySelector('canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const [r, g, b] = ink.get(name).match(/[\d.]+/g).map(Number);
  const far = (at) =>
    Math.abs(data[at] - r) + Math.abs(data[at + 1] - g) + Math.abs(data[at + 2] - b);
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 60 && far(at) < 14) sum++;
  return sum;
}, 0))
"""


def pixels(browser: Browser, name: str, charts: str = "page.timeline.charts") -> int:
    """How many pixels of charts have a colour of the style sheet, also a translucent one."""
    return int(browser.evaluate(f"{PIXELS}('{name}', {charts})"))


def lane_names(browser: Browser) -> list[str]:
    return list(browser.evaluate("page.timeline.lanes.lanes.map(lane => lane.name)"))


def titles(browser: Browser) -> list[str]:
    return texts(browser, "#timeline .chart h3")


def test_lanes_and_loads_of_a_run(browser, page):
    browser.open(page)
    assert browser.evaluate("document.title") == "two GPUs"
    assert texts(browser, "h1, #facts") == ["two GPUs", "1m00s · 601 samples · 138 events"]
    assert lane_names(browser) == [
        *("Phases", "Epochs", "Sync", "CPU average", "Anchor changes", "Throttles", "Custom"),
        "Idle",
    ]
    assert titles(browser) == [
        *("What happened", "CPU", "RAM", "GPU 0, memory 141.0 GB", "GPU 1, memory 141.0 GB"),
    ]
    assert browser.console == []  # the browser has an opinion on reading many pixels
    for color in ("soft", "series-0", "series-1", "series-2", "series-6"):
        assert pixels(browser, color, "[page.timeline.lanes]") > 8, color
    for color, count in (("series-0", 4), ("series-1", 2)):
        for chart in range(4 - count, 4):
            assert pixels(browser, color, f"[page.timeline.loads[{chart}]]") > 8, (color, chart)
    assert browser.requests == [page.as_uri()]


def test_the_mouse_reads_every_lane_and_every_load(browser, page):
    browser.open(page)
    point(browser, 45_000)
    assert texts(browser, ".readout:not([hidden]) b") == ["45.0 s"]
    said = rows(browser)
    assert said["Epochs"] == "Epoch 5, loss 0.4000"
    assert said["Sync"] == "120ms"
    assert said["custom"] == "learning rate ÷ 10"
    assert (said["CPU"], said["RAM"]) == ("30 %", "7.2 GB / 16.0 GB")
    assert (said["GPU 0"], said["GPU 0 memory"]) == ("80 %", "60.0 GB / 141.0 GB")
    assert browser.evaluate("page.timeline.charts.every(one => one.crosshair)"), "on all charts"
    browser.point(2, 2)
    assert texts(browser, ".readout:not([hidden])") == []


def test_the_keyboard_reads_zooms_pans_and_speaks(browser, page):
    browser.open(page)
    while browser.evaluate("document.activeElement.id") != "stage":
        browser.press("Tab")
    stage = "document.getElementById('stage')"
    browser.press("End")
    spoken = f"{stage}.getAttribute('aria-valuetext')"
    assert browser.evaluate(spoken).startswith("60.0 s, ")
    browser.evaluate("page.timeline.focus.point(30, page.timeline.lanes)")
    browser.settle()
    assert "Epochs Epoch 4, loss 0.5000" in browser.evaluate(spoken)
    assert "throttle throttle rank 1" in browser.evaluate(spoken)
    browser.press("ArrowRight")
    assert browser.evaluate(f"{stage}.getAttribute('aria-valuenow')") == "30.12", (
        "the exchange ends"
    )
    browser.press("ArrowLeft")
    browser.press("+")
    assert view(browser) == [15, 45]
    browser.press("ArrowRight", shift=True)
    assert view(browser) == [21, 51]
    for _ in range(3):
        browser.press("ArrowRight", shift=True)
    assert view(browser) == [30, 60], "no further than the end"
    browser.press("0")
    assert view(browser) == [0, 60]
    browser.press("Escape")
    assert browser.evaluate("page.timeline.focus.x") is None
    assert browser.console == []


def test_every_control_has_a_name_and_the_theme_a_button(browser, page):
    browser.open(page, dark=True)
    assert unnamed(browser) == []
    background = "getComputedStyle(document.body).backgroundColor"
    assert browser.evaluate(background) == "rgb(14, 17, 22)"
    browser.evaluate("document.getElementById('theme').click()")
    browser.settle()
    assert texts(browser, "#theme") == ["Theme: light"]
    assert browser.evaluate(background) == "rgb(245, 246, 248)"
    assert pixels(browser, "series-0") > 100, "the lanes are drawn in the new colours"
    browser.evaluate("localStorage.clear()")


def test_a_drag_zooms_and_a_drag_with_shift_moves_the_view(browser, page):
    browser.open(page)
    left, top = browser.evaluate(
        "(r => [r.left, r.top])(document.getElementById('stage').getBoundingClientRect())"
    )
    at = {t: left + browser.evaluate(f"page.timeline.lanes.scales.px({t})") for t in (20, 40)}
    browser.drag(at[20], top + 40, at[40], top + 40)
    assert view(browser) == pytest.approx([20, 40], abs=0.1)
    held = {"button": "left", "buttons": 1, "modifiers": 8}
    middle, quarter = ((at[20] + at[40]) / 2, 100)
    for kind, x in [("mousePressed", middle), ("mouseMoved", middle + quarter)]:
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=top + 40, clickCount=1, **held)
    browser.call(
        "Input.dispatchMouseEvent", type="mouseReleased", x=middle + quarter, y=top + 40, **held
    )
    browser.settle()
    box = browser.evaluate("(({left, right}) => right - left)(page.timeline.lanes.scales.box)")
    assert view(browser)[0] == pytest.approx(20 - 20 * quarter / box, abs=0.1)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_both_themes_fit_every_window(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    back = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(14, 17, 22)" if dark else "rgb(245, 246, 248)")
    assert browser.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert pixels(browser, "series-0", "[page.timeline.loads[0]]") > 8
    assert browser.console == []


def test_hostile_labels_are_only_text(browser, tmp_path):
    names = ["</script><script>window.stolen=1</script>", "<img src=x onerror=window.stolen=1>"]
    names += ["naïve 学习 🙂", "", "x" * 400]
    events = [TimelineEvent(float(i), "custom", {"label": n}) for i, n in enumerate(names)]
    snapshot = GpuSnapshot(0, names[0], 1.0, 1, 2)
    samples = [TimelineSample(0.0, 1.0, None, [snapshot])]
    Timeline.from_samples(samples, events).save_html(tmp_path / "t.html", title=names[0])
    browser.open(tmp_path / "t.html", width=500)
    assert browser.evaluate("document.title") == names[0]
    assert names[0] in texts(browser, ".plot-foot")
    for moment, name in enumerate(names[:3]):
        point(browser, moment)
        assert name in rows(browser).values()
    assert browser.evaluate("window.stolen ?? null") is None
    assert browser.console == []


def test_a_timeline_without_samples_or_events(browser, tmp_path):
    Timeline.from_samples([]).save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    assert texts(browser, "#facts") == ["1ms · 0 samples · 0 events"]
    assert (lane_names(browser), titles(browser)) == (["Epochs"], ["What happened"])
    point(browser, 0.5)
    assert rows(browser) == {}
    assert browser.console == []


def test_holes_and_single_samples_are_drawn(browser, tmp_path):
    values = [50.0, None, 60.0, None, None, 70.0, 70.0]
    samples = [TimelineSample(100.0 * i, value) for i, value in enumerate(values)]
    Timeline.from_samples(samples).save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    (line,) = browser.evaluate(f"{DRAWN}(page.timeline.loads)")
    assert [len(run) for run in line["raw"]] == [1, 1, 2]
    assert browser.console == []


@pytest.mark.slow
def test_a_hundred_thousand_samples_keep_their_peaks_and_draw_little(browser, tmp_path):
    samples = [
        TimelineSample(100.0 * i, 99.0 if i == 54_321 else 20.0 + i % 7) for i in range(100_000)
    ]
    Timeline.from_samples(samples).save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    drawn = browser.evaluate("page.timeline.loads[0].lines[0].y")
    assert len(drawn) <= 2 * 1400 + 4
    assert max(drawn) == 99.0
    assert min(drawn) == 20.0
    point(browser, 5_432_100)
    show(browser, 5432, 5432.2)
    point(browser, 5_432_100)
    assert rows(browser)["CPU"] == "99 %"
    assert browser.console == []


def of_rank(rank: int) -> Timeline:
    """A fast and a slow rank, which exchange every second; the fast one waits before it."""
    events = [
        TimelineEvent(0.0, "epoch_start", {"epoch": 0}),
        TimelineEvent(20_000.0, "epoch_end", {"epoch": 0, "loss": 0.5}),
    ]
    for second in range(20):
        at = 1000.0 * second + 900
        if rank == 0:
            events.append(TimelineEvent(at - 900, "plan", {"window": second, "counts": [25, 10]}))
            events.append(TimelineEvent(at, "wait", {"ms": 120.0}))
        events.append(TimelineEvent(at, "sync_start"))
        events.append(TimelineEvent(at + 60, "sync_end", {"ms": 60.0}))
    if rank == 1:
        events.append(TimelineEvent(5000.0, "skip", {"count": 1}))
        events.append(TimelineEvent(8000.0, "guard", {"rank": 1, "what": "not finite"}))
        events.append(TimelineEvent(12_000.0, "restart", {"count": 1}))
    samples = [
        TimelineSample(100.0 * n, 60.0, (GIB, 4 * GIB), (), rank, 80.0 + 15 * rank)
        for n in range(200)
    ]
    return Timeline.from_samples(samples, events)


def test_every_rank_has_a_lane(browser, tmp_path):
    page = tmp_path / "ranks.html"
    merged = merge_timelines([of_rank(0), of_rank(1)])
    merged.save_html(page, title="two ranks")
    merged.save_json(page.with_suffix(".json"))
    browser.open(page)
    assert lane_names(browser) == [
        *("Phases", "Epochs", "Windows", "Rank 0", "Rank 1", "Guard", "Skipped averages"),
        "Restarts",
    ]
    assert titles(browser) == ["What happened", "Busy", "CPU", "RAM"]
    assert texts(browser, ".lanes .plot-foot span:has(> .dot)") == [
        "waiting",
        "sync",
        "CPU average",
    ]
    # 2 of the epoch and 20 exchanges of 2 events, which both ranks tell of; 20 plans, 20 waits, 3.
    assert texts(browser, "#facts") == ["20.0s · 400 samples · 85 events"]
    summary = Timeline.load(page.with_suffix(".json")).summary()
    assert (summary.event_count, summary.sync_count, summary.sync_avg_ms) == (85, 20, 60.0)
    point(browser, 7_930)
    said = rows(browser)
    assert said["Windows"] == "Window 7, 25 : 10 batches"
    assert (said["Rank 0"], said["Rank 0 busy"]) == ("sync 60ms", "80 %")
    assert (said["Rank 1"], said["Rank 1 busy"]) == ("sync 60ms", "95 %")
    point(browser, 8_000)
    assert rows(browser)["guard"] == "rank 1: guard rank 1, not finite"
    show(browser, 7, 8)
    point(browser, 7_850)
    assert rows(browser)["Rank 0"] == "wait 120ms"
    assert browser.console == []
    browser.evaluate("page.timeline.focus.zoom(null)")
    browser.settle()
    for color in ("series-7", "series-1", "series-6", "series-0"):
        assert pixels(browser, color, "[page.timeline.lanes]") > 8, color
    assert texts(browser, ".chart:nth-child(2) .legend button") == ["Rank 0 busy", "Rank 1 busy"]


def test_a_rank_alone_that_tells_how_busy_it_is_has_a_curve(browser, tmp_path):
    of_rank(0).save_html(tmp_path / "rank.html")
    browser.open(tmp_path / "rank.html", width=360)
    assert lane_names(browser) == ["Phases", "Epochs", "Windows", "Waiting", "Sync"]
    assert titles(browser) == ["What happened", "Busy", "CPU", "RAM"]
    point(browser, 500)
    assert rows(browser)["Busy"] == "80 %"
    assert browser.console == []


def test_every_lane_and_curve_has_a_name_and_a_scale(browser, page):
    browser.open(page)
    assert set(lane_names(browser)) <= set(browser.evaluate("page.timeline.lanes.ticks"))
    ends = browser.evaluate("page.timeline.loads.map(one => one.ticks.at(-1))")
    assert ends == ["100 %", "16.0 GB", "100 %", "100 %"]
    legends = texts(browser, "#timeline .legend:not([hidden]) button")
    assert legends == ["GPU 0", "GPU 0 memory", "GPU 1", "GPU 1 memory"]


def test_the_set_up_has_a_lane(browser, tmp_path):
    events = [
        TimelineEvent(4000.0, "epoch_start", {"epoch": 0}),
        TimelineEvent(9000.0, "epoch_end", {"epoch": 0, "loss": 0.5}),
        TimelineEvent(10_000.0, "custom", {"label": "done"}),
    ]
    Timeline.from_samples([TimelineSample(0.0, 50.0)], events).save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    point(browser, 1000)
    assert rows(browser)["Phases"] == "Set-up, 4.0s"
    point(browser, 5000)
    assert rows(browser)["Phases"] == "Training, 5.0s"
    point(browser, 9500)
    assert rows(browser)["Phases"] == "After the last epoch, 1.0s"
    assert pixels(browser, "soft", "[page.timeline.lanes]") > 100
    assert browser.console == []


def test_what_all_ranks_tell_of_happened_once(browser, tmp_path):
    def rank(number: int) -> Timeline:
        events = [TimelineEvent(500.0 + number, "custom", {"label": "rate lowered"})]
        events += [TimelineEvent(600.0 + at, "restart", {"count": 1}) for at in (0, 100)]
        if number == 1:
            events.insert(0, TimelineEvent(300.0, "custom", {"label": "only here"}))
        return Timeline.from_samples([], events)

    merged = merge_timelines([rank(0), rank(1), rank(2)])
    merged.save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    count = merged.summary().event_count
    assert count == 4
    assert texts(browser, "#facts")[0].endswith(f" · {count} events"), "summary and page agree"
    point(browser, 500)
    assert rows(browser)["custom"] == "rate lowered"
    point(browser, 300)
    assert rows(browser)["custom"] == "rank 1: only here"
