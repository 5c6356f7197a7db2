"""The page of many runs in a real browser: every panel, the keyboard, live runs, hostile texts."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.many_runs import make_runs
from fdl.base.run_record import boot_id
from fdl.runs.pages.catalog import Cache, Catalog
from fdl.runs.pages.many import RunsPage
from fdl.runs.pages.server import PageServer
from tests.fdl.run_directory.trails import trail
from tests.fdl.run_directory.where_cases import CASES, WRONG, make_three

from .chromium import Browser
from .test_report import overflow, texts, unnamed

HOSTILE = "</script><script>window.stolen=1</script><img src=x onerror=window.stolen=2>"
CHART = "page.curves.chart('loss')"
DRAWN = f"{CHART}?.complete && !document.querySelector('[aria-busy]')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty runs in four groups of five seeds."""
    made = tmp_path_factory.mktemp("many") / "runs"
    make_runs(made, 20, 3000)
    return made


@contextmanager
def page_of(runs: Path, cache: Path) -> Iterator[str]:
    """The address of a page, while it is served."""
    with PageServer(RunsPage(Catalog([runs], Cache(cache)), "runs/train")) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server.url
        finally:
            server.shutdown()


@pytest.fixture
def served(folder: Path, tmp_path: Path, browser: Browser) -> Iterator[Browser]:
    """The browser with the page of the twenty runs."""
    with page_of(folder, tmp_path / "cache") as url:
        browser.open(url, width=1280)
        browser.wait_for(DRAWN)
        yield browser
        browser.open("about:blank")


def choose(browser: Browser, **choices: object) -> None:
    browser.evaluate(f"(page.choices.set({json.dumps(choices)}), page.settled)")
    browser.settle()


def test_curves_are_overlaid_over_steps_epochs_and_time(served):
    served.wait_for(f"{CHART}.drawn.lines === 20")
    assert served.evaluate("document.getElementById('x-axis').value") == "step"
    ends = {}
    for axis in ("epoch", "time", "wall", "step"):
        choose(served, axis=axis)
        served.wait_for(f"{DRAWN} && {CHART}.drawn.axis === '{axis}'")
        assert served.evaluate(f"{CHART}.drawn.lines") == 20
        ends[axis] = served.evaluate(f"{CHART}.range[1]")
    assert ends["epoch"] == 20
    assert 2900 < ends["step"] <= 3000
    assert 1000 < ends["time"] < 1081, "the longest run took 1080 seconds"
    assert ends["wall"] > 1.77e9
    choose(served, axis="step", smoothing=0.9)
    served.evaluate(f"{CHART}.logButton.click()")
    assert served.evaluate(f"{CHART}.logs") is True
    assert served.evaluate(f"{CHART}.drawn.bands") == 0, "a smoothed curve has no band"
    assert served.console == []


@pytest.mark.slow
def test_a_logarithmic_x_axis_gives_each_factor_of_ten_the_same_room(served):
    served.evaluate("document.getElementById('log-x').click()")
    served.settle()
    at = [served.evaluate(f"{CHART}.scales.px({step})") for step in (10, 100, 1000)]
    assert at[2] - at[1] == pytest.approx(at[1] - at[0])
    served.evaluate(f"{CHART}.area.focus()")
    first, last = served.evaluate(f"{CHART}.range")
    served.press("+")
    low, high = served.evaluate("page.focus.range")
    quarter = (last / first) ** 0.25
    assert (low, high) == pytest.approx((first * quarter, last / quarter), rel=0.01)
    choose(served, axis="wall")
    assert texts(served, "#curve-tools button:disabled") == ["log x"]
    assert served.console == []


