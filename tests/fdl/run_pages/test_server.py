"""The server of the page: who may read it, what it answers, and that it only reads."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.many_runs import make_runs
from fdl.base.errors import FdlError
from fdl.runs.pages.catalog import Cache, Catalog
from fdl.runs.pages.many import RunsPage
from fdl.runs.pages.server import PageServer
from flodl.monitor import Monitor
from tests.fdl.run_directory.trails import trail
from tests.waiting import wait_for

HOSTILE = "</script><script>window.stolen=1</script>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    make_runs(tmp_path / "runs", 2, 1000)
    catalog = Catalog([tmp_path / "runs"], Cache(tmp_path / "cache"))
    with PageServer(RunsPage(catalog, HOSTILE)) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: PageServer, path: str, method: str = "GET", **headers: str):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    found = reply.status, dict(reply.getheaders()), reply.read()
    connection.close()
    return found


def known(port: int, path: str = "/runs?since=-1"):
    """What the page is told of the runs, once all of them are read."""

    def told():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        found = json.loads(connection.getresponse().read())
        connection.close()
        return None if found["more"] or not found["order"] else found

    return wait_for(told)


def test_the_page_allows_only_its_own_script_and_style(server):
    status, headers, body = ask(server, "/")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert HOSTILE.encode() not in body
    assert body.count(b"<script") == 2, "the data and the program"


def test_runs_and_curves_are_answered(server):
    found = known(server.server_port)
    assert [row["config"]["seed"][0] for row in found["rows"]] == [1, 0]
    _, _, again = ask(server, f"/runs?since={found['version']}")
    assert json.loads(again)["rows"] == []
    status, headers, body = ask(server, "/curves?metric=loss&runs=0,1&axis=time&count=10&band=1")
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    assert b"[[0, 8, []], [1, 8, []]]" in body
    assert ask(server, "/curves?metric=absent&runs=0")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/curves?metric=loss&runs=0&axis=moon", "/curves?metric=loss&runs=0-x",
        "/curves?metric=loss&first=nan",
        "/curves?metric=loss&count=many", "/runs?since=inf",
    ],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused_in_one_line(server, path):
    status, _, body = ask(server, path)
    assert status == 400
    assert body.count(b"\n") == 1


@pytest.mark.parametrize(
    "path",
    ["/run.json", "/../run.json", "/0/config.json", "/0/../report.html", "/9/report.html",
     "/0/report.html/..", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/favicon.ico"],
)  # fmt: skip
def test_no_other_file_can_be_read(server, path):
    assert ask(server, path)[0] == 404


def test_a_report_opens_in_a_sandbox(server):
    status, headers, body = ask(server, "/1/report.html")
    assert status == 200
    assert b"<title>Report</title>" in body
    assert headers["Content-Security-Policy"] == "sandbox allow-scripts allow-downloads"


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1:{port}"}, 400),
        ({"Host": "localhost:{port}", "Origin": "http://evil.example"}, 400),
        ({"Host": "localhost:{port}", "Origin": "http://127.0.0.1:{port}"}, 400),
        ({"Host": "localhost:{port}", "Origin": "null"}, 400),
    ],
)
def test_foreign_pages_are_refused(server, headers, refused):
    named = {name: text.format(port=server.server_port) for name, text in headers.items()}
    for path in ("/", "/runs", "/curves?metric=loss&runs=0", "/0/report.html"):
        status, _, body = ask(server, path, **named)
        assert status == refused
        assert b"loss" not in body


@pytest.mark.parametrize(
    "head",
    [
        "GET /runs HTTP/1.1\r\nHost: {host}\r\nHost: evil.example",
        "GET /runs HTTP/1.1\r\nHost: {host}\r\nhost: {host}",
        "GET http://{host}/runs HTTP/1.1\r\nHost: {host}",
        "GET http://evil.example/runs HTTP/1.1\r\nHost: {host}",
    ],
)
def test_what_a_browser_never_sends_to_its_own_page_is_refused(server, head):
    host = f"127.0.0.1:{server.server_port}"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as channel:
        channel.sendall(f"{head.format(host=host)}\r\n\r\n".encode())
        assert channel.recv(65536).split(b" ", 2)[1] == b"400"


def test_pages_of_this_machine_are_let_in(server):
    for host in (f"localhost:{server.server_port}", f"127.0.0.1:{server.server_port}"):
        assert ask(server, "/runs", Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_possible(server, method):
    assert ask(server, "/runs", method)[0] == 405


def test_only_this_machine_is_listened_to(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_an_error_with_a_remedy(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FdlError, match=f"port {port} of this machine cannot be used") as error:
            PageServer(RunsPage(Catalog([tmp_path]), ""), port)
    assert "free port" in error.value.hint
    with pytest.raises(FdlError, match="port 70000"):
        PageServer(RunsPage(Catalog([tmp_path]), ""), 70_000)


def test_a_served_run_is_not_changed(server, tmp_path):
    def content() -> dict[str, tuple[int, bytes]]:
        files = [file for file in (tmp_path / "runs").rglob("*") if file.is_file()]
        return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}

    before = content()
    for path in ("/", "/runs", "/curves?metric=loss&runs=0,1&band=1", "/0/report.html"):
        assert ask(server, path)[0] == 200
    assert content() == before


@pytest.mark.parametrize("flags", [[], ["--no-token"]], ids=["token", "no token"])
def test_the_command_prints_its_address_and_ends_with_ctrl_c(project, flags):
    folder = project({"fdl.yml": "output: {dir: out}\n"})
    trail(folder / "out" / "2026-01-31T10-00-00")
    words = [sys.executable, "-m", "fdl", "runs", "ui", "--no-open", *flags]
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{22}/|)\n", address).groups()
        assert bool(token) is not bool(flags)
        if token:
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
            connection.request("GET", "/runs")
            assert connection.getresponse().status == 403
            connection.close()
        assert known(int(port), f"/{token}runs")["rows"][0]["path"] == "out/2026-01-31T10-00-00"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    open_to = "without a token, every user and program of this machine can read the runs\n"
    assert err == f"{open_to if flags else ''}Ctrl-C ends the page\n"


def test_the_page_of_one_run_is_served_beside_the_others(server, tmp_path):
    run = next(path for path in (tmp_path / "runs").iterdir() if "08-17" in path.name)
    monitor = Monitor(3, terminal=False)
    monitor.set_identity(label="digits", run=run.name)
    monitor.write_run(run)
    monitor.log(0, 1.0, {"loss": 0.5})
    monitor.finish()
    rows = known(server.server_port)["rows"]
    [number] = [row["id"] for row in rows if row["has_page"]]
    status, headers, body = ask(server, f"/{number}/")
    assert (status, "connect-src 'self'" in headers["Content-Security-Policy"]) == (200, True)
    assert b"digits" in body
    events = ask(server, f"/{number}/events")[2].decode()
    assert re.findall("event: (epoch|complete)", events) == ["epoch", "complete"]
    other = 1 - number
    assert ask(server, f"/{other}/")[0] == 503, "this run has no such files"
