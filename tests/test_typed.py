"""A test that fails shows what a person would have seen; a test that passes shows nothing."""

import os
import subprocess
import sys
from pathlib import Path

from tests.levels import NO_PLUGINS

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import subprocess
from tests.conftest import fdl, project
from tests.fdl.terminal import Terminal
from tests.rows import each_row

MANIFEST = {"fdl.yml": "commands: {greet: {run: 'echo good day; exit 3'}}", "notes/a.bin": "\\0"}

def test_passes(fdl):
    assert fdl("--version").exit == 0

def test_prints(fdl, project):
    project(MANIFEST)
    assert fdl("greet", env={"LOUD": "very much"}).exit == 0

def test_appears(project):
    with Terminal("greet", cwd=project(MANIFEST), size=(9, 60)) as terminal:
        assert terminal.finish() == 0

@each_row("word", ["--version", "nonsense"])
def test_rows(fdl, word):
    assert fdl(word).exit == 0

def test_starts_a_program(tmp_path):
    (tmp_path / "here").touch()
    done = subprocess.run(["sh", "-c", "echo lost; exit 4"], capture_output=True, text=True)
    assert done.returncode == 0

def test_is_refused():
    subprocess.run("echo why >&2; exit 5", shell=True, check=True, capture_output=True)

def test_touches_no_program():
    assert False
"""


def test_a_failing_test_shows_what_was_typed_what_appeared_and_the_files(tmp_path):
    (tmp_path / "test_one.py").write_text(PROGRAM)
    words = ["-q", "-p", "tests.typed", "--basetemp", "made", "-c", os.devnull, "test_one.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **NO_PLUGINS},
        capture_output=True,
        text=True,
    )
    printed = done.stdout.replace(f"{tmp_path}/made/", "")
    assert "7 failed, 1 passed" in printed, printed
    shown = [part.splitlines()[1:] for part in printed.split(" what was typed ---")[1:]]
    assert "\n".join(shown[0]).startswith("""\
$ cd test_prints0
$ LOUD='very much' fdl greet
good day
(exit code 3)
files of test_prints0:
  fdl.yml
    commands: {greet: {run: 'echo good day; exit 3'}}
  notes/a.bin
""")
    assert shown[1][:4] == ["$ cd test_appears0", "$ fdl greet", "good day", "(exit code 3)"]
    assert shown[2][1] == "$ fdl nonsense"
    assert "--version" not in "\n".join(shown[2])
    assert shown[3][:5] == [
        *("$ sh -c 'echo lost; exit 4'", "lost", "(exit code 4)"),
        *("files of test_starts_a_program0:", "  here"),
    ]
    assert shown[4][:3] == ["$ echo why >&2; exit 5", "why", "(exit code 5)"]
    assert len(shown) == 5, printed
