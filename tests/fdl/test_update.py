"""The update check: who is told what and when, and which index is asked."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time

import pytest

from fdl import __version__
from fdl.terminal import is_set
from fdl.update import pip_settings
from fdl.update.installed import packages, upgrade_command
from fdl.update.pip_settings import PYPI, Settings, read as read_settings
from fdl.update.state import State, location, read, write
from fdl.update.versions import is_newer, is_stable, newest_stable, release
from tests.fdl.package_index import JSON, PATIENCE, serve
from tests.fdl.terminal import Terminal
from tests.rows import each_row
from tests.waiting import wait_for

NOTICE = "Once a day fdl asks the package index of your pip"
HOUR = 3600

# fdl on a terminal of a machine that is no container, with a background check that may take as
# long as a busy machine needs.
TYPED = """
import fcntl, functools, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import fdl.update.at_exit
from fdl.__main__ import main
from fdl.planning.planner import Host
fdl.update.at_exit.at_exit = functools.partial(fdl.update.at_exit.at_exit, seconds=60)
sys.exit(main(sys.argv[1:], Host(os.environ, in_container=False, terminal=True)))
"""


@pytest.fixture
def config(tmp_path):
    """Path of the user's config file, in a home of its own."""
    return tmp_path / "config" / "flodl" / "config.json"


@pytest.fixture
def typed(project, config):
    """Type a command on a terminal and return what appeared on it; it must end with ``exit``."""
    folder = project({"fdl.yml": "commands: {hello: {run: echo hello}, fail: {run: exit 7}}"})

    def type_(*args, env=None, cwd=folder, exit=0):
        variables = {
            "XDG_CONFIG_HOME": str(config.parent.parent),
            "CI": "",
            "FDL_NO_UPDATE_CHECK": "",
            "VIRTUAL_ENV": "",
            "NO_COLOR": "1",
            # Nothing listens there: a check nobody expects cannot leave the machine.
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
        }
        with Terminal(*args, cwd=cwd, env={**variables, **(env or {})}, program=TYPED) as terminal:
            assert terminal.finish() == exit
        return terminal.text.replace("\r\n", "\n")

    return type_


def remember(config, **section):
    """Write the state of a user who has seen the notice and was checked for just now."""
    config.parent.mkdir(parents=True, exist_ok=True)
    state = State({"first_run_seen": True, "last_check": int(time.time())})
    config.write_text(json.dumps({"update_check": {**state.section(), **section}}))


def remembered(config):
    return json.loads(config.read_text())["update_check"]


