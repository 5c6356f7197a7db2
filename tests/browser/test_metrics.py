"""Many metrics, other x axes and values off the scale, on the page of a run."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from flodl.monitor import EpochMetrics, Monitor
from flodl.monitor.records import StepSeries

from .chromium import Browser
from .test_report import click, count, drawn, overflow, report, texts

PARTS = ("train", "val", "layer1", "layer2", "layer3", "layer4")
KINDS = ("loss", "acc", "kl", "norm", "width", "sparsity", "entropy", "heat")
MANY = ["loss", "accuracy", *(f"{part}/{kind}" for part in PARTS for kind in KINDS)]


def many(folder: Path) -> Path:
    """A report with fifty metrics."""
    return report(folder, 4, values=lambda epoch, _: {n: (1 + len(n)) / (epoch + 1) for n in MANY})


def choose(browser: Browser, kind: str) -> None:
    browser.evaluate(
        "(one => { one.value = " + repr(kind) + "; one.dispatchEvent(new Event('change')) })"
        "(document.getElementById('x-axis'))"
    )
    browser.settle()


def search(browser: Browser, text: str) -> None:
    browser.evaluate(
        "(one => { one.value = " + repr(text) + "; one.dispatchEvent(new Event('input')) })"
        "(document.getElementById('search'))"
    )
    browser.settle()


def test_fifty_metrics_are_sections_that_fit_one_screen(browser, tmp_path):
    browser.open(many(tmp_path), width=1400, height=1000)
    assert texts(browser, ".metric-section summary b") == ["Metrics", *PARTS]
    closed = texts(browser, ".metric-section:not([open]) .section-note")
    assert len(closed) == 6
    assert closed[0].startswith("8 metrics · train/loss 2.7500 · train/acc")
    assert count(browser, ".chart") == 2
    bottom = browser.evaluate("document.getElementById('charts').getBoundingClientRect().bottom")
    assert bottom <= 1000
    click(browser, ".metric-section:nth-child(2) summary")
    assert count(browser, ".metric-section:nth-child(2) .chart") == 8, "opened by the reader"
    click(browser, ".metric-section:nth-child(2) summary")
    assert count(browser, ".chart") == 2
    assert overflow(browser) <= 0
    assert browser.console == []


def test_a_search_finds_metrics_and_columns_by_all_of_its_words(browser, tmp_path):
    browser.open(many(tmp_path))
    assert texts(browser, "#found") == ["50 metrics"]
    search(browser, "LAYER loss")
    assert texts(browser, "#found") == ["4 of 50 metrics"]
    assert [one["name"] for one in drawn(browser)] == [f"layer{n}/loss" for n in range(1, 5)]
    heads = texts(browser, "#epochs thead th")
    assert heads == ["Epoch", *(f"layer{n}/loss" for n in range(1, 5)), "Time"]
    search(browser, "nothing like this")
    assert texts(browser, "#no-metrics:not([hidden])") == ["No metric has these words in its name."]
    search(browser, "")
    assert count(browser, ".metric-section") == 7
    assert browser.console == []


def test_a_section_is_folded_and_unfolded_with_the_keyboard(browser, tmp_path):
    browser.open(many(tmp_path))
    browser.evaluate("document.querySelectorAll('.metric-section summary')[2].focus()")
    browser.press("Enter")
    assert count(browser, ".metric-section:nth-child(3)[open] .chart") > 0
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    names = {
        (node["role"]["value"], node["name"]["value"])
        for node in tree
        if not node["ignored"] and node.get("name", {}).get("value")
    }
    assert ("searchbox", "Search metrics and media") in names
    assert any(role == "combobox" and name.startswith("X axis") for role, name in names)


def test_curves_that_name_the_same_quantity_share_a_chart(browser, tmp_path):
    def values(epoch, _):
        part = 1 / (epoch + 1)
        return {"loss": 2 * part, "val_loss": 3 * part, "perplexity": 900 * part}

    browser.open(report(tmp_path, 6, values=values))
    assert texts(browser, ".chart h3") == ["Loss", "perplexity"]


def test_an_outlier_does_not_flatten_a_chart(browser, tmp_path):
    def values(epoch, _):
        return {"loss": 1e30 if epoch == 7 else 2 - epoch / 20}

    browser.open(report(tmp_path, 20, values=values))
    (loss,) = drawn(browser)
    assert loss["outside"] == [8], "a marker stands for it"
    heights = [y for x, y in loss["raw"][0]]
    inside = [y for index, y in enumerate(heights) if index != 7]
    assert max(inside) - min(inside) > 100, "the others use the height of the chart"
    assert texts(browser, ".outliers:not([hidden])") == ["1 off scale"]
    click(browser, ".outliers")
    (loss,) = drawn(browser)
    assert loss["outside"] == []
    assert browser.evaluate("document.querySelector('.outliers').ariaPressed") == "true"
    click(browser, ".log")
    click(browser, ".outliers")
    assert drawn(browser)[0]["outside"] == [8], "on the logarithmic scale too"
    assert browser.console == []


def test_a_first_epoch_that_is_much_worse_is_no_outlier(browser, tmp_path):
    browser.open(report(tmp_path, 5, values=lambda epoch, _: {"loss": [90, 4, 3, 2, 1][epoch]}))
    assert drawn(browser)[0]["outside"] == []
    assert count(browser, ".outliers:not([hidden])") == 0


def timed(folder: Path, part_seconds: float = 3.0, *, by_step: bool = True) -> Path:
    """Two epochs of ten steps, two parts apart; steps are logged after each part."""
    now = [0.0]
    monitor = Monitor(2, terminal=False, clock=lambda: now[0])
    for part in range(4):
        now[0] += part_seconds
        steps = range(5 * part, 5 * part + 5)
        if by_step:
            monitor.log_steps([StepSeries("loss", steps, [1 / (step + 1) for step in steps])])
        if part % 2:
            taken = 2 * part_seconds
            metrics = EpochMetrics(part // 2, 0.5, {}, 1000 * taken, 1.0, [1.0])
            monitor.log(part // 2, taken, metrics)
    monitor.save_html(folder / "report.html")
    monitor.finish()
    return folder / "report.html"


def test_curves_over_the_time_since_the_start_and_the_time_of_day(browser, tmp_path):
    browser.open(timed(tmp_path, by_step=False))
    choose(browser, "time")
    assert browser.evaluate("page.charts[0].xs") == [6, 12], "the ends of the epochs"
    browser.open(timed(tmp_path))
    choose(browser, "time")
    xs = browser.evaluate("page.charts[0].xs")
    assert xs[4] == 3, "step 4 was the last one of the first 3 s"
    assert (xs[9], xs[-1]) == (6, 12)
    assert {"5s", "10s"} <= set(browser.evaluate("page.charts[0].ticks"))
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("End")
    spoken = "document.querySelector('.plot').getAttribute('aria-valuetext')"
    assert browser.evaluate(spoken) == "after 12.0s, loss 0.05000"
    choose(browser, "wall")
    browser.press("End")
    said = browser.evaluate(spoken)
    assert said.startswith("at ")
    assert said.endswith(", loss 0.05000")
    choose(browser, "step")
    assert browser.evaluate("page.charts[0].xs.slice(-1)") == [19]
    assert browser.console == []


def test_a_run_of_milliseconds_has_a_time_axis(browser, tmp_path):
    browser.open(timed(tmp_path, part_seconds=0.02))
    choose(browser, "time")
    assert {"20ms", "40ms", "60ms", "80ms"} <= set(browser.evaluate("page.charts[0].ticks"))
    choose(browser, "wall")
    ticks = browser.evaluate("page.charts[0].ticks")
    assert len({tick for tick in ticks if re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", tick)}) >= 3, ticks


def test_a_logarithmic_x_axis_gives_each_factor_of_ten_the_same_room(browser, tmp_path):
    browser.open(report(tmp_path, 1000, values=lambda epoch, _: {"loss": 1 / (epoch + 1)}))
    click(browser, "#log-x")
    (loss,) = drawn(browser)
    places = {round(1 / loss["best"]["y"]): x for x, _ in loss["raw"][0][-1:]}
    at = {epoch: browser.evaluate(f"page.charts[0].scales.px({epoch})") for epoch in (1, 10, 100)}
    assert at[10] - at[1] == pytest.approx(at[100] - at[10])
    assert places[1000] - at[100] == pytest.approx(at[100] - at[10])
    assert {"1", "10", "100", "1,000"} <= set(browser.evaluate("page.charts[0].ticks"))
    assert texts(browser, "#log-x[aria-pressed=true]") == ["log x"]
    # Keys zoom around the place in the middle of the picture, which is the epoch 32.
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("+")
    low, high = browser.evaluate("page.charts[0].focus.range")
    assert (low, high) == pytest.approx((1000**0.25, 1000**0.75))
    click(browser, "#log-x")
    assert browser.evaluate("page.charts[0].focus.range") == [low, high]
    assert browser.console == []


def test_a_logarithmic_x_axis_leaves_out_step_0_and_knows_time_but_no_time_of_day(
    browser, tmp_path
):
    browser.open(timed(tmp_path))
    choose(browser, "step")
    click(browser, "#log-x")
    (loss,) = drawn(browser)
    assert len(loss["raw"][0]) == 19, "steps 1 to 19 of 0 to 19"
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("Home")
    spoken = "document.querySelector('.plot').getAttribute('aria-valuetext')"
    assert browser.evaluate(spoken) == "Step 1, loss 0.5000"
    choose(browser, "time")
    first, last = (browser.evaluate(f"page.charts[0].scales.px({x})") for x in (3, 6))
    assert last - first == pytest.approx(browser.evaluate("page.charts[0].scales.px(12)") - last)
    choose(browser, "wall")
    assert texts(browser, "#log-x:disabled[aria-pressed=false]") == ["log x"]
    assert browser.console == []


def test_a_zoom_into_time_asks_for_the_steps_of_that_time(browser):
    now = [0.0]
    monitor = Monitor(2, terminal=False, clock=lambda: now[0])
    for part in range(10):
        now[0] += 1.0
        steps = range(1000 * part, 1000 * part + 1000)
        monitor.log_steps([StepSeries("loss", steps, [math.sin(step) for step in steps])])
    monitor.serve(0)
    browser.open(monitor.url)
    browser.wait_for("page.connection === 'live'")
    choose(browser, "time")
    browser.evaluate("page.charts[0].focus.zoom([5, 6])")
    browser.wait_for("page.record.curves.get('loss').detail")
    low, high = browser.evaluate("page.record.curves.get('loss').detail.range")
    assert (low, high) == (4999, 5999)
    browser.wait_for("page.charts[0].lines[0].x.length > 1000")
    monitor.close()
    monitor.finish()


def test_learning_rate_and_gradient_norm_are_curves_of_their_own(browser, tmp_path):
    def values(epoch, _):
        return EpochMetrics(epoch, 0.5, {}, 500.0, 1.0, [1.0], lr=0.1 / (epoch + 1), grad_norm=2.5)

    browser.open(report(tmp_path, 3, values=values))
    assert texts(browser, ".chart h3") == ["loss", "lr", "grad_norm"]
    assert texts(browser, "#epochs thead th") == ["Epoch", "loss", "lr", "grad_norm", "Time"]
    first = texts(browser, "#epochs tbody tr:first-child > *")
    assert first == ["3", "0.5000", "0.03333", "2.5000", "500ms"]


def test_the_table_of_epochs_stays_where_it_is_read(browser):
    monitor = Monitor(100, terminal=False)
    for epoch in range(60):
        monitor.log(epoch, 1.0, {"loss": 1.0})
    browser.open(monitor.serve(0))
    browser.wait_for("page.connection === 'live'")
    rows = "[...document.querySelectorAll('#epochs tbody th')].map(one => one.textContent)"
    assert browser.evaluate(rows)[:2] == ["60", "59"]
    scroll = "document.querySelector('#epochs .scroll')"
    row = f"{scroll}.querySelector('tbody tr:nth-last-child(30)')"
    top = f"{row}.getBoundingClientRect().top"
    browser.evaluate(f"{scroll}.scrollTop = 300")
    before = browser.evaluate(top)
    monitor.log(60, 1.0, {"loss": 1.0})
    browser.wait_for("document.querySelectorAll('#epochs tbody tr').length === 61")
    assert abs(browser.evaluate(top) - before) < 2, "the rows being read do not move"
    monitor.close()
    monitor.finish()


def test_hostile_names_in_sections_and_search(browser, tmp_path):
    bad = "</script><script>window.stolen=1</script>"
    names = [f"{bad}/{n}<img src=x onerror=window.stolen=1>" for n in range(12)]
    browser.open(report(tmp_path, 2, values=lambda *_: dict.fromkeys(names, 1.0)))
    # The prefix ends at the first slash, which is inside of the name.
    assert texts(browser, ".metric-section summary b") == ["<"]
    search(browser, bad)
    assert texts(browser, "#found") == ["12 metrics"]
    assert browser.evaluate("window.stolen ?? null") is None
    assert overflow(browser) <= 0
    assert browser.console == []
