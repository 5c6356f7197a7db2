"""Requests that act on a training through its live page: who may send them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flodl.monitor import Monitor
from flodl.train import Callback, RunDirectory
from tests.flodl.train.programs import training
from tests.rows import each_row

WISH = {"flodl": 1, "act": "pause"}


@pytest.fixture
def asked() -> list[Any]:
    return []


@pytest.fixture
def served(asked: list[Any]) -> Iterator[Monitor]:
    monitor = Monitor(2, terminal=False)
    monitor.serve(0, buttons=True)
    assert monitor.live_page is not None
    monitor.live_page.steer(lambda form, _: asked.append(form))
    yield monitor
    monitor.close()


def post(url: str, body: str, path: str = "api/act", **changes: str | None) -> tuple[int, str]:
    """Send what the page sends, with some headers changed or, if None, left out."""
    address = urlsplit(url)
    host = f"127.0.0.1:{address.port}"
    headers = {
        "Host": host,
        "Origin": f"http://{host}",
        "Content-Type": "application/json",
        "X-Flodl-Token": address.path.strip("/"),
    }
    for name, value in changes.items():
        headers[name.replace("_", "-")] = value  # type: ignore[assignment]
    headers = {name: value for name, value in headers.items() if value is not None}
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    try:
        connection.request("POST", address.path + path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_page_itself_may_act(served: Monitor, asked: list[Any]) -> None:
    assert served.url is not None
    assert post(served.url, json.dumps(WISH)) == (200, '{"ok": true}')
    assert asked == [WISH]


@each_row(
    ("changes", "status", "reason"),
    [
        ({"X_Flodl_Token": None}, 403, "wrong or missing token"),
        ({"X_Flodl_Token": "guess"}, 403, "wrong or missing token"),
        ({"Origin": None}, 403, "Origin"),
        ({"Origin": "null"}, 400, "Origin: null is not this page"),
        ({"Origin": "http://evil.example"}, 400, "Origin: http://evil.example is not this page"),
        ({"Host": "evil.example"}, 400, "is not this page"),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403, "Host: evil.example"),
        ({"Content_Type": "text/plain"}, 415, "application/json"),
    ],
)
def test_other_pages_and_guesses_are_refused(
    served: Monitor, asked: list[Any], changes: dict[str, Any], status: int, reason: str
) -> None:
    assert served.url is not None
    code, text = post(served.url, json.dumps(WISH), **changes)
    assert (code, reason in text) == (status, True), text
    assert asked == []


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [("{", "api/act", 400), ("{}" * 4000, "api/act", 413), (json.dumps(WISH), "", 405)],
)
def test_other_requests_are_refused(
    served: Monitor, asked: list[Any], body: str, path: str, status: int
) -> None:
    assert served.url is not None
    assert post(served.url, body, path)[0] == status
    assert asked == []


def test_a_page_without_buttons_takes_no_acts() -> None:
    monitor = Monitor(2, terminal=False)
    try:
        url = monitor.serve(0)
        assert monitor.live_page is not None
        monitor.live_page.steer(lambda *_: pytest.fail("it was asked"))
        assert post(url, json.dumps(WISH))[0] == 405
    finally:
        monitor.close()


class Pressing(Callback):
    """Presses a button of its own live page, and looks at the token."""

    token = ""

    def on_step_end(self, run: Any) -> None:
        if run.global_step != 2:
            return
        self.token = urlsplit(run.monitor.url).path.strip("/")
        wish = json.dumps({"flodl": 1, "act": "lr", "value": "0.01"})
        thread = threading.Thread(target=post, args=(run.monitor.url, wish))
        thread.start()
        thread.join()
        time.sleep(0.05)


def test_a_button_changes_a_training_and_its_token_is_in_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pressing = Pressing()
    with RunDirectory.create(tmp_path) as run:
        built = training(epochs=3).run_dir(run).callbacks(pressing)
        built.live(buttons=True).run()
    [line] = (run.path / "acts.jsonl").read_text().splitlines()
    act = json.loads(line)
    assert (act["step"], act["act"], act["value"], act["by"]) == (2, "lr", 0.01, "live page")
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert "lr 0.05 -> 0.01, by live page" in (run.path / "report.html").read_text()
    assert len(pressing.token) > 20
    assert [path.name for path in files if pressing.token.encode() in path.read_bytes()] == []
    assert pressing.token in capsys.readouterr().out, "only the terminal shows the whole address"
