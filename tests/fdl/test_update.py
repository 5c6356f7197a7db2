"""The update check: who is told what and when, and that one request a day is sent."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import fdl.machine.self_install
from fdl import __version__
from fdl.base.terminal import is_set
from fdl.machine.self_install import upgrade_command
from fdl.machine.update import news
from tests.fdl.terminal import Terminal
from tests.rows import each_row
from tests.waiting import wait_for

NOTICE = "once a day, fdl asks pypi.org in the background"
HOUR = 3600

# fdl on a terminal of a machine that is no container.
TYPED = """
import os, sys
import fdl.machine.update
from fdl.cli.entry import main
from fdl.plan.planner import Host
fdl.machine.update.ADDRESS = os.environ["ADDRESS_OF_TEST"]
sys.exit(main(sys.argv[1:], Host(os.environ, in_container=False, terminal=True)))
"""


@pytest.fixture
def kept(tmp_path):
    """The file that keeps the answer, in a cache of its own."""
    return tmp_path / "cache" / "latest-version"


@pytest.fixture
def typed(project, kept):
    """Type a command on a terminal and return what appeared on it; it must end with ``exit``."""
    folder = project({"fdl.yml": "commands: {hello: {run: echo hello}, fail: {run: exit 7}}"})

    def type_(*args, env=None, cwd=folder, exit=0):
        variables = {
            "FLODL_CACHE_DIR": str(kept.parent),
            "CI": "",
            "FDL_NO_UPDATE_CHECK": "",
            "VIRTUAL_ENV": "",
            "NO_COLOR": "1",
            # Nothing listens there: a check nobody expects cannot leave the machine.
            "ADDRESS_OF_TEST": "http://127.0.0.1:9/",
        }
        with Terminal(*args, cwd=cwd, env={**variables, **(env or {})}, program=TYPED) as terminal:
            assert terminal.finish() == exit
        return terminal.text.replace("\r\n", "\n")

    return type_


def remember(kept, latest="", *, hours=0):
    """Keep an answer, as asked for some hours ago."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(latest)
    when = time.time() - hours * HOUR
    os.utime(kept, (when, when))


@contextmanager
def index(page):
    """Answer every request with a page; gives the address, and the headers of each request."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(dict(self.headers))
            self.send_response(200 if page else 404)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            """Nothing on the tests' standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            variables = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            address = f"http://127.0.0.1:{server.server_port}/pypi/flodl/json"
            yield {**variables, "ADDRESS_OF_TEST": address}, asked
        finally:
            server.shutdown()
            thread.join()


def page(version):
    return json.dumps({"info": {"version": version}}).encode()


@pytest.mark.case("cli", 64)
def test_in_ci_no_config_file_is_written(typed, kept):
    assert typed("hello", env={"CI": "true"}) == "hello\n"
    assert not kept.parent.exists()


@pytest.mark.case("cli", 64)
def test_the_first_interactive_run_prints_the_notice_exactly_once(typed):
    first = typed("hello")
    assert first.startswith(f"hello\n{NOTICE}")
    assert first.count("\n") == 2
    assert "FDL_NO_UPDATE_CHECK=1" in first
    assert [typed("hello"), typed("hello")] == ["hello\n", "hello\n"]


def test_the_first_run_asks_nothing_and_the_second_asks_in_the_background(typed, kept):
    with index(page("99.1.0")) as (variables, asked):
        typed("hello", env=variables)
        assert asked == []
        assert typed("hello", env=variables) == "hello\n"
        wait_for(lambda: kept.read_text() == "99.1.0")
        assert [one["User-Agent"] for one in asked] == [f"fdl/{__version__}"]
        assert typed("hello", env=variables) == "hello\n"
        remember(kept, "99.1.0", hours=25)
        assert typed("hello", env=variables) == (
            f"hello\nflodl 99.1.0 is available, {__version__} is installed; "
            f"to upgrade: {upgrade_command()}\n"
        )
        wait_for(lambda: len(asked) == 2)
        assert typed("hello", env=variables) == "hello\n"


def test_a_check_is_started_at_most_once_a_day_even_when_it_fails(typed, kept):
    with index(b"") as (variables, asked):
        remember(kept, hours=25)
        typed("hello", env=variables)
        wait_for(lambda: asked)
        typed("hello", env=variables)
        remember(kept, hours=23)
        typed("hello", env=variables)
        remember(kept, hours=-9)
        typed("hello", env=variables)
        wait_for(lambda: len(asked) == 2)
    assert kept.read_text() == ""


def test_the_exit_code_stays_that_of_the_command(typed, kept):
    remember(kept, "99.0.0", hours=25)
    assert "99.0.0 is available" in typed("fail", exit=7)


