"""What a page shows while answers are late, overtake each other, or do not come at all."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.many_runs import make_runs
from fdl.base.run_record import boot_id
from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries
from tests.fdl.run_directory.trails import trail

from .chromium import Browser
from .test_report import texts
from .test_run_pages import CHART, DRAWN, choose, page_of

FETCH = """
window.held = [];
window.refused = 0;
window.late = window.broken = null;
const original = window.fetch;
window.fetch = async (address, options) => {
  if (broken && address.startsWith(broken)) {
    window.refused += 1;
    throw new TypeError("Failed to fetch");
  }
  const answer = await original(address, options);
  if (late && address.startsWith(late)) await new Promise(go => held.push(go));
  return answer;
};
null
"""
"""Answers to addresses that begin with `late` are held; those to `broken` never come."""

RELEASE = "(window.late = null, held.splice(0).forEach(go => go()))"
STATUS = "document.getElementById('status').textContent"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_runs(tmp_path / "runs", 6, 3000)
    return tmp_path / "runs"


@pytest.fixture
def served(runs: Path, tmp_path: Path, browser: Browser) -> Iterator[Browser]:
    """The browser with the page of six runs, whose requests can be held."""
    with page_of(runs, tmp_path / "cache") as url:
        browser.open(url, width=1280)
        browser.wait_for(f"{DRAWN} && {CHART}.drawn.lines === 6")
        browser.evaluate(FETCH)
        yield browser
        browser.open("about:blank")


def test_a_zoom_that_is_taken_back_at_once_leaves_the_whole_curves(served):
    served.evaluate("(window.late = 'curves', page.focus.zoom([1000, 1100]))")
    served.wait_for("held.length > 0")
    served.evaluate("page.focus.zoom(null)")
    served.evaluate(RELEASE)
    served.wait_for("!document.querySelector('[aria-busy]')")
    served.settle()
    assert served.evaluate(f"{CHART}.complete") is True
    assert served.evaluate(f"{CHART}.lines.map(one => one.x[0] < 100)") == [True] * 6


def test_an_axis_that_is_chosen_and_left_at_once_leaves_the_curves(served):
    choose(served, axis="epoch")
    served.wait_for(f"{DRAWN} && {CHART}.drawn.axis === 'epoch'")
    served.evaluate("window.late = 'curves'")
    choose(served, axis="time")
    served.wait_for("held.length > 0")
    choose(served, axis="epoch")
    served.evaluate(RELEASE)
    served.wait_for("!document.querySelector('[aria-busy]')")
    served.settle()
    assert served.evaluate(f"[{CHART}.complete, {CHART}.drawn.lines]") == [True, 6]


def test_a_curve_that_changes_while_its_answer_is_under_way_is_asked_for_again(served, runs):
    served.evaluate("window.late = 'curves'")
    choose(served, axis="epoch")
    served.wait_for("held.length > 0")
    [first, *_] = sorted(runs.iterdir())
    table = first / "metrics.csv"
    head, *rows = table.read_text().splitlines()
    column = head.split(",").index("loss")
    cells = rows[-1].split(",")
    cells[column] = "7.5"
    table.write_text("\n".join([head, *rows[:-1], ",".join(cells)]) + "\n")
    served.wait_for("page.runs.all.some(run => run.metrics.loss.last === 7.5)")
    served.evaluate(RELEASE)
    served.wait_for("!document.querySelector('[aria-busy]')")
    served.settle()
    assert served.evaluate(f"{CHART}.lines.filter(one => one.y.at(-1) === 7.5).length") == 1


def test_a_chart_says_which_curves_are_still_to_come(served):
    foot = f"{CHART}.foot.textContent"
    note = f"{CHART}.note.textContent"
    assert served.evaluate(foot) == "6 runs"
    served.evaluate("window.late = 'curves'")
    choose(served, axis="epoch")
    assert served.evaluate(note) == "loading…"
    served.evaluate(RELEASE)
    served.wait_for(DRAWN)
    served.evaluate("window.broken = 'curves'")
    choose(served, axis="time")
    served.wait_for("!document.querySelector('[aria-busy]')")
    assert served.evaluate(note) == "not loaded: Failed to fetch"
    served.evaluate("window.broken = null")
    served.wait_for(f"{DRAWN} && {CHART}.drawn.axis === 'time'")
    assert served.evaluate(foot) == "6 runs"


def test_a_filter_that_was_chosen_without_a_connection_counts_once_it_is_back(served):
    served.evaluate("window.broken = 'where'")
    choose_later = f"page.choices.set({json.dumps({'filter': 'seed = 1'})})"
    served.evaluate(choose_later)
    served.wait_for(f"{STATUS} === 'Not connected'")
    seen = f"new MutationObserver(() => window.seen.push([{STATUS}, page.runs.filtered.length]))"
    target = "document.getElementById('status'), {childList: true}"
    served.evaluate(f"(window.seen = [], {seen}.observe({target}), window.broken = null)")
    served.wait_for("seen.length > 0")
    assert served.evaluate("seen[0]") == ["Up to date", 1]


def test_a_server_that_is_started_again_shows_the_runs_of_now(runs, tmp_path, browser):
    with page_of(runs, tmp_path / "cache") as url:
        browser.open(url)
        browser.wait_for(DRAWN)
    oldest, *others = sorted(runs.iterdir())
    shutil.rmtree(oldest)
    with page_of(runs, tmp_path / "cache", urlsplit(url).port):
        names = "page.runs.all.map(run => run.name).sort().join()"
        browser.wait_for(f"{names} === '{','.join(one.name for one in others)}'")
        browser.wait_for(f"{DRAWN} && {CHART}.drawn.lines === 5")
        assert texts(browser, "#status") == ["Up to date"]
        browser.open("about:blank")


def test_a_filter_fills_the_table_that_was_scrolled_to_its_end(tmp_path, browser):
    for number in range(60):
        name = f"2026-01-31T10-{number:02}-00"
        trail(tmp_path / "runs" / name, config={"seed": {"value": number % 20, "origin": "--each"}})
    with page_of(tmp_path / "runs", tmp_path / "cache") as url:
        browser.open(url)
        browser.wait_for("page.runs.all.length === 60")
        browser.settle()
        browser.evaluate("page.table.scroll.scrollTop = 1e6")
        browser.settle()
        shown = "document.querySelectorAll('.runs tbody tr[data-id]').length"
        listed = f"(page.choices.set({{filter: 'seed = 1'}}), page.settled.then(() => {shown}))"
        assert browser.evaluate(listed) == 3
        browser.open("about:blank")


def test_a_printed_page_has_all_rows_of_the_table(tmp_path, browser):
    for number in range(60):
        trail(tmp_path / "runs" / f"2026-01-31T10-{number:02}-00")
    with page_of(tmp_path / "runs", tmp_path / "cache") as url:
        browser.open(url)
        browser.wait_for("page.runs.all.length === 60")
        browser.settle()
        rows = "document.querySelectorAll('.runs tbody tr[data-id]').length"
        browser.evaluate(f"(addEventListener('beforeprint', () => window.printed = {rows}), null)")
        browser.call("Page.printToPDF")
        assert browser.evaluate("printed") == 60
        browser.settle()
        assert browser.evaluate(rows) < 60
        browser.open("about:blank")


def test_what_is_spoken_is_spoken_once(served):
    choose(served, filter="no_such_name > 1")
    told = "['shown', 'problem'].map(one => document.getElementById(one))"
    note = "new MutationObserver(() => window.seen.push(1))"
    watch = f"{told}.forEach(one => {note}.observe(one, {{childList: true, subtree: true}}))"
    served.evaluate(f"(window.seen = [], {watch})")
    served.evaluate("page.show()")
    served.settle()
    assert served.evaluate("seen") == []


def test_a_text_that_was_typed_stays_while_news_come(served):
    served.evaluate(
        "(one => (one.value = 'seed = 1', one.dispatchEvent(new Event('input')), page.show()))"
        "(document.getElementById('filter'))"
    )
    served.wait_for("page.choices.filter === 'seed = 1'")
    served.wait_for("page.runs.filtered.length === 1")


EMPHASIZED = """
(window.emphasized = [], [page.curves.chart('loss'), page.parallel, page.scatter].forEach(one => {
  const original = one.emphasize;
  one.emphasize = (context, line) => {
    emphasized.push(line.run.id);
    original.call(one, context, line);
  };
}))
"""


def test_a_run_that_is_pointed_at_stays_so_while_news_come(served):
    served.evaluate("page.highlight(page.runs.all[2])")
    served.evaluate(EMPHASIZED)
    served.evaluate("page.show()")
    served.settle()
    pointed = served.evaluate("page.runs.all[2].id")
    assert served.evaluate("emphasized.slice(-3)") == [pointed] * 3
    rows = "[...document.querySelectorAll('tr.pointed')].map(one => Number(one.dataset.id))"
    assert served.evaluate(rows) == [pointed]


def test_the_page_of_a_run_whose_process_was_killed_shows_its_death(tmp_path, browser):
    run = tmp_path / "runs" / "2026-01-31T10-00-00"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        here = {"pid": process.pid, "host": socket.gethostname(), "boot_id": boot_id()}
        trail(run, "running", **here)
        (run / "page").mkdir()
        facts = {"type": "run", "total": 3, "started": "2026-01-31T10:00:00+00:00", "metadata": {}}
        (run / "page" / "records.jsonl").write_text(json.dumps(facts) + "\n")
        with page_of(tmp_path / "runs", tmp_path / "cache") as url:
            browser.open(f"{url}0/")
            browser.wait_for("page.connection === 'live'")
            assert texts(browser, "#status") == ["Running"]
            process.kill()
            browser.wait_for(f"{STATUS} === 'Dead'")
            assert browser.evaluate("document.getElementById('status').className") == "status"
            browser.open(f"{url}0/")
            assert texts(browser, "#status") == ["Dead"], "who comes later sees it, too"
            browser.open("about:blank")


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    monitor = Monitor(3, terminal=False)
    yield monitor
    monitor.close()
    monitor.finish()


def test_a_zoom_beyond_the_end_shows_the_points_that_come(browser, monitor):
    monitor.log_steps([StepSeries("loss", range(100), [1.0] * 100)])
    browser.open(monitor.serve(0))
    browser.wait_for("page.connection === 'live'")
    browser.evaluate("page.focus.zoom([50, 150])")
    browser.wait_for("page.record.curves.get('loss').detail")
    monitor.log_steps([StepSeries("loss", range(100, 120), [2.0] * 20)])
    browser.wait_for("page.record.curves.get('loss').last.x === 119")
    browser.settle()
    assert browser.evaluate("page.charts[0].lines[0].x.at(-1)") == 119


POEM = "document.querySelector('.media-panel pre')?.textContent"


def show_poem(browser: Browser, monitor: Monitor) -> None:
    """Open the page of a run with one text, whose requests can be held."""
    monitor.text("poem", "one", step=1)
    monitor.flush()
    browser.open(monitor.serve(0))
    browser.wait_for("page.connection === 'live'")
    browser.wait_for(f"{POEM} === 'one'")
    browser.evaluate(FETCH)


def test_the_newest_medium_stays_whatever_answer_comes_last(browser, monitor):
    show_poem(browser, monitor)
    browser.evaluate("window.late = 'api/media?'")
    monitor.text("poem", "two", step=2)
    browser.wait_for("held.length === 1")
    browser.evaluate("window.late = null")
    monitor.text("poem", "three", step=3)
    browser.wait_for(f"{POEM} === 'three'")
    browser.evaluate(RELEASE)
    browser.settle()
    assert browser.evaluate(POEM) == "three"


def test_a_medium_that_did_not_come_is_asked_for_when_the_line_is_back(browser, monitor):
    show_poem(browser, monitor)
    browser.evaluate("window.broken = 'api/media?'")
    monitor.text("poem", "two", step=2)
    browser.wait_for("refused === 1")
    browser.evaluate("(window.broken = null, page.media.refresh())")
    browser.wait_for(f"{POEM} === 'two'")


VISIBLE = """
(hides => {
  Object.defineProperty(document, "hidden", {value: hides, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
})
"""


def test_a_page_that_nobody_sees_leaves_its_connection_to_others(browser, monitor):
    monitor.log(0, 1.0, {"loss": 1.0})
    browser.open(monitor.serve(0))
    browser.wait_for("page.connection === 'live'")
    browser.evaluate(f"{VISIBLE}(true)")
    # Browsers open six connections to one server.
    made = "Array.from({length: 6}, () => new EventSource('events'))"
    browser.evaluate(f"(window.others = {made}, null)")
    browser.wait_for("others.every(one => one.readyState === EventSource.OPEN)")
    browser.evaluate("others.forEach(one => one.close())")
    monitor.log(1, 1.0, {"loss": 0.5})
    browser.evaluate(f"{VISIBLE}(false)")
    browser.wait_for("page.record.records.length === 2")
    assert browser.console == []
