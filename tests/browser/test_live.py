"""The live page in a real browser, while a run goes on behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries

from .test_report import drawn, texts

RECEIVED = "page.record.records.map(one => one.epoch)"

STATES = """
window.seen = [];
new MutationObserver(() => seen.push(document.getElementById('status').textContent))
  .observe(document.getElementById('status'), { childList: true, subtree: true })
"""
"""Keeps what the page says of its connection: a slow machine may come too late to look."""


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    """A run of six epochs that nobody has to wait for."""
    monitor = Monitor(6, terminal=False)
    monitor.set_identity(label="digits", run="live", hash="4f9a2c81d0e77b6a")
    yield monitor
    monitor.close()
    monitor.finish()


def log(monitor: Monitor, *epochs: int) -> None:
    for epoch in epochs:
        monitor.log(epoch, 0.5, {"loss": 1 / (epoch + 1), "accuracy": 1 - 1 / (epoch + 1)})


def test_a_run_is_followed_from_the_middle_through_a_broken_line_to_its_end(browser, monitor):
    log(monitor, 0, 1)
    url = monitor.serve(0)
    browser.open(url)
    assert texts(browser, "h1, #status") == ["digits", "Running"]
    assert browser.evaluate(RECEIVED) == [1, 2]
    browser.wait_for("page.connection === 'live'")
    assert browser.evaluate("document.getElementById('status').className") == "status beating"
    log(monitor, 2)
    browser.wait_for("page.record.records.length === 3")
    browser.wait_for("document.querySelectorAll('#epochs tbody tr').length === 3")

    browser.evaluate(STATES)
    monitor.close()
    browser.wait_for("seen.includes('Reconnecting…')")
    log(monitor, 3)
    monitor.log_steps([StepSeries("loss", [0, 1, 2], [3.0, 2.0, 1.0])])
    browser.evaluate("window.sameDocument = true")
    assert monitor.serve(urlsplit(url).port) == url
    browser.wait_for("page.connection === 'live'")
    log(monitor, 4)
    browser.wait_for("page.record.records.length === 5 && page.record.curves.size === 1")
    assert browser.evaluate(RECEIVED) == [1, 2, 3, 4, 5], "nothing twice, nothing left out"
    assert browser.evaluate("window.sameDocument") is True, "without loading the page again"

    monitor.log_ledger({"forward": 3.0, "backward": 1.0})
    log(monitor, 5)
    monitor.finish()
    browser.wait_for("document.getElementById('status').textContent === 'Complete'")
    assert browser.evaluate(RECEIVED) == [1, 2, 3, 4, 5, 6]
    browser.wait_for("document.querySelectorAll('#epochs tbody tr').length === 6")
    assert texts(browser, ".ledger li") == ["forward3.0s75.0 %", "backward1.0s25.0 %"]

    browser.open(url)
    assert texts(browser, "#status") == ["Complete"]
    assert browser.evaluate(RECEIVED) == [1, 2, 3, 4, 5, 6], "who comes late sees it all"
    said = [line for line in browser.console if "net::ERR_" not in line]
    assert said == [], "nothing but the browser's own remark that the line broke"


def test_another_run_behind_the_same_address_replaces_the_page(browser, monitor):
    log(monitor, 0, 1, 2)
    port = urlsplit(monitor.serve(0)).port
    browser.open(monitor.url)
    browser.wait_for("page.connection === 'live'")
    monitor.close()
    following = Monitor(2, terminal=False)
    following.set_identity(label="letters")
    following.serve(port)
    browser.wait_for("document.querySelector('h1')?.textContent === 'letters'")
    assert browser.evaluate(RECEIVED) == []
    following.finish()
    following.close()


def test_a_hundred_thousand_points_are_thinned_and_a_zoom_fetches_the_rest(browser, monitor):
    steps = range(100_000)
    values = [1 + math.exp(-step / 20_000) * math.sin(step / 3) for step in steps]
    values[54_321] = 9.0
    monitor.log_steps([StepSeries("loss", steps, values)])
    monitor.serve(0)
    browser.open(monitor.url)
    assert browser.evaluate("document.getElementById('x-axis').value") == "step"
    [whole] = drawn(browser)
    assert 1000 < whole["points"] <= 2000
    assert browser.evaluate("page.record.curves.get('loss').max") == 9.0, "a peak is never lost"
    browser.wait_for("page.connection === 'live'")
    browser.evaluate("page.charts[0].focus.zoom([54000, 55000])")
    browser.wait_for("page.charts[0].lines[0].x.length === 1003")
    fine = browser.evaluate("page.record.curves.get('loss').detail.xs")
    assert fine == list(range(53_999, 55_002)), "every point of the range"
    monitor.log_steps([StepSeries("loss", range(100_000, 110_000), [0.5] * 10_000)])
    browser.wait_for("page.record.curves.get('loss').last.x === 109999")
    assert browser.evaluate("page.record.curves.get('loss').xs.length") < 8192
    assert browser.console == []


def test_a_hostile_name_and_dark_colours_under_the_content_security_policy(browser, monitor):
    name = "</script><script>window.stolen=1</script>"
    monitor.set_identity(label=name)
    monitor.set_svg("<svg xmlns='http://www.w3.org/2000/svg' width='30' height='20'/>")
    monitor.log(0, 1.0, {name: 1.0})
    monitor.serve(0)
    browser.open(monitor.url, dark=True)
    browser.wait_for("page.connection === 'live'")
    monitor.log(1, 1.0, {name: math.nan})
    monitor.log_steps([StepSeries(name, [0, 1], [1.0, math.nan])])
    monitor.set_svg("<svg xmlns='http://www.w3.org/2000/svg' width='60' height='20'/>")
    browser.wait_for("page.record.records.length === 2 && page.record.curves.size === 1")
    assert texts(browser, "h1") == [name]
    browser.wait_for("document.querySelector('#model img').naturalWidth === 60")
    background = "getComputedStyle(document.body).backgroundColor"
    assert browser.evaluate(background) == "rgb(14, 17, 22)"
    assert browser.evaluate("window.stolen ?? null") is None
    browser.evaluate("document.body.append(document.createElement('script'))")
    browser.evaluate("document.body.lastChild.textContent = 'window.stolen = 2'")
    assert browser.evaluate("window.stolen ?? null") is None, "no script but the page's own runs"
    assert browser.console
    assert all("Content Security Policy" in line for line in browser.console)
