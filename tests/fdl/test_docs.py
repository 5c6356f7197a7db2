"""``fdl docs``: the built site is served; without one, the answer says how to build it."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fdl.base.errors import FdlError
from fdl.cli.commands import docs

WORDS = [sys.executable, "-m", "fdl", "docs"]


def test_a_site_is_served_until_ctrl_c(tmp_path):
    (tmp_path / "index.html").write_text("<h1>flodl</h1>")
    (tmp_path / "search").mkdir()
    (tmp_path / "search/search_index.json").write_text("{}")
    process = subprocess.Popen(
        [*WORDS, str(tmp_path), "--no-open"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        assert url.startswith("http://127.0.0.1:")
        for name, content in (("", b"<h1>flodl</h1>"), ("search/search_index.json", b"{}")):
            assert urllib.request.urlopen(url + name, timeout=30).read() == content
        process.send_signal(2)
        assert process.wait(30) == 0
    finally:
        process.kill()
        _, noted = process.communicate()
    assert noted == b"Ctrl-C ends the site\n"


def test_a_folder_without_a_site_is_an_error_with_the_command(fdl):
    done = fdl("docs", ".", "--no-open")
    assert (done.exit, done.out) == (1, "")
    assert "index.html" in done.err
    assert "hint: bash scripts/docs.sh" in done.err


def test_a_port_in_use_is_an_error(fdl, tmp_path):
    (tmp_path / "index.html").write_text("")
    with docs.serve(tmp_path, 0) as server:
        done = fdl("docs", ".", "--no-open", "--port", str(server.server_port))
    assert done.exit == 1
    assert f"port {server.server_port} of this machine cannot be used" in done.err


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        (["mkdocs.yml"], "is not built", "bash {}/scripts/docs.sh"),
        ([], "does not contain the documentation", "build it in a checkout of flodl"),
    ],
)
def test_without_a_path_the_checkout_counts(tmp_path, monkeypatch, files, message, hint):
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "fdl/cli/commands/docs.py"))
    with pytest.raises(FdlError, match=message) as problem:
        docs.docs(open=False)
    assert problem.value.hint is not None
    assert hint.format(tmp_path) in problem.value.hint


def test_a_project_may_have_a_command_of_this_name(fdl, project):
    project({"fdl.yml": "commands: {docs: {run: echo ours}}"})
    assert fdl("docs").out == "ours\n"


def test_the_site_of_the_checkout_is_the_default(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").touch()
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "fdl/cli/commands/docs.py"))
    served: list[Path] = []

    def stop(place, _):
        served.append(place)
        raise FdlError("seen")

    monkeypatch.setattr(docs, "serve", stop)
    with pytest.raises(FdlError, match="seen"):
        docs.docs(open=False)
    assert served == [site]