@pytest.mark.parametrize(
    ("typing", "env"),
    [
        (["hello"], {"CI": "1"}),
        (["hello"], {"FDL_NO_UPDATE_CHECK": "1"}),
        (["hello"], {"FDL_NO_UPDATE_CHECK": "yes", "CI": "false"}),
        (["hello", "--help"], {}),
        ([], {}),
        (["--version"], {}),
        (["version"], {}),
        (["-q", "hello"], {}),
        (["--dry-run", "--json", "hello"], {}),
        (["config", "show", "--json"], {}),
    ],
)
def test_who_is_not_told_anything(typed, kept, typing, env):
    remember(kept, "99.0.0", hours=25)
    before = kept.stat().st_mtime_ns
    assert "99.0.0" not in typed(*typing, env=env)
    assert kept.stat().st_mtime_ns == before


@pytest.mark.parametrize("value", ["", "0", "false", "False"])
def test_switches_that_are_off(typed, value):
    assert NOTICE in typed("hello", env={"CI": value, "FDL_NO_UPDATE_CHECK": value})
    assert not is_set({"CI": value}, "CI")
    assert not is_set({}, "CI")
    assert is_set({"CI": "woodpecker"}, "CI")


def test_nobody_reads_a_pipe(project, fdl, kept):
    project({"fdl.yml": "commands: {hello: {run: echo hello}}"})
    home = {"FLODL_CACHE_DIR": str(kept.parent), "CI": "", "FDL_NO_UPDATE_CHECK": ""}
    done = fdl("hello", env=home)
    assert (done.out, done.err) == ("hello\n", "")
    assert not kept.exists()


def test_a_command_that_calls_fdl_leaves_it_to_the_outer_one(typed, tmp_path):
    (tmp_path / "inner.py").write_text(
        "from fdl.cli.prepass import scan\n"
        "from fdl.machine.update import at_exit\n"
        "print('inner')\n"
        "at_exit(scan(['hello']), in_container=False)\n"
    )
    (tmp_path / "fdl.yml").write_text(f"commands: {{outer: {{run: '{sys.executable} inner.py'}}}}")
    shown = typed("outer")
    assert shown.startswith(f"inner\n{NOTICE}")
    assert shown.count(NOTICE) == 1


def test_what_cannot_be_remembered_is_not_said(typed, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert [typed("hello"), typed("hello")] == ["hello\n", "hello\n"]
    assert typed("hello", env={"FLODL_CACHE_DIR": "", "HOME": ""}) == "hello\n"


def test_a_command_that_says_nothing_loads_nothing():
    code = (
        "from fdl.cli.prepass import scan; from fdl.machine.update import at_exit; "
        "import sys; old = set(sys.modules); "
        "at_exit(scan(['hello']), in_container=False); print(set(sys.modules) - old)"
    )
    for switches in ({"CI": "1"}, {"CI": "", "FDL_NO_UPDATE_CHECK": ""}):
        # Standard error is a pipe here.
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **switches},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff\xfe not a page",
        b'{"info": {"version": "nonsense"}}',
        b'{"info": [5]}',
        b"[" * 100_000,
    ],
)
def test_nonsense_is_no_version(kept, answer):
    remember(kept, "0.0.1")
    with index(answer) as (variables, asked):
        command = [
            sys.executable,
            "-P",
            "-m",
            "fdl.machine.update",
            kept,
            variables["ADDRESS_OF_TEST"],
        ]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert len(asked) == 1
    assert kept.read_text() == "0.0.1"


def test_only_a_newer_release_is_news():
    base = __version__.partition(".dev")[0]
    for latest in ("", "nonsense", "0.0.1", base, "99.0rc1", "\x1b[31m", "1" * 5000 + "x"):
        assert news(latest) == ""
    assert news("99.10").startswith("flodl 99.10 is available")


# How to upgrade


@each_row(
    ("mark", "typed"),
    [
        ("uv-receipt.toml", "uv tool upgrade flodl"),
        ("pipx_metadata.json", "pipx upgrade flodl"),
        ("pyvenv.cfg", "uv pip install --python 'PREFIX' --upgrade flodl"),
        ("nothing", f"{sys.executable} -m pip install --upgrade flodl"),
    ],
)
def test_the_upgrade_command_is_that_of_the_tool_that_installed(tmp_path, monkeypatch, mark, typed):
    prefix = tmp_path / f"of {mark}"
    prefix.mkdir()
    (prefix / mark).write_text("home = /usr/bin\nuv = 0.9.1\n")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(
        fdl.machine.self_install, "__file__", f"{prefix}/lib/site-packages/fdl/machine/update.py"
    )
    assert upgrade_command() == typed.replace("PREFIX", str(prefix))


def test_a_checkout_is_upgraded_with_git():
    code = Path(fdl.machine.self_install.__file__).parents[2]
    assert upgrade_command() == f"git -C {code} pull"
