"""Standard output and standard error that are full or closed: one line, and an exit code."""

import subprocess
import sys

import pytest

from tests.rows import sampled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")

FULL = "error: cannot write to standard output: No space left on device\n"
CLOSED = "error: cannot write to standard output: Bad file descriptor\n"
MANIFEST = {"fdl.yml": "commands: {t: {run: 'echo hi; true'}, q: {run: 'true > ran'}}"}

WORDS = [
    "--help",
    "--version",
    "version",
    "t --help",
    "--dry-run t",
    "--dry-run --json t",
    "config show",
    "completions bash",
    "self schema manifest",
    "diagnose --json",
    "init --help",
]


def shell(folder, text):
    script = text.replace("fdl", f"{sys.executable} -m fdl", 1)
    return subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "closed"), sampled(WORDS, (("> /dev/full", FULL), (">&-", CLOSED)))
)
def test_output_that_cannot_be_written_is_one_line(project, words, closed):
    where, message = closed
    done = shell(project(MANIFEST), f"fdl {words} {where}")
    assert done.stderr == message
    assert done.returncode == 1


@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
def test_completion_stays_silent(project, where):
    done = shell(project(MANIFEST), f"fdl __complete bash -- '' {where}")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("where", ["2> /dev/full", "2>&-", "> /dev/full 2>&1", ">&- 2>&-"])
def test_an_error_without_a_place_for_it_is_an_exit_code(project, where):
    folder = project(MANIFEST)
    done = shell(folder, f"fdl nonsense {where}")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.parametrize("where", ["> /dev/full", ">&-", "2> /dev/full", ">&- 2>&-"])
def test_a_command_runs_all_the_same(project, where):
    folder = project(MANIFEST)
    assert shell(folder, f"fdl q {where}").returncode == 0
    assert (folder / "ran").exists()