def check(config, *names, seconds=60.0, env, python=sys.executable):
    """The background process, in the foreground."""
    command = [python, "-P", "-m", "fdl.update", str(config), str(seconds), *names]
    done = subprocess.run(
        command, cwd=config.parent, env={**os.environ, **env}, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


# What is said, and when


@pytest.mark.case("cli", 64)
def test_in_ci_no_config_file_is_written(typed, config):
    assert typed("hello", env={"CI": "true"}) == "hello\n"
    assert not config.parent.parent.exists()


@pytest.mark.case("cli", 64)
def test_the_first_interactive_run_prints_the_notice_exactly_once(typed, config):
    first = typed("hello")
    assert first.startswith(f"hello\n{NOTICE}")
    assert first.count(NOTICE) == 1
    assert "FDL_NO_UPDATE_CHECK=1" in first
    assert str(config) in first
    assert remembered(config)["first_run_seen"] is True
    assert [typed("hello"), typed("hello")] == ["hello\n", "hello\n"]


def test_the_first_run_asks_nothing_and_the_second_asks_in_the_background(typed, config):
    with serve({"flodl": ["0.0.1", "99.1.0", "99.2.0rc1"]}) as index:
        typed("hello", env=index.variables)
        assert remembered(config)["last_check"] == 0
        assert index.asked == []
        # The command ends although nobody answers the check it has started.
        index.open.clear()
        assert typed("hello", env=index.variables) == "hello\n"
        assert remembered(config)["latest_known"] == {}
        wait_for(lambda: index.asked)
        index.open.set()
        wait_for(lambda: remembered(config)["latest_known"])
        assert index.asked == ["flodl"]
    assert remembered(config)["latest_known"] == {"flodl": "99.1.0"}
    assert remembered(config)["last_check"] == pytest.approx(time.time(), abs=2 * PATIENCE)
    assert "flodl 99.1.0 is available" in typed("hello")


def test_a_check_is_started_at_most_once_a_day_even_when_it_fails(typed, config):
    with serve({}) as index:
        remember(config, last_check=int(time.time()) - 25 * HOUR)
        typed("hello", env=index.variables)
        wait_for(lambda: index.asked)
        typed("hello", env=index.variables)
        remember(config, last_check=int(time.time()) - 23 * HOUR)
        typed("hello", env=index.variables)
        remember(config, last_check=int(time.time()) + 9 * HOUR)
        typed("hello", env=index.variables)
        wait_for(lambda: len(index.asked) == 2)
    assert index.asked == ["flodl", "flodl"]


def test_a_new_version_is_mentioned_once_a_day(typed, config):
    remember(config, latest_known={"flodl": "99.0.0"})
    lines = typed("hello").splitlines()
    assert lines == [
        "hello",
        f"flodl 99.0.0 is available; {__version__} is installed",
        f"To upgrade: {upgrade_command(sys.prefix, ['flodl'], is_own=True)}",
    ]
    assert typed("hello") == "hello\n"

    state = read(str(config))
    state.nudged["flodl"] = ("99.0.0", time.time() - 25 * HOUR)
    write(str(config), state)
    assert "99.0.0 is available" in typed("hello")
    state.latest_known["flodl"] = "99.0.1"
    write(str(config), state)
    assert "99.0.1 is available" in typed("hello")


def test_the_exit_code_stays_that_of_the_command(typed, config):
    remember(config, latest_known={"flodl": "99.0.0"})
    assert "99.0.0 is available" in typed("fail", exit=7)


def test_a_development_version_is_not_sent_back(typed, config):
    remember(config, latest_known={"flodl": ".".join(map(str, release(__version__)))})
    assert typed("hello") == "hello\n"


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
def test_who_is_not_told_anything(typed, config, typing, env):
    remember(config, latest_known={"flodl": "99.0.0"}, last_check=0)
    before = config.read_bytes()
    assert "99.0.0" not in typed(*typing, env=env)
    assert config.read_bytes() == before


@pytest.mark.parametrize("value", ["", "0", "false", "False"])
def test_switches_that_are_off(typed, value):
    assert NOTICE in typed("hello", env={"CI": value, "FDL_NO_UPDATE_CHECK": value})
    assert not is_set({"CI": value}, "CI")
    assert not is_set({}, "CI")
    assert is_set({"CI": "woodpecker"}, "CI")


@pytest.mark.parametrize("value", [False, 0, "false", None, "yes"])
def test_the_config_file_switches_checks_off(typed, config, value):
    remember(config, enabled=value, first_run_seen=False, last_check=0)
    before = config.read_bytes()
    assert typed("hello") == "hello\n"
    assert config.read_bytes() == before


def test_nobody_reads_a_pipe(project, fdl, config):
    project({"fdl.yml": "commands: {hello: {run: echo hello}}"})
    home = {"XDG_CONFIG_HOME": str(config.parent.parent), "CI": "", "FDL_NO_UPDATE_CHECK": ""}
    done = fdl("hello", env=home)
    assert (done.out, done.err) == ("hello\n", "")
    assert not config.exists()


def test_a_command_that_calls_fdl_leaves_it_to_the_outer_one(typed, tmp_path):
    (tmp_path / "inner.py").write_text(
        "from fdl.prepass import scan\n"
        "from fdl.update.at_exit import at_exit\n"
        "print('inner')\n"
        "at_exit(scan(['hello']), in_container=False)\n"
    )
    (tmp_path / "fdl.yml").write_text(f"commands: {{outer: {{run: '{sys.executable} inner.py'}}}}")
    shown = typed("outer")
    assert shown.startswith(f"inner\n{NOTICE}")
    assert shown.count(NOTICE) == 1


def test_what_cannot_be_remembered_is_not_said(typed, tmp_path):
    (tmp_path / "config").write_text("a file where the folder should be")
    assert [typed("hello"), typed("hello")] == ["hello\n", "hello\n"]
    assert typed("hello", env={"XDG_CONFIG_HOME": "", "HOME": ""}) == "hello\n"


def imported(code, env):
    """The modules that some code brings in, beyond those every interpreter starts with."""
    report = f"import sys; old = set(sys.modules); {code}; print(*sorted(set(sys.modules) - old))"
    done = subprocess.run(
        [sys.executable, "-c", report],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


def test_a_command_that_says_nothing_loads_nothing(config):
    code = (
        "from fdl.prepass import scan; from fdl.update.at_exit import at_exit; "
        "at_exit(scan(['hello']), in_container=False)"
    )
    # `fdl.terminal` is in every command already: finding the manifest needs it.
    ours = {"__future__", "fdl", "fdl.errors", "fdl.prepass", "fdl.terminal", "fdl.update"}
    ours |= {"fdl.update.at_exit", "fdl.version"}
    assert imported(code, {"CI": "1"}) == ours
    # Standard error is a pipe here.
    assert imported(code, {"CI": "", "FDL_NO_UPDATE_CHECK": ""}) == ours

    remember(config)
    settled = imported(
        "from fdl.update.notices import show; show(2.0)",
        {"XDG_CONFIG_HOME": str(config.parent.parent)},
    )
    assert settled.isdisjoint(
        {"re", "json", "typing", "pathlib", "subprocess", "importlib.metadata"}
    )


# The packages of a project


def make_environment(folder, *distributions, config="home = /usr/bin\n"):
    site = folder / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(config)
    for name in distributions:
        (site / f"{name}.dist-info").mkdir()
    return folder


def test_packages_of_the_projects_environment_are_mentioned_with_their_own_command(
    typed, config, tmp_path
):
    prefix = make_environment(
        tmp_path / ".venv", "flodl_hf-0.3.0", "flodl_zoo-2.0", "flodlike-1.0", "torch-2.0"
    )
    (tmp_path / "deeper").mkdir()
    remember(
        config,
        latest_known={"flodl-hf": "0.4.0", "flodl-zoo": "2.0.1", "flodlike": "9.0", "torch": "9.0"},
    )
    lines = typed("hello", cwd=tmp_path / "deeper").splitlines()
    assert lines == [
        "hello",
        f"flodl-hf 0.4.0 is available; 0.3.0 is installed in {prefix}",
        f"flodl-zoo 2.0.1 is available; 2.0 is installed in {prefix}",
        f"To upgrade: {prefix}/bin/python -m pip install --upgrade flodl-hf flodl-zoo",
    ]


def test_every_package_is_asked_for(typed, config, tmp_path):
    make_environment(tmp_path / ".venv", "flodl_hf-0.3.0")
    remember(config, last_check=0)
    with serve({"flodl": ["99.0"], "flodl-hf": ["0.3.0", "0.10.0", "0.9.0"]}) as index:
        typed("hello", env=index.variables)
        wait_for(lambda: remembered(config)["latest_known"])
    assert sorted(index.asked) == ["flodl", "flodl-hf"]
    assert remembered(config)["latest_known"] == {"flodl": "99.0", "flodl-hf": "0.10.0"}


def test_which_environment_is_the_projects(tmp_path):
    active = make_environment(tmp_path / "active", "flodl-0.0.1")
    (tmp_path / "p" / "q").mkdir(parents=True)

    def found(variables):
        listed = packages(str(tmp_path / "p" / "q"), variables)
        return [(package.name, package.version, package.prefix) for package in listed]

    own = ("flodl", __version__, sys.prefix)
    assert found({}) == [own]
    assert found({"VIRTUAL_ENV": str(active)}) == [own, ("flodl", "0.0.1", str(active))]
    nearby = make_environment(tmp_path / "p" / ".venv", "flodl_hf-1.0", "FLODL.Zoo-2", "flodl-x")
    assert found({"VIRTUAL_ENV": str(active)}) == [
        own,
        ("flodl-zoo", "2", str(nearby)),
        ("flodl-hf", "1.0", str(nearby)),
    ]


def test_the_upgrade_command_is_that_of_the_tool_that_installed(tmp_path):
    uv_tool = make_environment(tmp_path / "a")
    (uv_tool / "uv-receipt.toml").touch()
    assert upgrade_command(str(uv_tool), ["flodl"], is_own=True) == "uv tool upgrade flodl"
    pipx = make_environment(tmp_path / "b")
    (pipx / "pipx_metadata.json").touch()
    assert upgrade_command(str(pipx), ["flodl"], is_own=True) == "pipx upgrade flodl"
    uv = make_environment(tmp_path / "c d", config="home = /usr/bin\nuv = 0.9.1\n")
    assert upgrade_command(str(uv), ["flodl", "flodl-hf"], is_own=False) == (
        f"uv pip install --python '{uv}' --upgrade flodl flodl-hf"
    )
    assert upgrade_command(sys.prefix, ["flodl"], is_own=True) == (
        f"{sys.executable} -m pip install --upgrade flodl"
    )


# Asking the index


def test_the_index_of_pips_configuration_is_asked(config):
    remember(config, latest_known={"other": "1.0"})
    with serve({"flodl": ["1.2.0", "1.10.0", "1.11.0.dev1", "1.9"]}) as index:
        settings = config.parent / "pip.conf"
        settings.write_text(f"[global]\nindex-url = {index.url}/\n")
        variables = {**index.variables, "PIP_CONFIG_FILE": str(settings)}
        check(config, "flodl", env={**variables, "PIP_INDEX_URL": ""})
        assert index.asked == ["flodl"]
        assert index.headers["Accept"].startswith(JSON)
        assert index.headers["User-Agent"] == f"fdl/{__version__}"
    assert remembered(config)["latest_known"] == {"other": "1.0", "flodl": "1.10.0"}


@pytest.mark.parametrize("kind", [JSON, "text/html"])
def test_only_what_this_python_can_install_counts(config, kind):
    remember(config)
    with serve({"flodl": ["1.0"]}) as index:
        index.kind = kind
        index.files["flodl"] = [
            {"filename": "flodl-1.1.tar.gz", "requires-python": ">=3.8"},
            {"filename": "flodl-1.2-py3-none-any.whl", "requires-python": ">=99"},
            {"filename": "flodl-1.3-py3-none-any.whl", "yanked": "it is broken"},
            {"filename": "flodl-1.4-py3-none-any.whl.metadata"},
            {"filename": "other-1.5-py3-none-any.whl"},
        ]
        check(config, "flodl", env=index.variables)
    assert remembered(config)["latest_known"] == {"flodl": "1.1"}


def test_further_indexes_are_asked_too_and_folders_are_not(config, tmp_path):
    remember(config)
    with serve({"flodl": ["1.0"]}) as first, serve({"flodl": ["2.0"]}) as second:
        more = f"file://{tmp_path}/simple {second.url}"
        check(config, "flodl", env={**first.variables, "PIP_EXTRA_INDEX_URL": more})
        assert (first.asked, second.asked) == (["flodl"], ["flodl"])
    assert remembered(config)["latest_known"] == {"flodl": "2.0"}


def test_whoever_lets_pip_ask_no_index_is_not_asked_for_either(config):
    remember(config)
    with serve({"flodl": ["2.0"]}) as index:
        check(config, "flodl", env={**index.variables, "PIP_NO_INDEX": "1"})
        assert index.asked == []


def test_a_folder_of_packages_counts_even_without_an_index(config, tmp_path):
    remember(config)
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "flodl-3.0-py3-none-any.whl").touch()
    links = f"https://127.0.0.1:9/page {folder.as_uri()} {tmp_path}/missing"
    none = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links, "PIP_CONFIG_FILE": os.devnull}
    check(config, "flodl", env=none)
    assert remembered(config)["latest_known"] == {"flodl": "3.0"}