def test_a_zoom_fetches_points_and_the_keyboard_reads_them(served):
    served.evaluate("page.focus.zoom([1000, 1100])")
    served.wait_for(DRAWN)
    served.evaluate(f"{CHART}.area.focus()")
    for key in ("End", "ArrowLeft", "ArrowUp"):
        served.press(key)
    spoken = served.evaluate(f"{CHART}.area.getAttribute('aria-valuetext')")
    assert spoken.startswith("step 1,09")
    assert ", loss 0." in spoken or ", loss 1." in spoken or ", loss 2." in spoken
    value = "['min', 'now', 'max'].map(one => Number(%s.area.getAttribute(`aria-value${one}`)))"
    low, now, high = served.evaluate(value % CHART)
    assert 1000 <= low < now <= high <= 1100
    served.press("Escape")
    assert served.evaluate("page.focus.range") is None
    assert served.evaluate(f"{CHART}.area.hasAttribute('aria-valuetext')") is False
    box = served.evaluate(f"(({{x, y}}) => [x, y])({CHART}.area.getBoundingClientRect())")
    served.drag(box[0] + 100, box[1] + 80, box[0] + 300, box[1] + 80)
    first, last = served.evaluate("page.focus.range")
    assert 0 < first < last < 3000


def test_a_chart_is_busy_until_all_its_curves_are_drawn(served):
    seen = f"[{CHART}.card.ariaBusy, {CHART}.drawn.lines, {CHART}.drawn.axis]"
    note = f"new MutationObserver(() => window.seen.push({seen}))"
    served.evaluate(f"(window.seen = [], {note}.observe({CHART}.card, {{attributes: true}}), null)")
    choose(served, axis="epoch")
    served.wait_for(f"{DRAWN} && {CHART}.drawn.axis === 'epoch'")
    busy, done = served.evaluate("window.seen")
    assert busy[0] == "true"
    assert done == [None, 20, "epoch"]


def test_a_metric_that_is_not_searched_leaves_and_comes_back_with_the_zoom(served):
    choose(served, search="accuracy")
    assert texts(served, "#charts .chart h3") == ["accuracy"]
    served.evaluate("page.focus.zoom([500, 1500])")
    served.wait_for("!document.querySelector('[aria-busy]')")
    choose(served, search="")
    served.wait_for(DRAWN)
    assert served.evaluate(f"{CHART}.range") == [500, 1500]
    assert served.evaluate(f"{CHART}.drawn.lines") == 20
    assert served.console == []


@pytest.mark.slow
def test_the_text_box_of_a_chart_stays_inside_of_it_on_a_phone(served):
    served.resize(400, 900)
    served.wait_for(f"{CHART}.width < 400 && {DRAWN}")
    served.evaluate(f"{CHART}.card.scrollIntoView({{block: 'center'}})")
    edges = "(r => [r.left, r.right, r.top, r.bottom])({}.getBoundingClientRect())"
    left, right, top, bottom = served.evaluate(edges.format(f"{CHART}.area"))
    for part in (0.2, 0.45, 0.55, 0.9):
        served.point(left + part * (right - left), (top + bottom) / 2)
        assert not served.evaluate(f"{CHART}.readout.hidden")
        first, last, *_ = served.evaluate(edges.format(f"{CHART}.readout"))
        assert last - first > 140
        assert left - 1 <= first
        assert last <= right + 1


def test_groups_show_mean_and_band_with_a_legend(served):
    choose(served, group="all but the seed", band="deviation")
    assert served.evaluate(f"{CHART}.drawn.lines") == 4
    assert served.evaluate(f"{CHART}.drawn.bands") == 4
    assert texts(served, "#legend .count") == ["×5"] * 4
    choose(served, group="config.seed", filter="seed in (0, 1)")
    assert texts(served, "#legend li") == ["seed = 0×4", "seed = 1×4"]
    served.evaluate("document.querySelector('#legend button').click()")
    served.wait_for("page.runs.visible.length === 4")


