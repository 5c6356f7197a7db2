"""Metrics as files: a page with curves, a CSV table, a log."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest
from torch import nn

from flodl.graph import FlowBuilder, plot
from flodl.graph.history import MetricHistory, Point
from tests.browser.conftest import browser, chromium  # noqa: F401 - fixtures
from tests.flodl.graph.test_observe import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def graph(clock):
    graph = FlowBuilder.from_(nn.Linear(2, 2)).build()
    graph._metrics = MetricHistory(clock)
    return graph


def train(graph, clock, **series):
    """One flush per second, each metric as long as it lasts."""
    graph._metrics.start()
    for epoch in range(max(map(len, series.values()))):
        clock.now += 1
        for name, values in series.items():
            if epoch < len(values):
                graph.record_scalar(name, values[epoch])
        graph.flush()


def embedded(path):
    """The series in a page, by name."""
    text = path.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return {one["name"]: one["values"] for one in json.loads(data)["curves"]}


# --- The page --------------------------------------------------------------------------------


@pytest.mark.case("runtime", 32)
def test_a_nan_is_null_in_the_page(graph, clock, tmp_path):
    train(graph, clock, loss=[1.0, math.nan, math.inf, 0.5])
    graph.plot_html(tmp_path / "plot.html")
    assert embedded(tmp_path / "plot.html") == {"loss": [1.0, None, None, 0.5]}


def test_the_page_needs_nothing_but_itself(graph, clock, tmp_path):
    train(graph, clock, loss=[1.0, 0.5])
    graph.plot_html(tmp_path / "new" / "plot.html")
    text = (tmp_path / "new" / "plot.html").read_text(encoding="utf-8")
    assert "uPlot" in text
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r'\b(src|href)="(?!data:|#)', text)


def test_names_cannot_break_out_of_the_page(tmp_path):
    name = '</script><b>&"x'
    plot.page(tmp_path / "plot.html", {name: [1.0]}, title="<i>$title & more", unit="</span>")
    assert embedded(tmp_path / "plot.html") == {name: [1.0]}
    text = (tmp_path / "plot.html").read_text(encoding="utf-8")
    assert "<title>&lt;i&gt;$title &amp; more</title>" in text
    assert "</script><b>" not in text
    assert text.count("</span>") == text.count("<span"), "the unit is data"


def test_a_page_can_show_some_metrics_only(graph, clock, tmp_path):
    train(graph, clock, b=[1.0], a=[2.0], c=[3.0])
    page = tmp_path / "plot.html"
    graph.plot_html(page)
    assert list(embedded(page)) == ["a", "b", "c"]
    graph.plot_html(page, "c", "a", "c")
    assert list(embedded(page)) == ["c", "a"]


# --- In a browser ----------------------------------------------------------------------------


def curves(browser):  # noqa: F811
    """The names whose colours the canvas shows."""
    return browser.evaluate("""(() => {
        const canvas = document.querySelector("canvas");
        const [width, height] = [canvas.width, canvas.height];
        const copy = new OffscreenCanvas(width, height);
        const pen = copy.getContext("2d", { willReadFrequently: true });
        pen.drawImage(canvas, 0, 0);
        const { data } = pen.getImageData(0, 0, width, height);
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4) {
            const [red, green, blue, alpha] = data.slice(at, at + 4);
            if (alpha === 255) seen.add(`rgb(${red}, ${green}, ${blue})`);
        }
        return [...document.querySelectorAll(".legend button")]
            .map((one) => [one.textContent, one.querySelector(".swatch")])
            .filter(([, swatch]) => swatch && seen.has(getComputedStyle(swatch).borderTopColor))
            .map(([name]) => name);
    })()""")


def pressed(browser):  # noqa: F811
    return browser.evaluate(
        "[...document.querySelectorAll('.legend button[aria-pressed=true]')]"
        ".map(one => one.textContent)"
    )


def click(browser, text, keys=""):  # noqa: F811
    browser.evaluate(f"""[...document.querySelectorAll(".legend button")]
        .find((one) => one.textContent === {text!r})
        .dispatchEvent(new MouseEvent("click", {{ {keys} }}))""")
    browser.settle()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_curves_can_be_seen_alone(browser, tmp_path, dark):  # noqa: F811
    flat = {"loss": 1.0, "encoder.gate": 2.0, "encoder.norm": 3.0, "</script>": 4.0}
    plot.page(tmp_path / "plot.html", {name: [level] * 40 for name, level in flat.items()})
    browser.open(tmp_path / "plot.html", width=700, height=700, dark=dark)
    assert sorted(curves(browser)) == sorted(flat)
    click(browser, "encoder.gate", "shiftKey: true")
    assert curves(browser) == pressed(browser) == ["encoder.gate"]
    click(browser, "encoder.gate", "shiftKey: true")
    assert sorted(curves(browser)) == sorted(flat)
    click(browser, "encoder.gate", "shiftKey: true")
    click(browser, "loss")
    assert sorted(pressed(browser)) == ["encoder.gate", "loss"]
    assert browser.console == []
    assert len(browser.requests) == 1


def test_values_can_be_read_off_with_the_keyboard(browser, tmp_path):  # noqa: F811
    series = {"loss": [4.0, 2.0, math.nan, 0.5], "val": [-1.0, -2.0]}
    plot.page(tmp_path / "plot.html", series)
    browser.open(tmp_path / "plot.html", width=700, height=700)

    def spoken():
        return browser.evaluate("document.querySelector('.plot').getAttribute('aria-valuetext')")

    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("Home")
    assert spoken() == "Epoch 1, loss 4.0000, val -1.0000"
    browser.press("ArrowRight")
    assert spoken() == "Epoch 2, loss 2.0000, val -2.0000"
    browser.press("ArrowRight")
    assert spoken() == "Epoch 3, loss not finite"
    browser.press("End")
    assert spoken() == "Epoch 4, loss 0.5000"
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('.readout').hidden")
    assert browser.console == []


def test_a_log_scale_leaves_out_what_it_cannot_show(browser, tmp_path):  # noqa: F811
    plot.page(tmp_path / "plot.html", {"loss": [100.0, 1.0, 0.01], "below": [-1.0, -2.0, -3.0]})
    browser.open(tmp_path / "plot.html", width=700, height=700)
    assert curves(browser) == ["loss", "below"]
    browser.evaluate("document.querySelector('.log').click()")
    browser.settle()
    assert curves(browser) == ["loss"]
    click(browser, "below", "shiftKey: true")
    assert browser.evaluate("document.querySelector('.log').disabled")
    assert curves(browser) == ["below"]
    assert browser.console == []


# --- The table -------------------------------------------------------------------------------


def test_a_table_has_one_column_per_metric(graph, clock, tmp_path):
    train(graph, clock, loss=[0.5, 0.25, math.nan], acc=[1 / 3])
    graph.export_trends(tmp_path / "trends.csv")
    assert (tmp_path / "trends.csv").read_bytes() == (
        b"epoch,acc,loss\n1,0.33333333,0.50000000\n2,,0.25000000\n3,,nan\n"
    )
    graph.export_trends(tmp_path / "deep" / "loss.csv", "loss")
    assert (tmp_path / "deep" / "loss.csv").read_text().splitlines()[:2] == [
        "epoch,loss",
        "1,0.50000000",
    ]


def test_any_name_survives_in_a_table(tmp_path):
    plot.table(tmp_path / "t.csv", {'a,"b"\n': [1]})
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["epoch", 'a,"b"\n'], ["1", "1.00000000"]]


def test_files_show_the_graphs_below_too(tmp_path):
    encoder = FlowBuilder.from_(nn.Linear(2, 2)).label("encoder").build()
    graph = FlowBuilder.from_(encoder).split([nn.Linear(2, 2)] * 2).tag_group("head")
    graph = graph.merge("add").build()
    for name in ("head_0", "head_1"):
        graph.record_scalar(name, 1)
    encoder.record_scalar("loss", 2)
    graph.flush()
    graph.export_trends(tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_text().startswith("epoch,encoder.loss,head_0,head_1\n")
    graph.export_trends(tmp_path / "some.csv", "head", "encoder.loss")
    assert (tmp_path / "some.csv").read_text().startswith("epoch,head_0,head_1,encoder.loss\n")


# --- The log ---------------------------------------------------------------------------------


@pytest.mark.case("runtime", 80)
def test_a_log_tells_time_taken_and_time_left(graph, clock, tmp_path):
    graph._metrics.start()
    clock.now += 1.2
    graph.record_scalar("loss", 0.5)
    graph.flush()
    graph.write_log(tmp_path / "training.log", total=3)
    assert (tmp_path / "training.log").read_text().splitlines() == [
        "# flodl training log",
        "epoch   1  loss=0.5000  [1.2s  ETA 2.4s]",
    ]
    assert graph.eta(3) == pytest.approx(2.4)
    assert graph.eta(1) == 0


def test_every_line_has_the_time_of_its_own_epoch(graph, clock, tmp_path):
    train(graph, clock, loss=[0.5, 0.25, 0.0001], acc=[0.5])
    graph.write_log(tmp_path / "training.log", 3)
    assert (tmp_path / "training.log").read_text().splitlines()[1:] == [
        "epoch   1  acc=0.5000  loss=0.5000  [1.0s  ETA 2s]",
        "epoch   2  loss=0.2500  [1.0s  ETA 1s]",
        "epoch   3  loss=1.00e-4  [1.0s]",
    ]
    graph.write_log(tmp_path / "training.log", 0, "acc")
    assert (tmp_path / "training.log").read_text() == (
        "# flodl training log\nepoch   1  acc=0.5000  [1.0s]\n"
    )


def test_metrics_flushed_one_after_the_other_share_an_epoch(tmp_path):
    series = {
        "loss": [Point(2.0, 10.0), Point(1.0, 21.0)],
        "va\nl": [Point(3.0, 12.0), Point(2.0, 24.0)],
    }
    plot.log(tmp_path / "log", 1200, series)
    assert (tmp_path / "log").read_text().splitlines()[1:] == [
        "epoch    1  loss=2.0000  va\\nl=3.0000  [12.0s  ETA 3h 59m]",
        "epoch    2  loss=1.0000  va\\nl=2.0000  [12.0s  ETA 3h 59m]",
    ]


# --- Nothing to write ------------------------------------------------------------------------


@pytest.mark.parametrize("write", ["plot_html", "export_trends", "write_log"])
def test_without_points_there_is_nothing_to_write(graph, clock, tmp_path, write):
    path = tmp_path / "new" / "file"
    arguments = (path, 3) if write == "write_log" else (path,)
    with pytest.raises(ValueError, match="no metric has points yet, flush first"):
        getattr(graph, write)(*arguments)
    graph.record_scalar("loss", 1)
    with pytest.raises(ValueError, match="no metric has points yet, flush first"):
        getattr(graph, write)(*arguments)
    with pytest.raises(ValueError, match=r"'loss' has no points yet \(flush first\)"):
        getattr(graph, write)(*arguments, "loss")
    train(graph, clock, loss=[1.0])
    with pytest.raises(ValueError, match=r"'los' has no points yet .* did you mean loss\?"):
        getattr(graph, write)(*arguments, "loss", "los")
    assert not path.parent.exists()