def test_a_user_name_in_the_address_and_the_proxy_of_pip_are_used(config):
    remember(config)
    with serve({"flodl": ["2.0"]}) as proxy:
        variables = {
            **proxy.variables,
            "PIP_INDEX_URL": "http://ada:secret@packages.invalid/simple",
            "PIP_PROXY": proxy.url.removesuffix("/simple"),
        }
        check(config, "flodl", env=variables)
        assert proxy.headers["Host"] == "packages.invalid"
        assert proxy.headers["Authorization"].startswith("Basic ")
    assert remembered(config)["latest_known"] == {"flodl": "2.0"}


def test_settings_of_pip_are_read_in_its_own_order(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(pip_settings, "_MACHINE", tmp_path / "etc")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path}/one:{tmp_path}/two")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def put(folder, section, **entries):
        lines = "".join(f"{key.replace('_', '-')} = {value}\n" for key, value in entries.items())
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pip.conf").write_text(f"[{section}]\n{lines}")

    put("one/pip", "global", index_url="http://one/simple", cert="/one.pem", proxy="http://p:1")
    put("two/pip", "global", index_url="http://two/simple")
    put(".config/pip", "global", extra_index_url="\n  http://a/simple\n  http://b/simple/")
    put(".pip", "freeze", index_url="http://elsewhere/simple")
    put("prefix", "install", index_url="http://own/simple/")

    def found():
        return read_settings(os.environ, str(tmp_path / "prefix"))

    rest = "http://a/simple", "http://b/simple"
    assert found() == Settings(
        ("http://own/simple", *rest), certificates="/one.pem", proxy="http://p:1"
    )
    (tmp_path / "prefix/pip.conf").write_text("no section")
    assert found().indexes == ("http://two/simple", *rest)
    monkeypatch.setenv("PIP_INDEX_URL", "http://variable/simple")
    assert found().indexes == ("http://variable/simple", *rest)
    monkeypatch.delenv("PIP_INDEX_URL")
    # A file of one's own takes the place of the user's.
    put("own", "global", proxy="http://p:2")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "own/pip.conf"))
    assert found() == Settings(("http://two/simple",), certificates="/one.pem", proxy="http://p:1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert found() == Settings((PYPI,))


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")
def test_pip_itself_reads_the_same_settings(tmp_path):
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = http://g/simple\n[install]\ncert = /i.pem\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    env = {**kept, "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(settings), "PIP_PROXY": "http://p"}
    argv = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
    theirs = dict(re.findall(r"^\S+\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    code = "from fdl.update.pip_settings import *; import os; print(read(os.environ))"
    ours = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    ).stdout
    for key in ("index-url", "cert", "proxy"):
        assert repr(theirs[key]) in ours


def test_a_package_nobody_knows_costs_the_others_nothing(config):
    remember(config)
    with serve({"flodl-hf": ["2.0"]}) as index:
        check(config, "flodl", "flodl-hf", env=index.variables)
    assert remembered(config)["latest_known"] == {"flodl-hf": "2.0"}


@pytest.mark.parametrize("kind", [JSON, "text/html"])
@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\x00\xff\xfe not a page",
        b"<html><a href='flodl-.whl'>x</a><a href='flodl-1e9-py3-none-any.whl'>y</a>",
        b"<a href='http://[/flodl-99.0-py3-none-any.whl'>z</a><a>flodl-99.0</a>",
        b"<a href='flodl-99.0rc1-py3-none-any.whl'>only a pre-release</a>",
        b'{"files": 5}',
        b'{"files": [5, {}, {"filename": 5}, {"filename": "flodl-9.0rc1-py3-none-any.whl"}]}',
        b'{"files": [{"filename": "flodl-9.0-py3-none-any.whl", "requires-python": "nonsense"}]}',
        b"[" * 100_000,
    ],
)
def test_nonsense_is_no_version(config, page, kind):
    remember(config)
    with serve({}) as index:
        index.raw, index.kind = page, kind
        check(config, "flodl", env=index.variables)
        assert "flodl" in index.asked
    assert remembered(config)["latest_known"] == {}