def test_the_filter_takes_words_and_conditions(served):
    served.evaluate("document.getElementById('theme').focus()")
    served.press("/")
    assert served.evaluate("document.activeElement.id") == "filter"
    shown = "page.runs.filtered.map(run => run.config.seed[0])"
    for text, seeds in (
        ("seed >= 3", [4, 3] * 4),
        ("seed = 2 and not state = failed and best:loss < 100", [2] * 3),
        ("(seed < 1 or seed > 3) and epochs == 20", [4, 0] * 4),
        ("name ~ 'T08-00' or seed not in (0,1,2,3,4)", [0]),
        ("2026-05-04t08-17", [1]),
    ):
        choose(served, filter=text)
        assert served.evaluate(shown) == seeds, text
    choose(served, filter="no_such_name > 1")
    (problem,) = texts(served, "#problem")
    assert "no run has the metric, setting or fact `no_such_name`" in problem
    assert served.evaluate(shown) == [1], "the runs that were shown stay"
    choose(served, filter="seed = 77")
    assert texts(served, "#no-runs") == ["No run meets the filter."]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs on which the language of conditions is tested."""
    folder = tmp_path_factory.mktemp("three") / "runs"
    make_three(folder)
    return folder


def test_the_filter_understands_what_where_of_runs_list_understands(three, tmp_path, browser):
    browser.call("Emulation.setTimezoneOverride", timezoneId="UTC")
    with page_of(three, tmp_path / "cache") as url:
        browser.open(url)
        browser.wait_for("page.runs.all.length === 3")
        met = "page.runs.filtered.map(run => 'abc'[run.name[9] - 1]).sort().join('')"
        for text, letters in CASES:
            choose(browser, filter=text)
            assert (browser.evaluate("page.runs.problem"), browser.evaluate(met)) == (
                "",
                letters,
            ), text
        for text, _, problem in WRONG:
            if re.search(r"[<>=~]|\bin\s*\(", text):  # other texts are words to search
                choose(browser, filter=text)
                assert problem in texts(browser, "#problem")[0], text
        browser.open("about:blank")
    browser.call("Emulation.setTimezoneOverride", timezoneId="")


def test_words_are_searched_and_a_name_of_true_or_false_is_a_condition(three, tmp_path, browser):
    with page_of(three, tmp_path / "cache") as url:
        browser.open(url)
        browser.wait_for("page.runs.all.length === 3")
        for text, count in (("amp", 1), ("not amp", 1), ("lr", 2), ("lr=0.1", 1), ("paper", 1)):
            choose(browser, filter=text)
            assert browser.evaluate("page.runs.filtered.length") == count, text
        browser.open("about:blank")


def test_the_table_is_sorted_and_keeps_the_columns(served):
    header = "[...document.querySelectorAll('.runs thead button')]"
    served.evaluate(f"{header}.find(one => one.textContent.startsWith('best loss')).click()")
    served.settle()
    assert served.evaluate("document.querySelector('th[aria-sort]').ariaSort") == "ascending"
    served.evaluate("page.table.scroll.scrollTop = 1e6")
    served.settle()
    rows = served.evaluate("[...document.querySelectorAll('.runs tbody tr[data-id]')].length")
    values = served.evaluate(
        "sorted(page.runs.filtered, 'best:loss', key => page.runs.column(key))"
        ".map(run => run.metrics.loss.best)"
    )
    assert rows > 0
    assert values == sorted(values)
    choose(served, columns=["config.seed", "last:loss"])
    assert texts(served, ".runs thead button") == ["Run", "seed", "last loss"]
    served.evaluate("(window.isOld = true, location.reload())")
    served.wait_for(f"!window.isOld && {DRAWN}")
    assert texts(served, ".runs thead button") == ["Run", "seed", "last loss"], "after a reload"
    csv = served.evaluate("page.table.csv()").splitlines()
    assert csv[0] == "Run,seed,last loss"
    assert len(csv) == 21


def test_a_hidden_run_loses_its_curve(served):
    served.evaluate("document.querySelector('.runs tbody .draws').click()")
    served.wait_for(f"{CHART}.complete && {CHART}.drawn.lines === 19")
    assert texts(served, "#shown") == ["20 of 20 listed, 19 drawn"]


def test_settings_are_set_against_results(served):
    assert served.evaluate("page.parallel.keys.at(-1)") == "best:val_loss"
    box = served.evaluate("(({x, y}) => [x, y])(page.parallel.area.getBoundingClientRect())")
    served.evaluate("page.parallel.card.scrollIntoView({block: 'center'})")
    served.settle()
    box = served.evaluate("(({x, y}) => [x, y])(page.parallel.area.getBoundingClientRect())")
    served.drag(box[0] + 36, box[1] + 20, box[0] + 36, box[1] + 120)
    brushed = served.evaluate("page.parallel.brushed.length")
    assert 0 < brushed < 20
    choose(served, scatterX="config.seed", scatterY="best:accuracy")
    assert texts(served, "#scatter h3") == ["best accuracy against seed"]
    assert texts(served, "#scatter .plot-foot") == ["20 runs"]
    served.evaluate("page.scatter.area.focus()")
    served.press("ArrowRight")
    assert "seed 0" in served.evaluate("page.scatter.area.getAttribute('aria-valuetext')")


@pytest.mark.slow
def test_the_axes_of_the_scatter_have_names_and_times_have_units(served):
    served.evaluate(
        "window.written = []; const original = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {"
        "  if (page.scatter.canvas.contains(this.canvas)) written.push(text);"
        "  original.call(this, text, ...rest) }"
    )
    choose(served, scatterX="config.lr", scatterY="seconds")
    written = served.evaluate("written")
    assert "lr" in written
    assert texts(served, "#scatter h3") == ["Time against lr"]
    assert any(re.fullmatch(r"\d+m", text) for text in written), written
    assert "1000" not in written


def test_only_what_differs_is_listed_with_its_origin(served):
    names = texts(served, "#differences tbody th")
    assert "seed" in names
    assert "epochs" not in names, "it is the same in all runs"
    assert "train/fdl.yml:9:9" in " ".join(texts(served, "#differences td"))
    choose(served, filter="seed in (0, 1) and lr > 0", hidden=[])
    served.evaluate("page.hide(page.runs.filtered.slice(2), true)")
    served.settle()
    rows = texts(served, "#differences tbody tr")
    assert rows == ["seed1--each0--each"] or rows == ["seed0--each1--each"]


def test_a_run_opens_with_its_origins_and_its_report(served):
    served.evaluate("document.querySelector('.runs tbody .link').click()")
    served.settle()
    assert served.evaluate("document.getElementById('details-box').open")
    assert "train/fdl.yml:9:9" in " ".join(texts(served, "#details-body .origin"))
    served.evaluate("window.open = null")
    link = served.evaluate("document.querySelector('#details-body a').href")
    assert link.endswith("/report.html")
    served.open(link)
    assert served.evaluate("document.title") == "Report"


def test_a_run_that_trains_is_followed_without_loading_the_page_again(tmp_path, browser):
    [run] = make_runs(tmp_path / "runs", 1, 1000)
    record = json.loads((run / "run.json").read_text())
    here = {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": boot_id()}
    running = json.dumps({**record, "state": "running", "finished": None, **here})
    (run / "run.json").write_text(running)
    with page_of(tmp_path / "runs", tmp_path / "cache") as url:
        browser.open(url)
        browser.wait_for(DRAWN)
        assert texts(browser, "#status") == ["Live"]
        browser.evaluate("window.sameDocument = true")
        make_runs(tmp_path / "runs" / "sweep", 2, 1000)
        (run / "run.json").write_text(json.dumps(record))
        browser.wait_for("page.runs.all.length === 3")
        browser.wait_for(f"{CHART}.complete && {CHART}.drawn.lines === 3")
        browser.wait_for("document.getElementById('status').textContent === 'Up to date'")
    browser.wait_for("document.getElementById('status').textContent === 'Not connected'")
    assert browser.evaluate("window.sameDocument") is True
    assert browser.evaluate("page.runs.all.length") == 3, "the page keeps what it knows"
    assert all("net::ERR_" in line for line in browser.console), "the browser's own remark"


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1280, False), (2560, True)])
def test_hostile_texts_are_harmless_and_the_page_fits_every_width(tmp_path, browser, width, dark):
    [run, _] = make_runs(tmp_path / "runs", 2, 500)
    config = {HOSTILE: {"value": HOSTILE, "origin": HOSTILE}}
    (run / "config.json").write_text(json.dumps(config))
    (run / "notes.json").write_text(json.dumps({"tags": [HOSTILE], "note": HOSTILE}))
    table = (run / "metrics.csv").read_text().replace("accuracy", f'"{HOSTILE}"')
    (run / "metrics.csv").write_text(table)
    with page_of(tmp_path / "runs", tmp_path / "cache") as url:
        browser.open(url, width=width, dark=dark)
        browser.wait_for(DRAWN)
        browser.evaluate("page.open(page.runs.all[1])")
        browser.settle()
        assert HOSTILE in " ".join(texts(browser, "#details-body td"))
        assert browser.evaluate("window.stolen ?? null") is None
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(14, 17, 22)" if dark else "rgb(245, 246, 248)")
        assert all(one.startswith(url) for one in browser.requests), "no remote asset"
        assert browser.console == []
        browser.open("about:blank")


PAPER_PIXELS = 717
"""What A4 has between the usual margins."""


def test_a_wide_table_of_runs_does_not_shrink_the_page_on_paper(served):
    served.resize(PAPER_PIXELS, 900)
    try:
        served.call("Emulation.setEmulatedMedia", media="print")
        served.evaluate("dispatchEvent(new Event('beforeprint'))")
        served.settle()
        assert len(texts(served, ".runs thead th")) == 16
        assert len(texts(served, ".runs tbody tr[data-id]")) == 20
        assert overflow(served) <= 0
    finally:
        served.call("Emulation.setEmulatedMedia", media="")


def test_every_control_has_a_name(served):
    assert unnamed(served) == []
    served.evaluate("page.open(page.runs.all[1])")
    served.settle()
    assert unnamed(served) == []


@pytest.mark.slow
def test_five_hundred_runs_of_a_hundred_thousand_points_are_all_drawn(tmp_path, browser):
    make_runs(tmp_path / "runs", 500, 100_000)
    with page_of(tmp_path / "runs", tmp_path / "cache") as url:
        browser.open(url)
        # The first runs are drawn while others are still being read.
        browser.wait_for(f"{DRAWN} && {CHART}.drawn.lines === 500", 60)
        browser.evaluate("page.focus.zoom([50_000, 50_100])")
        browser.wait_for(DRAWN, 60)
        assert browser.evaluate(f"{CHART}.drawn.lines") == 500
        browser.open("about:blank")


def test_values_that_are_not_finite_are_shown_and_never_the_best(
    browser: Browser, tmp_path: Path
) -> None:
    for number, losses in enumerate([["nan"], [0.5, "inf"], [0.25], ["inf"]]):
        trail(tmp_path / "runs" / f"2026-01-31T10-00-0{number}", metrics={"loss": losses})
    with page_of(tmp_path / "runs", tmp_path / "cache") as url:
        browser.open(url, width=1280)
        browser.wait_for("page.runs?.all.length === 4")
        for sort, first in (
            ("best:loss", ["0.2500", "0.5000"]),
            ("-best:loss", ["0.5000", "0.2500"]),
        ):
            choose(browser, columns=["best:loss", "last:loss"], sort=sort)
            best = texts(browser, "#table tbody td:nth-of-type(1):not([colspan])")
            assert best[:2] == first
            assert sorted(best[2:]) == ["inf", "nan"]
        assert texts(browser, "#table tbody td:nth-of-type(2)").count("inf") == 2
        browser.open("about:blank")
