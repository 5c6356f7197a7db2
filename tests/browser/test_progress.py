"""The page of a run in its first seconds, and after its program is gone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries

from .test_report import overflow, texts

STRIP = "#progress:not([hidden])"


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    monitor = Monitor(2, terminal=False)
    monitor.set_identity(label="digits", run="first", hash="4f9a2c81d0e77b6a")
    yield monitor
    monitor.close()
    monitor.finish()


def with_load(monitor: Monitor, *progress: int | None, **more: float) -> None:
    """Log a position once the load of the processor is known; the first reading has none."""
    while monitor._load.newest().cpu is None:
        time.sleep(0.02)
    monitor.log_progress(*progress, **more)


def test_the_first_epoch_is_followed_step_by_step(browser, monitor):
    monitor.log_progress(0, 0, 450)
    browser.open(monitor.serve(0))
    browser.wait_for("page.connection === 'live'")
    assert texts(browser, f"{STRIP} strong") == ["Epoch 1 of 2, step 0 of 450"]
    monitor.log_steps([StepSeries("loss", [0, 1], [2.0, 1.5])])
    monitor.log_ledger({"import": 1.5, "forward": 0.5})
    with_load(monitor, 0, 225, 450, rate=1234.5, eta=90.0)
    browser.wait_for("page.record.progress.step === 225")
    browser.wait_for("document.querySelectorAll('.ledger li').length === 2")
    head = f"document.querySelector({json.dumps(f'{STRIP} strong')}).textContent"
    browser.wait_for(f"{head} === 'Epoch 1 of 2, step 225 of 450'")
    facts = texts(browser, f"{STRIP} dl > div")
    assert facts[:2] == ["Speed1.23k samples/s", "Time left1m30s"]
    assert facts[2].startswith("Running for")
    bar = "document.querySelector('[role=progressbar]')"
    assert browser.evaluate(f"{bar}.getAttribute('aria-valuenow')") == "25", "of both epochs"
    spoken = browser.evaluate(f"{bar}.getAttribute('aria-valuetext')")
    assert spoken.startswith("Epoch 1 of 2, step 225 of 450, Speed 1.23k samples/s, Time left")
    # The values of steps are read from another file than the progress, and tiles follow later.
    browser.wait_for("document.querySelector('.tile').textContent.startsWith('loss')")
    tile = "[...document.querySelectorAll('.tile h3')].map(one => one.textContent)"
    browser.wait_for(f"{tile}.includes('Throughput')")
    tiles = texts(browser, ".tile")
    assert tiles[0] == "loss1.5000at step 1", "no epoch has a value yet"
    assert "Throughput1.23k samples/sin this epoch" in tiles
    assert texts(browser, "#booked") == ["2.0s booked"]
    assert {"Processor", "Memory"} <= set(texts(browser, ".gauge h3"))
    monitor.log_progress(0, 450, 450, phase="evaluating")
    browser.wait_for(f"{head} === 'Epoch 1 of 2, evaluating'")
    assert browser.console == []


def test_a_page_opened_late_and_a_report_show_the_position_too(browser, monitor, tmp_path):
    monitor.save_html(tmp_path / "report.html")
    with_load(monitor, 1, 7, None, rate=3.0)
    monitor.flush()
    monitor.serve(0)
    for page in (monitor.url, tmp_path / "report.html"):
        browser.open(page)
        assert texts(browser, f"{STRIP} strong") == ["Epoch 2 of 2, step 7"]
        bar = "document.querySelector('[role=progressbar]')"
        assert browser.evaluate(f"{bar}.hasAttribute('aria-valuenow')") is False, "unknown"
        assert {"Processor", "Memory"} <= set(texts(browser, ".gauge h3"))
    monitor.finish()
    browser.open(tmp_path / "report.html")
    assert texts(browser, STRIP) == [], "a run that has ended makes no progress"


def test_after_the_program_is_gone_its_last_state_stays(browser, monitor):
    monitor.log_progress(0, 9, 10, rate=5.0, eta=1.0)
    browser.open(monitor.serve(0))
    browser.wait_for("page.connection === 'live'")
    monitor.log(0, 1.0, {"loss": 0.5})
    browser.wait_for("page.record.records.length === 1")
    monitor.close()
    browser.wait_for("page.connection === 'gone'")
    (notice,) = texts(browser, "#notice:not([hidden])")
    assert notice.startswith("The run ended or its machine is not reachable. The page shows the")
    assert texts(browser, "#status") == ["Not reachable"]
    assert browser.evaluate("document.getElementById('notice').getAttribute('role')") == "alert"
    assert texts(browser, f"{STRIP} strong") == ["Epoch 1 of 2, step 9 of 10"]
    browser.wait_for("document.querySelectorAll('#epochs tbody tr').length === 1")
    assert texts(browser, "#epochs tbody tr")[0].startswith("10.5000")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_widths_are_used_and_none_overflows(browser, monitor, dark):
    names = ["loss", "val_loss", "accuracy", "lr"]
    monitor.log_progress(0, 9, 10, rate=5.0, eta=1.0)
    for epoch in range(2):
        monitor.log(epoch, 1.0, dict.fromkeys(names, 0.5))
    monitor.log_ledger({"forward": 1.0})
    url = monitor.serve(0)
    for width in (400, 1280, 2560):
        browser.open(url, width=width, dark=dark)
        assert overflow(browser) <= 0
        right = browser.evaluate(
            "Math.max(...[...document.querySelectorAll('.chart')]"
            ".map(one => one.getBoundingClientRect().right))"
        )
        assert right > 0.9 * width, "charts reach the edge"
    assert browser.console == []
