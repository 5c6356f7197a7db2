"""What a run records about its program: command line, source code, packages."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from fdl.base.code_record import code_changes, redacted_source
from fdl.runs.causes import changed_lines
from flodl.train.run.run_records import installed_packages, recorded_argv, recorded_variables
from tests.rows import each_row


def test_a_command_line_is_recorded_without_its_secrets() -> None:
    argv = [
        "main.py",
        "--lr",
        "0.1",
        "--api-key",
        "abc",
        "--pin=1234",
        "--word",
        "swordfish",
        "end",
    ]
    plan = {
        "argv": ["python", *argv],
        "flags": [{"name": "--word", "index": 7, "count": 2, "secret": True}],
    }
    config = {"lr": 0.1, "pin": {"value": "<secret>", "origin": "command line"}}
    assert recorded_argv(argv, config, {"FDL_PLAN": json.dumps(plan)}) == [
        "main.py", "--lr", "0.1", "--api-key", "<secret>", "--pin=<secret>", "--word", "<secret>",
        "end",
    ]  # fmt: skip
    assert recorded_argv(["main.py"], {}, {}) == ["main.py"]


def test_the_variables_of_a_manifest_are_recorded_without_their_secrets() -> None:
    def one(name: str, origin: str, secret: bool | None = False) -> dict[str, object]:
        return {"name": name, "origin": origin, "secret": secret}

    plan = {
        "variables": [
            one("FACTOR", "train/fdl.yml:4:10"),
            one("SHELL_FACTOR", "shell"),
            one("PIN", "fdl.yml:2:8", True),
            one("STORE", "fdl.yml:3:8"),
            one("PUBLIC", "fdl.yml:5:8", None),
            one("FDL_PROJECT_ROOT", "fdl"),
            one("GONE", "fdl.yml:6:8"),
        ]
    }
    url = "https://ada:abcdefgh@example.com/x"
    environ = {
        "FDL_PLAN": json.dumps(plan), "FACTOR": "2", "SHELL_FACTOR": "3", "PIN": "1234",
        "STORE": url, "PUBLIC": url, "FDL_PROJECT_ROOT": "/x", "OTHER": "not of the manifest",
    }  # fmt: skip
    assert recorded_variables(environ) == {
        "FACTOR": {"value": "2", "origin": "train/fdl.yml:4:10"},
        "SHELL_FACTOR": {"value": "3", "origin": "shell"},
        "PIN": {"value": "<secret>", "origin": "fdl.yml:2:8"},
        "STORE": {"value": "https://ada:<secret>@example.com/x", "origin": "fdl.yml:3:8"},
        "PUBLIC": {"value": url, "origin": "fdl.yml:5:8"},
    }
    assert recorded_variables({}) == {}


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "main.py").write_text("lr = 0.1\nlast = 1\n")
    (folder / ".env").write_text("PLAIN=1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "First")
    return folder


def test_the_changes_of_the_source_code_are_recorded(project: Path) -> None:
    (project / "main.py").write_text('lr = 0.2\nAPI_KEY = "abcdefgh"\nlast = 1\n')
    (project / ".env").write_text("HIDDEN=2\n")
    (project / "net.py").write_text("width = 3\n")
    (project / "data.bin").write_bytes(b"no source")
    text = code_changes(project / "main.py")
    assert text.startswith("# flodl code 1\n# commit: ")
    assert "# program: main.py\n# truncated: no\n" in text
    assert "-lr = 0.1\n+lr = 0.2\n" in text
    assert '+API_KEY = "<secret>"\n' in text
    assert "+++ b/net.py\n@@ -0,0 +1,1 @@\n+width = 3\n" in text
    assert "HIDDEN" not in text
    assert "data.bin" not in text


def test_the_rules_for_secrets_hold_for_every_name_of_a_file(project: Path) -> None:
    names = ("donn\u00e9es/.env", 'donn\u00e9es/a"b.yml', "donn\u00e9es/net.py")
    (project / "donn\u00e9es").mkdir()
    for turn in ("1", "2"):
        for name in names:
            (project / name).write_text(f"password: hidden-{turn}\nwidth = {turn}\n")
        if turn == "1":
            git(project, "add", ".")
            git(project, "commit", "-qm", "Second")
    text = code_changes(project / "main.py")
    assert "password: <secret>" in text
    assert {line.file for line in changed_lines(text)} == {'donn\u00e9es/a\\"b.yml', names[2]}
    assert text.count("hidden-2") == 1  # Python needs quotes


def test_a_large_change_is_cut_and_says_so(project: Path) -> None:
    (project / "main.py").write_text("x = 1  # a line of some length\n" * 60_000)
    text = code_changes(project / "main.py")
    assert "# truncated: 1024 KiB\n" in text
    assert len(text) < (1 << 20) + 1000


def test_a_repository_around_the_program_is_not_recorded(project: Path) -> None:
    inner = project / "elsewhere"
    inner.mkdir()
    (inner / "train.py").write_text("x = 1\n")
    assert code_changes(inner / "train.py") == ""


@each_row(
    ("line", "suffix", "shown"),
    [
        ("password: hunter22", ".yml", "password: <secret>"),
        ("word: !secret swordfish", ".yml", "word: !secret <secret>"),
        ("token = tokenizer.next()", ".py", "token = tokenizer.next()"),
        ('connect(token="abc")', ".py", 'connect(token="<secret>")'),
        ('os.environ["API_KEY"] = "abc"', ".py", 'os.environ["API_KEY"] = "<secret>"'),
        ("max_tokens: 128", ".yml", "max_tokens: 128"),
    ],
)
def test_secrets_in_source_code(line: str, suffix: str, shown: str) -> None:
    assert redacted_source(line, suffix) == shown


def test_installed_packages_are_sorted_and_have_versions() -> None:
    lines = installed_packages()
    assert f"torch=={metadata.version('torch')}" in lines
    names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
    assert names == sorted(set(names))
