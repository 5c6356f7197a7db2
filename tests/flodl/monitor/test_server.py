"""The live page's server, asked over real sockets."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest

from fdl.runs.pages.one import RunPage
from fdl.runs.pages.server import PageServer, Request, is_loopback
from fdl.runs.step_files import StepFiles
from flodl.errors import StateError
from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries
from tests.rows import each_row
from tests.waiting import wait_for


@pytest.fixture
def served(monitor):
    """The monitor of five epochs, with its page on a free port."""
    monitor.serve(0)
    yield monitor
    monitor.close()


def get(monitor, path="", **headers):
    """Status, headers and body of one request."""
    address = urlsplit(monitor.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    try:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", address.path + path, headers=fields)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


class Stream:
    """A client of the event stream."""

    def __init__(self, monitor, path="events", **headers):
        address = urlsplit(monitor.url)
        self.connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request("GET", address.path + path, headers=fields)
        self.answer = self.connection.getresponse()
        assert self.answer.headers["Content-Type"] == "text/event-stream"

    def __iter__(self):
        """Yield (kind, id, data) until the server hangs up."""
        kind, number = "", None
        for raw in self.answer:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind, number = line.removeprefix("event: "), None
            elif line.startswith("id: "):
                number = int(line.removeprefix("id: "))
            elif line.startswith("data: "):
                yield kind, number, json.loads(line.removeprefix("data: "))

    def epochs(self):
        """Epochs to the end, and whether ``complete`` came last; ids rise."""
        seen = list(self)
        self.connection.close()
        told = [(number, data["epoch"]) for kind, number, data in seen if kind == "epoch"]
        assert [number for number, _ in told] == sorted({number for number, _ in told})
        return [epoch for _, epoch in told], seen[-1][0] == "complete"

    def place(self, epoch):
        """The id of an epoch, once it has come."""
        for kind, number, data in self:
            if kind == "epoch" and data["epoch"] == epoch:
                return number
        raise AssertionError(f"epoch {epoch} never came")


def epochs_of(monitor):
    """The epochs in the records of a page."""
    lines = get(monitor, "records.jsonl")[2].splitlines()
    return [line["epoch"] for line in map(json.loads, lines) if line["type"] == "epoch"]


def log(monitor, *epochs):
    for epoch in epochs:
        monitor.log(epoch, 1.0, {"loss": 1 / (epoch + 1)})


@pytest.mark.case("runtime", 45)
def test_every_epoch_reaches_a_late_client_once_and_in_order(served):
    log(served, 0, 1, 2)
    early = Stream(served)
    log(served, 3, 4)
    known = Stream(served)
    place = str(known.place(4))
    known.connection.close()
    resumed = Stream(served, Last_Event_ID=place)
    served.finish()
    everything = [1, 2, 3, 4, 5]
    assert early.epochs() == (everything, True)
    assert resumed.epochs() == ([5], True)
    assert Stream(served).epochs() == (everything, True), "after the end too"
    assert Stream(served, Last_Event_ID=place).epochs() == ([5], True)
    assert Stream(served, f"events?after={place}").epochs() == ([5], True)
    assert Stream(served, Last_Event_ID="nonsense").epochs() == (everything, True)
    assert Stream(served, Last_Event_ID="999999").epochs() == (everything, True), "of another run"


def test_a_reader_misses_no_point_from_the_first_byte_of_the_stream_on(served):
    closing = threading.Event()
    parts = RunPage(served._folder).answer(Request("/events", {}), closing)
    assert next(parts) == b"retry: 1000\n\n"
    served.log_steps([StepSeries("x", [0, 1], [1.0, 2.0])])  # before anything else is read
    wait_for(lambda: StepFiles.read(served._folder).names)
    closing.set()
    assert b'"values": [1.0, 2.0]' in b"".join(parts)


@pytest.mark.case("runtime", 81)
def test_what_is_not_finite_is_text_in_the_stream(served):
    stream = Stream(served)
    events = iter(stream)
    next(events)
    served.log(0, 1.0, {"x": math.nan})
    served.log_steps([StepSeries("x", [0, 1], [math.nan, 2.0])])
    served.finish()
    told = {kind: data for kind, _, data in events}
    assert told["epoch"]["metrics"] == {"x": "nan"}
    assert told["steps"] == {
        "series": [{"name": "x", "steps": [0, 1], "values": ["nan", 2.0]}],
        "clock": {"steps": [1], "seconds": [0.0]},
    }
    assert told["complete"]["metrics"] == {"x": "nan"}


def test_no_epoch_is_lost_or_doubled_while_clients_come_and_go(clock):
    monitor = Monitor(400, clock=clock, terminal=False)
    monitor.serve(0)
    streams = []
    for epoch in range(400):
        if epoch % 40 == 0:
            streams.append(Stream(monitor))
        monitor.log(epoch, 1.0)
    monitor.finish()
    everything = list(range(1, 401))
    for stream in streams:
        assert stream.epochs() == (everything, True)
    monitor.close()


def test_what_the_paths_hold(served):
    served.set_svg("<svg/>")
    served.set_identity(label="digits")
    log(served, 0, 1)
    served.log_steps([StepSeries("loss", range(10), [float(9 - n) for n in range(10)])])
    served.log_steps([StepSeries("a b&c", [3], [1.0])])
    served.flush()
    status, headers, page = get(served)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "<title>digits</title>" in page
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    status, headers, drawing = get(served, "graph.svg")
    assert (status, headers["Content-Type"], drawing) == (200, "image/svg+xml", "<svg/>")
    assert epochs_of(served) == [1, 2]
    assert json.loads(get(served, "api/series")[2]) == {
        "names": ["loss", "a b&c"],
        "clock": {"steps": [9], "seconds": [0.0]},
    }
    [part] = json.loads(get(served, "api/series?name=loss&from=4&to=6")[2])["series"]
    assert part == {"name": "loss", "steps": [3, 4, 5, 6, 7], "values": [6.0, 5.0, 4.0, 3.0, 2.0]}
    [other] = json.loads(get(served, f"api/series?name={quote('a b&c')}")[2])["series"]
    assert other["steps"] == [3]
    assert get(served, "api/series?name=none")[0] == 404
    assert get(served, "api/series?name=loss&points=many")[0] == 400
    assert get(served, "nothing/here")[::2] == (404, "404 Not Found: there is no /nothing/here\n")


def test_thinned_curves_keep_their_extremes(served):
    values = [0.0] * 50_000
    values[12_345], values[33_333] = 7.0, -7.0
    served.log_steps([StepSeries("loss", range(50_000), values)])
    served.flush()
    [curve] = json.loads(get(served, "api/series?name=loss&points=500")[2])["series"]
    assert len(curve["steps"]) <= 500
    points = dict(zip(curve["values"], curve["steps"], strict=True))
    assert points[7.0] == pytest.approx(12_345, abs=256), "inside of its piece"
    assert points[-7.0] == pytest.approx(33_333, abs=256)
    assert curve["steps"] == sorted(curve["steps"])


def raw(monitor, request):
    """Send bytes, in which ``/~`` is the beginning of every path; return all that comes back."""
    address = urlsplit(monitor.url)
    with socket.create_connection(("127.0.0.1", address.port), timeout=60) as channel:
        channel.sendall(request.replace(b"/~", address.path.rstrip("/").encode()))
        answer = b""
        while piece := channel.recv(65536):
            answer += piece
        return answer.decode()


@each_row(
    ("request_", "status"),
    [
        (b"POST /~/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /~/ HTTP/1.1\r\n\r\n", 403),
        (b"GET /~/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET /~/ HTTP/1.1\r\nHost: 127.0.0.1.evil.example:3000\r\n\r\n", 403),
        (b"GET /~/records.jsonl HTTP/1.1\r\nHost: LOCALHOST:8080\r\n\r\n", 200),
        (b"GET /~/records.jsonl HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200),
        (b"GET /[ HTTP/1.1\r\nHost: localhost\r\n\r\n", 403),
        (b"GET /~//[ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /~/ HTTP/1.1\r\nno colon\r\nHost: localhost\r\n\r\n", 403),
        (b"PUT /~/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /~/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: ten\r\n\r\n", 411),
        (b"GET /~/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET /~/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /~/ HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /~/ HTTP/1.1\r\nHost: localhost\r\nhost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/~/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET evil.example HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /~/ HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 400),
        (b"GET /~/ HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n", 400),
        (b"GET /~/ HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n", 200),
        (b"GET /~/ HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
    ],
)
def test_odd_requests_and_strange_names_are_refused(served, request_, status):
    assert raw(served, request_).startswith(f"HTTP/1.0 {status} ")
    assert get(served)[0] == 200


@each_row("host", ["127.0.0.1", "0.0.0.0"])
def test_every_path_needs_the_token(host):
    monitor = Monitor(1, terminal=False)
    monitor.serve(0, host=host)
    address = urlsplit(monitor.url)
    assert re.fullmatch(r"/[\w-]{22}/", address.path)
    token = address.path.strip("/")
    for path in ("", "events", "graph.svg", "records.jsonl", "api/series"):
        for wrong in ("", token[:-1] + "/", token + "x/"):
            head = f"GET /{wrong}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert raw(monitor, head.encode()).startswith("HTTP/1.0 403 ")
    name = "localhost" if host == "127.0.0.1" else "whatever"
    head = f"GET /{token}/records.jsonl HTTP/1.1\r\nHost: {name}\r\n\r\n"
    assert raw(monitor, head.encode()).startswith("HTTP/1.0 200 ")
    head = f"GET /{token} HTTP/1.1\r\nHost: {name}\r\n\r\n"
    assert raw(monitor, head.encode()).endswith("404 Not Found: the address ends with a slash\n")
    monitor.close()
    monitor.serve(0)
    assert urlsplit(monitor.url).path == address.path, "a page that is open finds it again"
    monitor.close()


def test_the_token_is_kept_in_a_file_that_only_its_user_can_read(served):
    file = Path(os.environ["FLODL_CACHE_DIR"]) / "page-token"
    assert file.read_text().strip() == urlsplit(served.url).path.strip("/")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    served.close()
    served.serve(0)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() == urlsplit(served.url).path.strip("/")


def test_names_of_this_machine():
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["", "0.0.0.0", "192.168.0.1", "localhost.evil.example", "::"]))


@each_row("port", [-1, 65536, 99999])
def test_a_port_that_does_not_exist_is_refused(port):
    with pytest.raises(StateError, match=rf"serve\(port={port}\): ports are 0 to 65535"):
        Monitor(1, terminal=False).serve(port)


def test_closing_frees_the_port_and_the_run_goes_on(served):
    url = served.url
    assert served.serve(0) == url, "it is served once"
    stream = Stream(served)
    port = urlsplit(url).port
    log(served, 0)
    served.flush()
    served.close()
    assert served.url is None
    assert [data["epoch"] for kind, _, data in stream if kind == "epoch"] == [1]
    served.close()
    log(served, 1)
    assert served.serve(port) == url
    served.flush()
    assert epochs_of(served) == [1, 2]


def test_a_busy_port_gives_a_warning_and_a_free_one(served, capsys):
    port = urlsplit(served.url).port
    other = Monitor(1, terminal=False)
    url = other.serve(port)
    assert url == other.url
    assert urlsplit(url).port not in (port, 0)
    assert get(other)[0] == 200
    other.close()
    told = capsys.readouterr().err
    assert f"cannot use 127.0.0.1:{port} (Address already in use)" in told
    assert f"it uses 127.0.0.1:{urlsplit(url).port}" in told


@each_row("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_gives_a_warning_and_a_page_for_this_one(host, capsys):
    monitor = Monitor(1, terminal=False)
    url = urlsplit(monitor.serve(0, host=host))
    assert url.hostname == "127.0.0.1"
    assert get(monitor)[0] == 200
    monitor.close()
    assert f"cannot use {host}:0 (" in capsys.readouterr().err


def test_the_address_is_told_on_the_terminal(capsys):
    monitor = Monitor(1)
    monitor.serve(0)
    assert capsys.readouterr().out == f"  live page: {monitor.url}\n"
    monitor.close()
    monitor.finish()


def test_a_stopped_client_holds_up_nobody(served):
    """A client that is alive for the system and dead for us: SIGSTOP while it reads."""
    reader = (
        "import socket, sys\n"
        "channel = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "channel.sendall(sys.argv[2].encode())\n"
        "print(len(channel.recv(100)), flush=True)\n"
        "while channel.recv(65536): pass\n"
    )
    address = urlsplit(served.url)
    request = f"GET {address.path}events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    argv = [sys.executable, "-c", reader, str(address.port), request]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"100\n"
        os.kill(client.pid, signal.SIGSTOP)
        try:
            for batch in range(300):
                steps = range(400 * batch, 400 * (batch + 1))
                values = [0.123456789] * len(steps)
                pieces = [StepSeries(name, steps, values) for name in ("loss", "accuracy")]
                served.log_steps(pieces)
            log(served, 0)
            served.finish()
            assert Stream(served).epochs() == ([1], True), "the others are served as ever"
        finally:
            os.kill(client.pid, signal.SIGCONT)
        assert client.wait(timeout=60) == 0


def test_two_hundred_clients_get_everything_and_silent_ones_cost_nothing(served):
    address = urlsplit(served.url)
    silent = [socket.create_connection(("127.0.0.1", address.port)) for _ in range(100)]
    for channel in silent[:50]:
        request = f"GET {address.path}events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        channel.sendall(request.encode())
    readers = [Stream(served) for _ in range(100)]
    log(served, *range(5))
    served.finish()
    everything = [1, 2, 3, 4, 5]
    assert all(reader.epochs() == (everything, True) for reader in readers)
    for channel in silent:
        channel.close()


def test_only_what_changes_is_told_again(served):
    stream = iter(Stream(served))
    for seconds in (1.0, 2.0, 2.0):
        served.log_ledger({"forward": seconds})
        served.flush()
    log(served, 0)
    served.finish()
    told = [data["forward"] for kind, _, data in stream if kind == "ledger"]
    assert told in ([2.0], [1.0, 2.0])


def test_a_watched_graph_is_drawn_and_named(served):
    import torch
    from torch import nn

    from flodl.graph import FlowBuilder

    graph = FlowBuilder.from_(nn.Linear(4, 8)).through(nn.ReLU()).tag("hidden").build()
    served.set_metadata({"parameters": {"total": 7}})
    served.watch(graph)
    served.flush()
    plain = get(served, "graph.svg")[2]
    assert "#hidden" in plain
    page = get(served)[2]
    assert graph.structural_hash() in page
    assert '"parameters":{"total":7}' in page, "what the program set itself stands"
    graph.enable_profiling()
    served.watch_profiled(graph)
    graph(torch.zeros(2, 4))
    graph(torch.zeros(2, 4))
    log(served, 0)
    served.flush()
    timed = get(served, "graph.svg")[2]
    assert timed != plain
    assert re.search(r"\d (µs|ms)", timed)
    served.finish()
    assert epochs_of(served) == [1]


def test_a_stream_is_never_silent_for_long(served, monkeypatch):
    monkeypatch.setattr("fdl.runs.pages.one._SILENT_SECONDS", 0.1)
    parts = RunPage(served._folder).answer(Request("/events", {}), threading.Event())
    assert b": \n\n" in parts


@pytest.fixture
def served_media(monitor):
    """A page that is opened when there are media already."""
    monitor.text("poem/first", "one line", step=3)
    monitor.text("poem/first", "another", step=4)
    monitor.image("photo", [[0.0, 1.0]], step=5)
    monitor.flush()
    monitor.serve(0)
    yield monitor
    monitor.close()


def test_media_have_a_list_records_and_images(served_media):
    served = served_media
    assert json.loads(get(served, "api/media")[2])["entries"] == [
        {"kind": "text", "name": "poem/first", "count": 2, "step": 4},
        {"kind": "image", "name": "photo", "count": 1, "step": 5},
    ]
    poem = json.loads(get(served, "api/media?kind=text&name=poem/first")[2])["records"]
    assert [(one["step"], one["text"]) for one in poem] == [(3, "one line"), (4, "another")]
    [photo] = json.loads(get(served, "api/media?kind=image&name=photo")[2])["records"]
    assert (photo["width"], photo["height"], photo["step"]) == (2, 1, 5)
    with urlopen(served.url + photo["src"]) as answer:
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.read().startswith(b"\x89PNG")


@each_row(
    ("path", "says"),
    [
        ("image.png?name=photo&step=6", "there is no image photo at step 6"),
        ("image.png?name=none&step=5", "there is no image none at step 5"),
        ("api/media?kind=text&name=photo", "there is no text photo"),
        ("graph.svg", "this run has no drawing of its model"),
    ],
)
def test_what_a_run_does_not_have_is_not_found(served_media, path, says):
    assert get(served_media, path)[::2] == (404, f"404 Not Found: {says}\n")


PROGRAM = """
import sys
from flodl.monitor import Monitor
monitor = Monitor(2, terminal=False)
monitor.log(0, 1.0, {"loss": 1.0})
print(monitor.serve(0), monitor._folder, flush=True)
sys.stdin.readline()
monitor.finish()
"""


def test_the_end_of_the_program_is_shown_and_nothing_of_the_page_is_left():
    argv = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        url, folder = child.stdout.readline().split()
        with urlopen(f"{url}events") as stream:
            child.stdin.write("\n")
            child.stdin.close()
            told = stream.read().decode()
        assert child.wait(timeout=60) == 0
    assert re.findall("event: (epoch|complete)", told) == ["epoch", "complete"]
    wait_for(lambda: not Path(folder).exists())

    def is_answered():
        try:
            urlopen(url).close()
        except OSError:
            return False
        return True

    wait_for(lambda: not is_answered())


@each_row(
    ("name", "content"),
    [
        ("page/records.jsonl", '{"type":"run"}\nnonsense\n{"type":"epoch"'),
        ("page/now.json", '{"progress":7,"loads":3,"acts":[]}'),
        ("media/index.json", '{"media":[{"kind":"image","name":"x","records":[{}]}]}'),
        ("media/index.json", '{"media":7}'),
        ("steps/index.json", '{"version":1,"curves":{"loss":"../../x","b":"gone"}}'),
        ("timeline.json", "{"),
    ],
)
def test_damaged_files_are_refused_in_one_line_and_harm_nobody(tmp_path, name, content):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with PageServer(RunPage(tmp_path)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        paths = ("", "api/series", "api/media", "api/media?kind=image&name=x", "records.jsonl")
        for path in (*paths, "image.png?name=x&step=1", "graph.svg", "timeline.json"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            assert answer.read().count(b"\n") == 1 or answer.status == 200, path
            connection.close()
        server.shutdown()


def test_a_page_without_buttons_is_told_the_ledger_and_no_acts(served):
    stream = iter(Stream(served))
    served.live_page.acts({"paused": True})
    served.log_ledger({"forward": 1.5, "backward": math.inf})
    served.finish()
    told = {kind: data for kind, _, data in stream}
    assert told["ledger"] == {"forward": 1.5, "backward": None}
    assert "acts" not in told
