"""What a notebook shows of a run: a summary, and the live page in a frame."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from urllib.request import urlopen

import pytest

from flodl.errors import StateError
from tests.flodl.train.programs import training

EVIL = "</svg><script>stolen()</script>"


def tags(text):
    """The elements of a piece of HTML, as a browser separates them."""
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))
    parser.feed(text)
    return found


def test_a_summary_shows_the_first_curves_and_says_how_far_the_run_is(monitor, clock):
    monitor.set_identity(label="digits")
    assert "epoch 0 of 5" in monitor._repr_html_()
    for epoch, loss in enumerate([2.0, math.nan, 1.0, 0.5]):
        clock.now += 10
        monitor.log(epoch, 10.0, {"loss": loss, EVIL: 1.0, **{f"m{n}": 1.0 for n in range(6)}})
    text = monitor._repr_html_()
    assert ("<strong>digits</strong>" in text, "running · epoch 4 of 5 · 40.0s" in text) == (
        True,
        True,
    )
    assert "and 2 more metrics" in text
    assert "<small>loss</small> <b>0.5000</b>" in text
    [path, *_] = re.findall(r'd="([^"]+)"', text)
    assert path == "M0.0 2.0M106.7 23.3L160.0 34.0", "a value that is not finite leaves a gap"
    assert {tag for tag, _ in tags(text)} == {
        "div",
        "strong",
        "br",
        "small",
        "b",
        "svg",
        "path",
        "p",
    }
    monitor.finish("interrupted")
    assert "interrupted · " in monitor._repr_html_()


def test_a_frame_shows_the_live_page_and_the_summary_links_to_it(monitor):
    frame = monitor.live(500)
    assert frame.url == monitor.url
    [(tag, attributes)] = tags(frame._repr_html_())
    assert (tag, attributes["src"], attributes["height"]) == ("iframe", monitor.url, "500")
    with urlopen(frame.url) as answer:
        assert answer.status == 200
    assert f'href="{monitor.url}"' in monitor._repr_html_()
    monitor.close()


def test_the_result_of_a_training_is_shown_as_its_summary(tmp_path, monkeypatch):
    from flodl.train import RunDirectory

    monkeypatch.chdir(tmp_path)
    with RunDirectory.create("runs") as run:
        handle = training(epochs=1).run_dir(run).run()
    assert f'href="runs/{run.path.name}/report.html"' in handle._repr_html_()
    assert "complete · epoch 1 of 1" in handle._repr_html_()


def test_a_training_without_a_monitor_has_no_summary():
    handle = training(epochs=1).monitor(None).run()
    assert handle._repr_html_() is None
    with pytest.raises(StateError, match="fdl runs ui"):
        handle.live()
