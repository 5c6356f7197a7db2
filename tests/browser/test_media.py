"""The panels of media in a real browser: in a report and on a live page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl.monitor import Monitor
from flodl.monitor.report import HtmlSink
from tests.rows import sampled

from .test_report import click, count, overflow, texts, unnamed

EVIL = "</script><script>window.stolen=1</script>"
CLASSES = ["cat", EVIL, "horse"]


def panel(name: str) -> str:
    """The selector of a panel, by kind."""
    return f".media-panel[data-kind='{name}']"


def record(monitor: Monitor, steps: range) -> None:
    """One record of every kind at each step."""
    for step in steps:
        values = torch.linspace(-1, 1, 1000) * step
        values[0] = math.nan
        monitor.histogram("weights/0.weight", values, step=step)
        monitor.image("samples/digits", np.full((8, 8), 20 * step, np.uint8), step=step)
        text = f"sample {step}\nfirst line\n{EVIL}\nlast line"
        monitor.text("generated/poem", text, step=step)
        rows = [{"q": f"{at}+{step}", "a": at + step, EVIL: EVIL} for at in range(5)]
        monitor.table("generated/answers", rows, step=step)
        labels = [0, 0, 0, 1, 1, 2]
        monitor.confusion_matrix("cm", labels, [0, 0, 1, 1, 1, 2], classes=CLASSES, step=step)
        monitor.roc("roc", labels, np.eye(3)[[0, 0, 1, 1, 1, 2]], classes=CLASSES, step=step)
        monitor.pr("pr", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], step=step)


def page(folder: Path, **options: int) -> Path:
    monitor = Monitor(2, terminal=False)
    monitor.set_identity(label="digits")
    monitor.add_sink(HtmlSink(folder / "report.html", **options))
    record(monitor, range(1, 6))
    monitor.log(0, 0.5, {"loss": 1.0})
    monitor.finish(timeout=60)
    return folder / "report.html"


def show(browser) -> None:
    """Show the section at once; panels outside of the window are not drawn."""
    browser.resize(1400, 4000)
    browser.wait_for("page.media.panels.every(one => one.body.firstChild)")
    browser.settle()


def slide(browser, kind: str, to: int) -> None:
    slider = f'document.querySelector("{panel(kind)} input[type=range]")'
    browser.evaluate(f"{slider}.value = {to}, {slider}.dispatchEvent(new Event('input'))")
    browser.settle()


def test_all_panels_of_a_report(browser, tmp_path):
    file = page(tmp_path)
    browser.open(file)
    show(browser)
    assert texts(browser, ".media-group > summary") == [
        "weights1", "samples1", "generated2", "General3",
    ]  # fmt: skip
    outputs = texts(browser, ".media-steps output")
    assert outputs == ["step 5, epoch 1"] * 7
    assert browser.evaluate("window.stolen ?? null") is None
    assert count(browser, ".media-group script") == 0
    assert browser.console == []
    assert browser.requests[0] == file.as_uri()
    assert all(one.startswith("data:") for one in browser.requests[1:]), "one file, nothing else"


def test_every_control_of_a_report_and_its_media_has_a_name(browser, tmp_path):
    browser.open(page(tmp_path))
    show(browser)
    assert unnamed(browser) == []


def test_an_image_follows_its_slider(browser, tmp_path):
    browser.open(page(tmp_path))
    show(browser)
    image = f'document.querySelector("{panel("image")} img")'
    last = browser.evaluate(f"{image}.src")
    slide(browser, "image", 1)
    assert browser.evaluate(f"{image}.src") != last
    assert browser.evaluate(f"{image}.alt") == "samples/digits at step 2, epoch 1"
    browser.evaluate(f"{image}.decode()")
    assert browser.evaluate(f"{image}.naturalWidth") == 8
    slider = f'document.querySelector("{panel("image")} input[type=range]")'
    browser.evaluate(f"{slider}.focus()")
    assert browser.evaluate(f"{slider}.getAttribute('aria-label')") == "Step of samples/digits"
    assert browser.evaluate(f"{slider}.getAttribute('aria-valuetext')") == "step 2, epoch 1"


def test_a_histogram_shows_its_values_and_what_is_not_finite(browser, tmp_path):
    browser.open(page(tmp_path))
    show(browser)
    notes = texts(browser, f"{panel('histogram')} .media-note:not([hidden])")
    assert notes[0].startswith("999 values from -4.9900 to 5.0000, mean 0.005")
    assert notes[1] == "not finite: 1 nan"
    plot = f'document.querySelector("{panel("histogram")} .plot")'
    said = browser.evaluate(f"{plot}.getAttribute('aria-label')")
    steps = "weights/0.weight over 5 steps, from step 1, epoch 1 to step 5, epoch 1"
    assert said.startswith(f"{steps}; at step 5, epoch 1: 999 values")
    assert "not finite: 1 nan" in said
    lines = "page.media.panels.find(one => one.kind === 'histogram').plot.lines.length"
    assert browser.evaluate(lines) == 5, "one outline per step"
    browser.evaluate(f"{plot}.focus()")
    browser.press("Home")
    assert browser.evaluate(f"{plot}.getAttribute('aria-valuetext')").endswith(" values")
    slide(browser, "histogram", 0)
    notes = texts(browser, f"{panel('histogram')} .media-note")
    assert notes[0].startswith("999 values from -0.9980 to 1.0000")


def test_the_search_of_the_page_finds_media(browser, tmp_path):
    browser.open(page(tmp_path))
    show(browser)

    assert texts(browser, f"{panel('text')} pre") == [f"sample 5 first line {EVIL} last line"]
    assert count(browser, f"{panel('table')} tbody tr") == 5
    field = "document.getElementById('search')"
    browser.evaluate(f"{field}.value = 'poem', {field}.dispatchEvent(new Event('input'))")
    assert count(browser, ".media-panel:not([hidden])") == 1
    assert count(browser, ".media-group:not([hidden])") == 1


def test_a_confusion_matrix_tells_its_cells_by_mouse_and_keys(browser, tmp_path):
    browser.open(page(tmp_path))
    show(browser)
    matrix = panel("confusion_matrix")
    cells = [["2", "1", "0"], ["0", "2", "0"], ["0", "0", "1"]]
    assert texts(browser, f"{matrix} tbody td") == [text for row in cells for text in row]
    assert texts(browser, f"{matrix} .matrix-readout") == ["5 of 6 right (83.3 %)"]
    browser.evaluate(f'document.querySelector("{matrix} tbody td").focus()')
    browser.press("ArrowRight")
    told = f"true cat, predicted {EVIL}: 1 (33.3 % of 3 cat)"
    assert texts(browser, f"{matrix} .matrix-readout") == [told]
    browser.press("End")
    browser.press("ArrowDown")
    assert browser.evaluate("document.activeElement.ariaLabel").startswith(
        f"true {EVIL}, predicted horse"
    )
    cell = f'document.querySelector("{matrix} tbody td").getBoundingClientRect()'
    box = browser.evaluate(f"(({{x, y}}) => [x, y])({cell})")
    browser.point(box[0] + 5, box[1] + 5)
    assert texts(browser, f"{matrix} .matrix-readout")[0].startswith("true cat, predicted cat: 2")
    click(browser, f"{matrix} .media-search button:nth-child(2)")
    assert texts(browser, f"{matrix} tbody tr:first-child td") == ["66.7", "33.3", "0"]


def test_curves_have_their_areas_and_are_read_by_keys(browser, tmp_path):
    browser.open(page(tmp_path))
    show(browser)
    legend = texts(browser, f"{panel('roc')} .legend button")
    assert legend[0] == "cat · AUC 0.8333"
    assert texts(browser, f"{panel('pr')} .legend button") == ["class 1 · AP 0.8333"]
    plot = f'document.querySelector("{panel("pr")} .plot")'
    assert "class 1 AP 0.8333" in browser.evaluate(f"{plot}.getAttribute('aria-label')")
    browser.evaluate(f"{plot}.focus()")
    browser.press("ArrowRight")
    assert texts(browser, f"{panel('pr')} .media-note")[0].startswith("class 1: recall 0.")
    browser.press("End")
    assert texts(browser, f"{panel('pr')} .media-note") == [
        "class 1: recall 1.000, precision 0.500"
    ]
    names = "page.media.panels.find(one => one.kind === 'roc').plot.lines.map(one => one.name)"
    assert len(browser.evaluate(names)) == 4, "three classes and the diagonal"
    click(browser, f"{panel('roc')} .legend button")
    assert browser.evaluate(names)[0] == ""
    assert len(browser.evaluate(names)) == 3
    roc = f'document.querySelector("{panel("roc")} .plot")'
    browser.evaluate(f"{roc}.focus()")
    for key in ("ArrowRight", "ArrowDown"):
        browser.press(key)
    assert texts(browser, f"{panel('roc')} .media-note")[0].startswith(
        "horse: false positive rate "
    )
    assert browser.console == []


def test_a_report_says_what_it_leaves_out(browser, tmp_path):
    browser.open(page(tmp_path, media_bytes=3000))
    note = texts(browser, "#media-section > .note")[0]
    assert "media records" in note
    assert "this file holds at most 3 KB of media" in note


@pytest.mark.parametrize(("dark", "width"), sampled((False, True), (400, 1400, 2560)))
def test_the_panels_fit_every_window(browser, tmp_path, width, dark):
    browser.open(page(tmp_path), width=width, dark=dark)
    assert overflow(browser) <= 0
    assert browser.console == []


def test_a_live_page_shows_media_as_they_come(browser):
    monitor = Monitor(2, terminal=False)
    try:
        record(monitor, range(1, 3))
        monitor.flush()
        browser.open(monitor.serve(0))
        browser.wait_for("page.media.panels.length === 7")
        show(browser)
        assert set(texts(browser, ".media-steps output")) == {"step 2, epoch 1"}
        slide(browser, "text", 0)
        record(monitor, range(3, 4))
        browser.wait_for(
            "[...document.querySelectorAll('.media-steps output')]"
            ".filter(one => one.textContent === 'step 3, epoch 1').length === 6"
        )
        assert texts(browser, f"{panel('text')} .media-steps output") == ["step 1, epoch 1"]
        image = f'document.querySelector("{panel("image")} img")'
        browser.wait_for(f"{image}.naturalWidth === 8")
        assert "image.png?name=samples%2Fdigits&step=3" in browser.evaluate(f"{image}.src")
        assert browser.console == []
    finally:
        monitor.close()
        monitor.finish()


PRINTED = """
window.isDark = () => getComputedStyle(document.body).backgroundColor === 'rgb(14, 17, 22)';
addEventListener('beforeprint', () => {
  window.printed = {
    dark: isDark(),
    empty: page.media.panels.filter(one => !one.body.firstChild).length,
    wide: [...document.querySelectorAll('.plot')].filter(one => one.scrollWidth > 360).length,
    drawn: page.charts.filter(one => one.scales).length,
  };
})
"""


def test_paper_is_white_and_has_all_media_at_the_width_of_its_columns(browser, tmp_path):
    browser.open(page(tmp_path), width=390, height=500, dark=True)
    browser.evaluate(PRINTED)
    assert browser.evaluate("isDark() && page.media.panels.some(one => !one.body.firstChild)")
    pdf = browser.call("Page.printToPDF")["data"]
    assert pdf
    printed = browser.evaluate("window.printed")
    assert printed == {"dark": False, "empty": 0, "wide": 0, "drawn": 1}
    browser.settle()
    assert browser.evaluate("isDark() && !document.documentElement.dataset.prints")
    assert browser.console == []
