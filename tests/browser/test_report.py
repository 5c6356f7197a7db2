"""The report page in a real browser: what its script draws, and how it answers."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flodl.monitor import (
    EpochMetrics,
    GpuSnapshot,
    Monitor,
    RankMetrics,
    RankSummary,
    ResourceSample,
    Status,
)
from flodl.monitor.records import EpochRecord, StepSeries
from flodl.monitor.report import HtmlSink
from tests.rows import sampled

from .chromium import Browser

GIB = 1024**3
CONFIG = {
    "lr": {"value": 0.002, "origin": "train/fdl.yml:9:13"},
    "model": {"width": {"value": 64, "origin": "default"}, "tags": {"value": ["a", "b"]}},
}


def metrics(epoch: int, epochs: int) -> dict[str, float]:
    """Six curves as a run would draw them."""
    at = epoch / epochs
    return {
        "loss": 2 * math.exp(-4 * at) + 0.01,
        "val_loss": 2 * math.exp(-3 * at) + 0.05,
        "accuracy": 1 - 0.9 * math.exp(-4 * at),
        "val_accuracy": 0.98 - 0.9 * math.exp(-4 * at),
        "lr": 0.002 * (1 - at),
        "grad_norm": 3 - 2 * at,
    }


def report(
    folder: Path, epochs: int, *, status: Status = "complete", values=metrics, **facts: object
) -> Path:
    """Train for show and return the page."""
    monitor = Monitor(epochs, terminal=False)
    monitor.set_identity(label="digits", run="2026-05-04_13-37", hash="4f9a2c81d0e77b6a")
    monitor.set_metadata(facts)
    for epoch in range(epochs):
        monitor.log(epoch, 0.5, values(epoch, epochs))
    monitor.save_html(folder / "report.html")
    monitor.finish(status, timeout=60)
    return folder / "report.html"


def texts(browser: Browser, selector: str) -> list[str]:
    """Return the text of every element, spaces folded."""
    found = browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)"
    )
    return [" ".join(text.split()) for text in found]


def count(browser: Browser, selector: str) -> int:
    return int(browser.evaluate(f"document.querySelectorAll({selector!r}).length"))


def overflow(browser: Browser) -> int:
    """Pixels by which the page is wider than its window."""
    return int(browser.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


DRAWN = """
(charts => charts.flatMap(chart => (chart.scales ? chart.lines : []).map(line => {
  const { box, px, py } = chart.scales;
  const { axis } = chart.focus;
  const shown = (x, y) => axis.has(x) && Number.isFinite(y) && (!chart.logs || y > 0);
  const runs = ys => {
    const found = [[]];
    line.x.forEach((x, index) => {
      if (shown(x, ys[index])) found.at(-1).push([px(x), py(ys[index])]);
      else if (found.at(-1).length) found.push([]);
    });
    return found.filter(run => run.length);
  };
  const raw = line.raw || line.y;
  const off = y => y < box.top - 1 || y > box.bottom + 1;
  return {
    name: line.name, points: line.x.length, best: line.best,
    raw: runs(raw), smooth: line.raw ? runs(line.y) : null,
    broken: line.x.filter((x, index) => axis.has(x) && !Number.isFinite(raw[index])),
    outside: line.x.filter((x, index) => shown(x, raw[index]) && off(py(raw[index]))),
  };
})))
"""


def drawn(browser: Browser, chart: int | None = None) -> list[dict[str, Any]]:
    """What the charts show: per curve its name, runs of points in pixels, best and gaps."""
    which = "" if chart is None else f".slice({chart}, {chart + 1})"
    return list(browser.evaluate(f"{DRAWN}(page.charts{which})"))


def message(browser: Browser, chart: int = 0) -> str:
    """What a chart says instead of curves."""
    return str(browser.evaluate(f"page.charts[{chart}].note.textContent"))


def unnamed(browser: Browser) -> list[str]:
    """The controls of which a screen reader could say only what kind they are."""
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    kinds = {"button", "searchbox", "combobox", "slider", "checkbox", "link", "region", "img"}
    return [
        node["role"]["value"]
        for node in tree
        if not node["ignored"]
        and node["role"]["value"] in kinds
        and not node.get("name", {}).get("value", "").strip()
    ]


def click(browser: Browser, selector: str) -> None:
    browser.evaluate(f"document.querySelector({selector!r}).click()")
    browser.settle()


def test_a_finished_run(browser, tmp_path):
    page = report(tmp_path, 30, config=CONFIG, environment={"torch": "2.13.0"}, note="try 3")
    browser.open(page)
    assert browser.evaluate("document.title") == "digits · 2026-05-04_13-37"
    assert texts(browser, "h1, #status") == ["digits", "Complete"]
    facts = texts(browser, "#facts > *")
    assert facts[:2] == ["run 2026-05-04_13-37", "model hash 4f9a2c81"]
    assert facts[2].startswith("started ")
    tiles = dict(zip(texts(browser, ".tile h3"), texts(browser, ".tile"), strict=True))
    assert list(tiles) == [*metrics(0, 30), "Duration", "Epochs"]
    assert tiles["val_loss"] == "val_loss0.1600best 0.1600 at epoch 30"
    assert tiles["lr"] == "lr6.67e-56.67e-5 to 0.002000"
    assert tiles["Epochs"] == "Epochs30 / 30all trained"
    assert texts(browser, ".chart h3") == ["Loss", "Accuracy", "lr", "grad_norm"]
    assert [one["name"] for one in drawn(browser)] == list(metrics(0, 30))
    assert texts(browser, ".legend:not([hidden]) button") == list(metrics(0, 30))[:4]
    assert texts(browser, "#epochs thead th") == ["Epoch", *metrics(0, 30), "Time"]
    assert count(browser, "#epochs tbody tr") == 30
    first = ["1", "2.0100", "2.0500", "0.1000", "0.08000", "0.002000", "3.0000", "500ms"]
    assert texts(browser, "#epochs tbody tr:last-child > *") == first, "the newest comes first"
    assert count(browser, "#epochs b") == 4
    assert "Time per epoch" in texts(browser, ".gauge h3")
    assert texts(browser, "details summary") == [
        "Configuration3 values",
        "Environment1 values",
        "Metadata1 values",
    ]
    rows = [texts(browser, f"details:first-child tbody tr:nth-child({n}) > *") for n in (1, 2, 3)]
    assert rows == [
        ["lr", "0.002", "train/fdl.yml:9:13"],
        ["model.width", "64", "default"],
        ["model.tags.value", '["a","b"]', "–"],
    ]
    assert browser.console == []
    assert browser.requests == [page.as_uri()], "opened from a file, it asks for nothing else"


@pytest.mark.parametrize(("epochs", "width"), sampled((1, 1000), (360, 800, 1400)))
def test_one_epoch_or_a_thousand_fit_every_window(browser, tmp_path, epochs, width):
    browser.open(report(tmp_path, epochs, config=CONFIG), width=width)
    lengths = [[len(run) for run in one["raw"]] for one in drawn(browser)]
    assert lengths == [[1]] * 6 if epochs == 1 else all(len(one) == 1 for one in lengths)
    assert len(lengths) == 6
    assert count(browser, "#epochs tbody tr") == epochs
    assert overflow(browser) <= 0
    assert browser.console == []


def test_a_run_without_metrics(browser, tmp_path):
    browser.open(report(tmp_path, 3, values=lambda *_: {}))
    assert texts(browser, "#no-metrics:not([hidden])") == ["This run recorded no metrics."]
    assert count(browser, ".chart") == 0
    assert texts(browser, "#epochs thead th") == ["Epoch", "Time"]
    assert browser.console == []


def test_a_run_without_an_epoch(browser, tmp_path):
    monitor = Monitor(3, terminal=False)
    monitor.save_html(tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert texts(browser, "h1, #status") == ["Training run", "Running"]
    assert texts(browser, "#no-metrics:not([hidden])") == ["No epoch has finished yet."]
    assert texts(browser, ".tile strong") == ["0ms", "0 / 3"]
    assert browser.console == []
    monitor.finish()


def test_values_that_are_not_finite(browser, tmp_path):
    def values(epoch, _):
        return {"loss": math.nan if epoch in (2, 5) else 1 / (epoch + 1), "lost": math.inf}

    browser.open(report(tmp_path, 6, status="diverged", values=values))
    assert texts(browser, "#status") == ["Diverged"]
    [loss] = drawn(browser, 0)
    assert [len(run) for run in loss["raw"]] == [2, 2], "the gaps split the curve"
    assert loss["broken"] == [3, 6]
    assert message(browser, 1) == "no finite value"
    assert texts(browser, ".tile.sparked strong") == ["nan", "inf"]
    assert texts(browser, "#epochs tbody tr:nth-child(4) td")[:2] == ["nan", "inf"]
    assert browser.console == []


def test_hostile_names_are_only_text(browser, tmp_path):
    names = ["</script><script>window.stolen=1</script>", "<img src=x onerror=window.stolen=1>"]
    names += ["__proto__", "constructor", "naïve 学习 🙂", "", "x" * 400]
    page = report(
        tmp_path,
        2,
        values=lambda *_: dict.fromkeys(names, 1.0),
        config={name: {"value": name, "origin": name} for name in names},
    )
    browser.open(page, width=800)
    assert texts(browser, "#epochs thead th")[1:-1] == names
    assert count(browser, "details tbody tr") == len(names)
    assert browser.evaluate("window.stolen ?? null") is None
    assert overflow(browser) <= 0
    assert browser.console == []


def test_the_mouse_reads_values_on_all_charts_at_once(browser, tmp_path):
    browser.open(report(tmp_path, 11))
    left, top, width, height = browser.evaluate(
        "(r => [r.left, r.top, r.width, r.height])"
        "(document.querySelector('.plot').getBoundingClientRect())"
    )
    browser.point(left + width - 5, top + height / 2)
    assert texts(browser, ".readout:not([hidden]) b") == ["Epoch 11"]
    assert texts(browser, ".readout:not([hidden]) > span") == ["loss0.06270", "val_loss0.1808"]
    crosshairs = "page.charts.filter(one => one.crosshair).length"
    assert browser.evaluate(crosshairs) == 4
    browser.point(left + width - 5, 1)
    assert count(browser, ".readout:not([hidden])") == 0
    assert browser.evaluate(crosshairs) == 0


def test_the_keyboard_reads_values_aloud(browser, tmp_path):
    browser.open(report(tmp_path, 11))
    browser.evaluate("document.querySelector('.plot').focus()")
    spoken = "document.querySelector('.plot').getAttribute('aria-valuetext')"
    browser.press("ArrowRight")
    assert browser.evaluate(spoken) == "Epoch 1, loss 2.0100, val_loss 2.0500"
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.evaluate(spoken).startswith("Epoch 3, ")
    browser.press("End")
    assert browser.evaluate(spoken).startswith("Epoch 11, ")
    browser.press("ArrowLeft")
    assert browser.evaluate(spoken).startswith("Epoch 10, ")
    browser.press("Escape")
    assert browser.evaluate("page.charts.some(one => one.crosshair)") is False


def test_charts_are_described_for_those_who_do_not_see_them(browser, tmp_path):
    browser.open(report(tmp_path, 11))
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in tree if not node["ignored"]]
    sliders = [node for node in shown if node["role"]["value"] == "slider"]
    assert [node["name"]["value"] for node in sliders] == [
        "Smoothing",
        "Loss",
        "Accuracy",
        "lr",
        "grad_norm",
    ]
    assert sliders[1]["description"]["value"] == (
        "loss: from 2.0100 at epoch 1 to 0.06270 at epoch 11, best 0.06270 at epoch 11. "
        "val_loss: from 2.0500 at epoch 1 to 0.1808 at epoch 11, best 0.1808 at epoch 11."
    )
    unnamed = [
        node
        for node in shown
        if node["role"]["value"] in ("button", "slider", "table", "region")
        and not node["name"]["value"]
    ]
    assert unnamed == []


def test_the_legend_hides_a_curve(browser, tmp_path):
    browser.open(report(tmp_path, 11))
    button = ".chart:first-child .legend button"
    click(browser, button)
    assert [one["name"] for one in drawn(browser, 0)] == ["val_loss"]
    assert browser.evaluate(f"document.querySelector('{button}').ariaPressed") == "false"
    click(browser, f"{button}[aria-pressed=true]")
    assert message(browser) == "all curves are hidden"
    click(browser, button)
    assert [one["name"] for one in drawn(browser, 0)] == ["loss"]
    assert browser.console == []


def test_the_log_scale_is_offered_where_it_can_be_drawn(browser, tmp_path):
    def values(epoch, _):
        return {"loss": 10.0**-epoch, "elbo": -1.0 - epoch}

    browser.open(report(tmp_path, 5, values=values))
    disabled = browser.evaluate(
        "[...document.querySelectorAll('.chart')].map(one => "
        "[one.querySelector('h3').textContent, one.querySelector('.log').disabled])"
    )
    assert disabled == [["loss", False], ["elbo", True]]
    linear = drawn(browser, 0)
    click(browser, ".log")
    assert drawn(browser, 0) != linear
    heights = [y for _, y in drawn(browser, 0)[0]["raw"][0]]
    steps = [after - before for before, after in pairwise(heights)]
    assert max(steps) - min(steps) < 0.5, "equal factors are equal distances"
    labels = {"0.0001", "0.001", "0.01", "0.1", "1"}
    assert labels <= set(browser.evaluate("page.charts[0].ticks"))


def test_light_and_dark_follow_the_system_and_the_button(browser, tmp_path):
    page = report(tmp_path, 2)
    background = "getComputedStyle(document.body).backgroundColor"
    browser.open(page)
    browser.evaluate("localStorage.clear()")
    light = browser.evaluate(background)
    browser.open(page, dark=True)
    dark = browser.evaluate(background)
    assert light != dark
    seen = [(texts(browser, "#theme")[0], browser.evaluate(background))]
    for _ in range(3):
        click(browser, "#theme")
        seen.append((texts(browser, "#theme")[0], browser.evaluate(background)))
    assert seen == [
        ("Theme: auto", dark),
        ("Theme: light", light),
        ("Theme: dark", dark),
        ("Theme: auto", dark),
    ]


def test_a_long_table_opens_in_full_on_request(browser, tmp_path):
    browser.open(report(tmp_path, 1200, values=lambda epoch, _: {"loss": 1.0 / (epoch + 1)}))
    assert count(browser, "#epochs tbody tr") == 1000
    assert texts(browser, ".table-foot p")[0].startswith("The last 1000 of 1200 epochs.")
    click(browser, ".table-foot button")
    assert count(browser, "#epochs tbody tr") == 1200
    assert count(browser, ".table-foot button:not([hidden])") == 0


def test_the_machine_with_gpus(browser, tmp_path):
    gpus = tuple(GpuSnapshot(n, "H200", 80.0 + n, 60 * GIB, 139 * GIB) for n in range(2))
    load = ResourceSample(62.5, 5 * GIB, 24 * GIB, gpus)
    sink = HtmlSink(tmp_path / "report.html")
    sink.open(Monitor(2, terminal=False)._info)
    for epoch in range(2):
        sink.record(EpochRecord(epoch, 2, 1.0, (), None, load, 1.0, throughput=1.5))
    sink.flush()
    browser.open(tmp_path / "report.html")
    gauges = dict(zip(texts(browser, ".gauge h3"), texts(browser, ".gauge strong"), strict=True))
    assert gauges == {
        "Time per epoch": "1.0s",
        "Processor": "63 %",
        "Memory": "5.0 GB",
        "GPU 0": "80 %",
        "GPU 0 memory": "60.0 GB",
        "GPU 1": "81 %",
        "GPU 1 memory": "60.0 GB",
    }
    assert "Throughput1.5k samples/smean over epochs" in texts(browser, ".tile")
    assert browser.console == []


def test_a_drawing_cannot_run_scripts(browser, tmp_path):
    monitor = Monitor(1, terminal=False)
    space = "http://www.w3.org/2000/svg"
    script = "<script>parent.stolen = 1; window.stolen = 1</script>"
    monitor.set_svg(f'<svg xmlns="{space}" width="40" height="20">{script}<title>学</title></svg>')
    monitor.save_html(tmp_path / "report.html")
    monitor.finish()
    browser.open(tmp_path / "report.html")
    browser.evaluate("document.querySelector('.drawing img').decode()")
    assert browser.evaluate("document.querySelector('.drawing img').naturalWidth") == 40
    assert browser.evaluate("window.stolen ?? null") is None
    assert all(url.startswith(("file:", "data:")) for url in browser.requests)


def test_one_curve_alone(browser, tmp_path):
    names = ["loss", "encoder.loss", "encoder.kl_loss", "decoder.loss", "decoder.l1_loss"]
    browser.open(report(tmp_path, 4, values=lambda e, _: dict.fromkeys(names, 1.0 / (e + 1))))
    buttons = "document.querySelectorAll('.legend button')"
    assert texts(browser, ".legend button") == names

    def shown() -> list[str]:
        return [one["name"] for one in drawn(browser)]

    def double_click(index: int) -> None:
        box = f"(r => [r.left + 5, r.top + 5])({buttons}[{index}].getBoundingClientRect())"
        browser.double_click(*browser.evaluate(box))

    double_click(1)
    assert shown() == ["encoder.loss"], "a double click shows one alone"
    assert browser.evaluate("document.getElementById('announcer').textContent") == (
        "only encoder.loss shown"
    )
    double_click(1)
    assert shown() == names, "and the same again shows all"
    double_click(4)
    assert shown() == names[4:]
    browser.evaluate(f"{buttons}[0].focus()")
    browser.press("Enter")
    assert shown() == ["loss", *names[4:]], "the keyboard toggles"
    browser.press("Enter", shift=True)
    assert shown() == ["loss"], "Shift makes it solo"
    browser.press("Enter", shift=True)
    assert shown() == names
    assert browser.console == []


def test_steps_zoom_and_smoothing(browser, tmp_path):
    monitor = Monitor(2, terminal=False)
    values = [1.0 + 0.5 * math.sin(step) for step in range(5000)]
    monitor.log_steps([StepSeries("loss", range(5000), values)])
    monitor.log(0, 1.0, {"loss": 1.0})
    monitor.log(1, 1.0, {"loss": 0.9})
    monitor.save_html(tmp_path / "report.html")
    monitor.finish()
    browser.open(tmp_path / "report.html")
    assert browser.evaluate("document.getElementById('x-axis').value") == "epoch"
    browser.evaluate("page.choices.set({axis: 'step'})")
    browser.settle()
    [raw] = drawn(browser)
    assert 1000 < raw["points"] <= 2000, "the file holds a thinned curve"
    browser.evaluate(
        "(one => { one.value = 0.95; one.dispatchEvent(new Event('input')) })"
        "(document.getElementById('smoothing'))"
    )
    [both] = drawn(browser)

    def spread(runs):
        heights = [y for _, y in runs[0]]
        return max(heights) - min(heights)

    assert both["raw"] == raw["raw"]
    assert spread(both["smooth"]) < 0.5 * spread(both["raw"])
    left, top, width = browser.evaluate(
        "(r => [r.left, r.top, r.width])(document.querySelector('.plot').getBoundingClientRect())"
    )
    browser.drag(left + 0.5 * width, top + 50, left + 0.6 * width, top + 60)
    low, high = browser.evaluate("page.charts[0].focus.range")
    assert 2300 < low < 2600
    assert 400 < high - low < 600
    assert texts(browser, ".chart-head button:not([hidden])") == [
        "reset zoom",
        "log scale",
        "CSV",
    ]
    click(browser, ".chart-head button:first-of-type")
    assert browser.evaluate("page.charts[0].focus.range") is None
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("+")
    low, high = browser.evaluate("page.charts[0].focus.range")
    assert high - low == pytest.approx(2500, abs=10)
    browser.press("0")
    assert browser.evaluate("page.charts[0].focus.range") is None
    assert browser.console == []


def test_where_the_time_went(browser, tmp_path):
    monitor = Monitor(1, terminal=False)
    monitor.log_ledger({"import": 1.5, "forward": 6.0, "sync": 0.0, "backward": 2.5})
    monitor.save_html(tmp_path / "report.html")
    monitor.finish()
    browser.open(tmp_path / "report.html")
    assert texts(browser, ".ledger li") == [
        "import1.5s15.0 %",
        "forward6.0s60.0 %",
        "backward2.5s25.0 %",
    ]
    widths = browser.evaluate(
        "[...document.querySelectorAll('.ledger-bar span')]"
        ".map(one => one.getBoundingClientRect().width)"
    )
    assert widths[1] / widths[0] == pytest.approx(4, rel=0.02)
    assert browser.console == []


def test_what_a_trainer_reports_becomes_tiles(browser, tmp_path):
    def values(epoch, _):
        return EpochMetrics(epoch, 0.5, {"acc": 0.9}, 500.0, 12.4, [1.0])

    facts = {"parameters": {"total": 1_234_567, "trainable": 34_567, "frozen": 1_200_000}}
    browser.open(report(tmp_path, 2, values=values, **facts))
    tiles = texts(browser, ".tile")
    assert "Throughput12.4k samples/smean over epochs" in tiles
    assert "Parameters1.23M34.6k trainable" in tiles


def test_ranks_have_a_table_of_their_own(browser, tmp_path):
    def values(epoch, _):
        fast = RankMetrics(0.5 - 0.1 * epoch, {}, 8000, 250, 10_000.0, "cuda:0")
        slow = RankMetrics(math.nan, {}, 3200, 100, 10_000.0, "cuda:1")
        shared = {"comm_ms": 5.0, "wait_ms": 2.5, "anchor": 10, "counts": (25, 10)}
        return EpochMetrics(epoch, 0.5, {}, 500.0, 1.0, [0.7, 0.3], per_rank=(fast, slow), **shared)

    browser.open(report(tmp_path, 2, values=values))
    rows = texts(browser, "#ranks tbody tr")
    assert rows[0].startswith("0cuda:050071.4 %80020.0s0.4000–")
    assert rows[1].startswith("1cuda:120028.6 %32020.0snan–")
    assert all(re.search(r"–\d\d:\d\d:\d\d, epoch 2$", row) for row in rows)
    assert texts(browser, "#ranks thead th")[-1] == "Last seen"
    assert texts(browser, "#ranks thead th")[4:6] == ["Samples/s", "Busy for"]
    (note,) = texts(browser, "#ranks .note")
    assert note.startswith("Last epoch · anchor 10 · 25 : 10 batches between two averages · exch")
    assert [one["name"] for one in drawn(browser)] == ["loss"], "the curves of ranks are folded"
    click(browser, ".ranks:not([hidden])")
    curves = drawn(browser)
    assert [one["name"] for one in curves] == ["loss of rank 0", "loss of rank 1", "loss"]
    assert curves[1]["broken"] == [1, 2]
    assert browser.console == []


def test_a_rank_that_is_gone_and_the_memory_of_each_are_shown(browser, tmp_path):
    gpus = tuple(GpuSnapshot(n, "H200", 80.0, (60 + n) * GIB, 139 * GIB) for n in range(2))
    load = ResourceSample(62.5, 5 * GIB, 24 * GIB, gpus)
    sink = HtmlSink(tmp_path / "report.html")
    sink.open(Monitor(2, terminal=False)._info)
    for epoch in range(2):
        ranks = [RankMetrics(0.5, {}, 800, 25, 1000.0, f"cuda:{rank}") for rank in range(3 - epoch)]
        summary = RankSummary(tuple(ranks))
        record = EpochRecord(epoch, 2, 1.0, (("loss", 0.5),), None, load, 1.0, ranks=summary)
        sink.record(record)
    sink.flush()
    browser.open(tmp_path / "report.html")
    rows = texts(browser, "#ranks tbody tr")
    assert re.search(r"61.0 GB / 139.0 GB\d\d:\d\d:\d\d, epoch 2$", rows[1])
    assert texts(browser, "#ranks tbody tr.bad-value") == [rows[2]]
    assert re.search(r"–\d\d:\d\d:\d\d, epoch 1$", rows[2]), "when it was last heard of"


def test_one_rank_has_no_table_of_ranks(browser, tmp_path):
    browser.open(report(tmp_path, 2))
    assert browser.evaluate("document.getElementById('ranks-section').hidden")


COLOURS = """
[...document.querySelectorAll('.chart')].map(card => {
  const canvas = card.querySelector('.uplot canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4)
    seen.add(`rgb(${[...data.slice(at, at + 3)].join(', ')})`);
  return [...card.querySelectorAll('.legend .swatch')]
    .filter(one => seen.has(getComputedStyle(one).borderTopColor)).length;
})
"""


def test_every_curve_has_its_colour_on_the_canvas_and_keeps_it_in_the_dark(browser, tmp_path):
    browser.open(report(tmp_path, 30))
    assert browser.evaluate(COLOURS) == [2, 2, 1, 1]
    browser.evaluate("document.documentElement.dataset.theme = 'dark'; page.charts.length")
    browser.evaluate("ink.forget(); page.repaint()")
    browser.settle()
    assert browser.evaluate(COLOURS) == [2, 2, 1, 1]


def test_zoom_and_pan_move_all_charts(browser, tmp_path):
    browser.open(report(tmp_path, 101))
    ranges = "page.charts.map(one => one.range)"
    assert browser.evaluate(ranges) == [[1, 101]] * 4
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("+")
    assert browser.evaluate(ranges) == [[26, 76]] * 4
    browser.press("ArrowRight", shift=True)
    assert browser.evaluate(ranges) == [[36, 86]] * 4
    for _ in range(5):
        browser.press("ArrowRight", shift=True)
    assert browser.evaluate(ranges) == [[51, 101]] * 4, "no further than the last epoch"
    browser.press("Escape")
    assert browser.evaluate(ranges) == [[1, 101]] * 4
    assert browser.console == []
