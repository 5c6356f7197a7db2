"""The buttons of the live page that act on a training, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flodl.monitor import Monitor
from tests.waiting import wait_for

from .test_report import texts

STATE = {
    "paused": False,
    "stopping": False,
    "settings": {"beta": 1.0, "name": "<script>document.title = 'run'</script>"},
}


class Training:
    """Answers what a page asks for as a training does, one step later."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self._reply: Callable[[Mapping[str, Any]], object] = lambda _: None

    def post(self, form: Any, reply: Callable[[Mapping[str, Any]], object]) -> None:
        self.asked.append(form)
        self._reply = reply

    def answer(self, **answer: Any) -> None:
        self._reply(answer)


@pytest.fixture
def training() -> Training:
    return Training()


@pytest.fixture
def monitor(training: Training) -> Iterator[Monitor]:
    monitor = Monitor(3, terminal=False)
    monitor.set_identity(label="digits")
    monitor.serve(0, buttons=True)
    page = monitor.live_page
    assert page is not None
    page.steer(training.post)
    page.acts(STATE)
    monitor.log(0, 1.0, {"loss": 1.0})
    yield monitor
    monitor.close()
    monitor.finish()


def test_buttons_ask_the_training_and_show_what_it_answers(
    browser: Any, monitor: Monitor, training: Training, tmp_path: Path
) -> None:
    browser.open(monitor.url)
    browser.wait_for("page.connection === 'live'")
    browser.wait_for("document.querySelectorAll('#acts option').length === 2")
    assert texts(browser, "#acts button") == ["Pause", "Save a checkpoint", "Stop", "Set", "Set"]
    browser.evaluate("page.acts.pause.click()")
    until(training, {"flodl": 1, "act": "pause"})
    assert texts(browser, ".act-answer") == ["Waiting for the end of a step …"]
    training.answer(ok=True, text="paused after step 7")
    monitor.live_page.acts({"paused": True})  # type: ignore[union-attr]
    browser.wait_for("document.querySelector('.act-answer').textContent === 'paused after step 7'")
    browser.wait_for("page.acts.pause.textContent === 'Continue'")

    browser.evaluate("page.acts.rate.input.focus()")
    browser.evaluate("page.acts.rate.input.value = '-1'")
    browser.press("Enter")
    until(training, {"flodl": 1, "act": "lr", "value": "-1"})
    training.answer(ok=False, error="lr='-1': <script>document.title = 'run'</script>")
    browser.wait_for("document.querySelector('.act-answer.bad-value')")
    assert browser.evaluate("document.title") != "run"

    browser.evaluate("page.acts.setting.input.value = '2'")
    browser.evaluate("page.acts.setting.form.requestSubmit()")
    until(training, {"flodl": 1, "act": "set", "key": "beta", "value": "2"})

    browser.evaluate("page.acts.stop.click()")
    assert texts(browser, "#acts button")[2] == "Stop this training?"
    assert training.asked[-1]["act"] == "set", "one click does not stop a training"
    browser.evaluate("page.acts.stop.click()")
    until(training, {"flodl": 1, "act": "stop"})
    monitor.live_page.acts({"stopping": True})  # type: ignore[union-attr]
    browser.wait_for("page.acts.pause.disabled")
    names = "[...document.querySelectorAll('#acts button, #acts input, #acts select')]"
    assert browser.evaluate(f"{names}.every(one => one.ariaLabel || one.textContent)")
    for width in (400, 1280, 2560):
        browser.resize(width, 900)
        wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert browser.evaluate(wide)
        browser.screenshot(tmp_path / f"acts-{width}.png")
    monitor.finish()
    browser.wait_for("document.getElementById('acts').hidden")
    assert browser.console == []


def until(training: Training, wish: Mapping[str, Any]) -> None:
    """Wait until the browser's request has arrived."""
    wait_for(lambda: training.asked[-1:] == [wish], what=f"the training was not asked for {wish}")


def test_a_page_without_buttons_has_none(browser: Any) -> None:
    monitor = Monitor(3, terminal=False)
    monitor.log(0, 1.0, {"loss": 1.0})
    browser.open(monitor.serve(0))
    browser.wait_for("page.connection === 'live'")
    assert browser.evaluate("document.getElementById('acts').hidden")
    monitor.close()
