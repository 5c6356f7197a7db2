"""The report page as a file; what it looks like is tests/browser's."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest

from flodl.monitor import Monitor
from flodl.monitor.report import HtmlSink


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts as a browser separates it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.title, self.inside = [], [], "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):  # noqa: ARG002 - the parser's signature
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside == "title":
            self.title += data

    @property
    def data(self):
        return json.loads(self.scripts[0], parse_constant=pytest.fail)


def read(path):
    return Page(path.read_text(encoding="utf-8"))


@pytest.mark.case("runtime", 47)
def test_archive_fetches_nothing_and_survives_a_closing_script_tag(monitor, tmp_path):
    names = ["</script><script>alert(1)</script>", "<!--", "]]>", "$title", "naïve 学习", "\udc80"]
    monitor.set_identity(label="</title><script>x</script> & Söhne", run="$data")
    monitor.set_metadata({"config": {"</script>": {"value": "</script>", "origin": "<b>:1:1"}}})
    monitor.log(0, 1.0, {name: float(place) for place, name in enumerate(names)})
    monitor.save_html(tmp_path / "report.html")
    monitor.finish()
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    # A digest in the policy may hold two slashes by chance.
    assert not re.search("https?:|//[a-z]", re.sub(r"'sha256-[^']*'", "", text).lower())
    page = Page(text)
    assert page.title == "</title><script>x</script> & Söhne · $data"
    assert page.data["records"][0]["metrics"] == {name: i for i, name in enumerate(names)}
    config = page.data["info"]["metadata"]["config"]
    assert config == {"</script>": {"value": "</script>", "origin": "<b>:1:1"}}
    # One script with data and the page's own; nothing points outside.
    assert [a for t, a in page.tags if t == "script"] == [
        {"type": "application/json", "id": "data"},
        *[{}] * (len(page.scripts) - 1),
    ]
    links = [a.get("href") or a.get("src") for t, a in page.tags if t in ("link", "img", "iframe")]
    assert links == ["data:,"]
    assert not re.search(r"@import|url\(|\bimport\(|fetch\(|XMLHttpRequest|WebSocket", text)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy


def test_metrics_that_are_not_finite_are_text_and_other_numbers_null(monitor, tmp_path):
    monitor.set_metadata({"best": math.inf})
    monitor.log(0, math.nan, {"loss": math.nan, "up": math.inf, "down": -math.inf, "ok": 1.5})
    monitor.save_html(tmp_path / "report.html")
    monitor.finish("diverged")
    data = read(tmp_path / "report.html").data
    metrics = {"loss": "nan", "up": "inf", "down": "-inf", "ok": 1.5}
    assert data["records"][0]["metrics"] == data["finish"]["metrics"] == metrics
    assert data["records"][0]["duration"] is None
    assert data["info"]["metadata"] == {"best": None}
    assert data["finish"]["status"] == "diverged"


def test_the_page_is_there_from_the_start_and_complete_at_the_end(monitor, tmp_path):
    path = tmp_path / "new" / "report.html"
    monitor.save_html(path)
    data = read(path).data
    assert (data["records"], data["finish"], data["info"]["total"]) == ([], None, 5)
    monitor.log(0, 1.0, {"loss": 1.0})
    monitor.set_identity(label="digits", hash="4f9a2c81", run="first")
    monitor.finish()
    page = read(path)
    assert page.title == "digits · first"
    assert page.data["info"]["hash"] == "4f9a2c81"
    assert [one["epoch"] for one in page.data["records"]] == [1]
    assert page.data["finish"]["status"] == "complete"


def test_pages_of_a_running_training_are_spaced_out(tmp_path):
    path = tmp_path / "report.html"
    monitor = Monitor(500, terminal=False)
    monitor.add_sink(HtmlSink(path, refresh_seconds=3600))
    written = set()
    for epoch in range(500):
        monitor.log(epoch, 1.0)
        if path.exists():
            written.add(path.stat().st_ino)
    assert len(written) <= 2
    monitor.finish()
    assert len(read(path).data["records"]) == 500


def test_a_drawing_travels_with_the_page(monitor, tmp_path):
    monitor.set_svg(b"<svg><text>\xff</text></svg>")
    monitor.save_html(tmp_path / "report.html")
    assert read(tmp_path / "report.html").data["info"]["svg"] == "<svg><text>\ufffd</text></svg>"
    monitor.set_svg(None)
    monitor.save_html(tmp_path / "report.html")
    assert read(tmp_path / "report.html").data["info"]["svg"] == ""


def test_the_final_ledger_reaches_a_page_that_is_still_there(monitor, tmp_path, capsys):
    names = ("kept", "removed", "blocked")
    for name in names:
        monitor.save_html(tmp_path / f"{name}.html")
    monitor.export_csv(tmp_path / "metrics.csv")
    monitor.amend_ledger({"forward": 1.0})
    assert read(tmp_path / "kept.html").data["finish"] is None, "the run has not ended"
    monitor.finish()
    (tmp_path / "removed.html").unlink()
    (tmp_path / "blocked.html").unlink()
    (tmp_path / "blocked.html").mkdir()
    monitor.amend_ledger({"forward": 2.0})
    assert read(tmp_path / "kept.html").data["finish"]["ledger"] == {"forward": 2.0}
    assert not (tmp_path / "removed.html").exists()
    told = capsys.readouterr().err
    assert f"the time ledger in {tmp_path / 'blocked.html'} is not final: " in told
    assert told.count("\n") == 1