def test_what_takes_longer_than_the_budget_is_given_up(config):
    remember(config)
    with serve({"flodl": ["9.0"], "flodl-hf": ["9.0"]}) as index:
        index.open.clear()
        # Long enough for a busy machine to ask, and far below the patience of a download.
        check(config, "flodl", "flodl-hf", seconds=8, env=index.variables)
        assert sorted(index.asked) == ["flodl", "flodl-hf"]
        assert index.gone.wait(PATIENCE), "somebody still waits for the answer"
    assert remembered(config)["latest_known"] == {}


def test_an_environment_without_pip_asks_the_index_too(config, tmp_path):
    remember(config)
    with serve({"flodl": ["9.0"]}) as index:
        code = "import sys; sys.modules['pip'] = None; from fdl.update.__main__ import main; "
        argv = [sys.executable, "-c", f"{code}main(sys.argv[1:])", str(config), "60", "flodl"]
        env = {**os.environ, **index.variables, "PATH": str(tmp_path)}
        subprocess.run(argv, env=env, check=True)
    assert remembered(config)["latest_known"] == {"flodl": "9.0"}


# The file


def test_the_file_stands_where_the_system_keeps_such_files(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert location({}, "linux") == "/home/me/.config/flodl/config.json"
    assert location({"XDG_CONFIG_HOME": "/x"}, "linux") == "/x/flodl/config.json"
    assert location({"XDG_CONFIG_HOME": "x"}, "linux") == "/home/me/.config/flodl/config.json"
    mac = "/home/me/Library/Application Support/flodl/config.json"
    assert location({"XDG_CONFIG_HOME": "/x"}, "darwin") == mac
    assert location({"APPDATA": "/roaming"}, "win32") == "/roaming/flodl/config.json"
    assert location({}, "win32") is None


@each_row(
    "text",
    ["", "[]", "{", '{"update_check": 5}', "\0", "[" * 5000, '{"update_check": {"enabled": true'],
)
def test_a_broken_file_counts_as_the_defaults(tmp_path, text):
    config = tmp_path / "config.json"
    config.write_text(text)
    state = read(str(config))
    assert state.section() == State({}).section()
    assert state.enabled
    assert not state.first_run_seen
    assert write(str(config), state)
    assert remembered(config)["enabled"] is True


def test_a_broken_file_is_kept_beside_the_new_one(config):
    config.parent.mkdir(parents=True)
    config.write_text('{"update_check": {"enabled": false,}}')
    assert write(str(config), State({}))
    assert (config.parent / "config.json.broken").read_text().endswith("false,}}")


def test_strange_values_count_as_absent(config):
    remember(
        config,
        last_check="yesterday",
        latest_known={"flodl": 5, "flodl-hf": "1.0"},
        nudged={"flodl": "x", "flodl-hf": {"version": "1.0", "time": -1}},
    )
    state = read(str(config))
    assert state.last_check == 0
    assert state.latest_known == {"flodl-hf": "1.0"}
    assert state.nudged == {"flodl-hf": ("1.0", 0.0)}


def test_what_others_keep_in_the_file_stays(typed, config):
    config.parent.mkdir(parents=True)
    config.write_text('{"theme": {"größe": [1]}, "update_check": {"channel": "beta"}}')
    typed("hello")
    document = json.loads(config.read_text())
    assert document["theme"] == {"größe": [1]}
    assert document["update_check"]["channel"] == "beta"
    assert document["update_check"]["first_run_seen"] is True
    assert [file.name for file in config.parent.iterdir()] == ["config.json"]


def test_a_linked_file_stays_a_link(config, tmp_path):
    config.parent.mkdir(parents=True)
    (tmp_path / "dotfiles.json").write_text("{}")
    config.symlink_to(tmp_path / "dotfiles.json")
    assert write(str(config), State({"first_run_seen": True}))
    assert config.is_symlink()
    assert remembered(config)["first_run_seen"] is True


# Versions


def test_versions_are_compared_by_their_numbers():
    assert is_newer("0.10.0", "0.9.9")
    assert is_newer("1.0", "0.9")
    assert not is_newer("1.0.0", "1.0")
    assert not is_newer("1.0.0", "1.0.0.dev4+local")
    assert not is_newer("1.0.0", "1.1.0.dev1")
    assert not is_newer("2.0.0rc1", "1.0.0")
    assert newest_stable(["1.2", "1.10", "1.11a1", "", "1.x"]) == "1.10"
    assert newest_stable(["1.0rc1"]) is None
    assert not any(map(is_stable, ["", "1.", "1..2", "1.0rc1", "1.0+cpu", "1!2", "\u0661.0", "1 "]))
    assert release("0.2.0.dev1") == (0, 2)
    assert not is_stable("1" * 5000)
