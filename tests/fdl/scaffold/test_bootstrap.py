"""``./fdl`` of a new project: which fdl it runs, and the one it makes when there is none."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fdl.scaffold.render import Mode, render, values

# The real file, but installed by nobody: what PATH holds must not include the fdl under test.
TOOLS = "/usr/bin:/bin"

SHELLS = [
    words for words in (["sh"], ["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])
]

MAIN = """
import os, sys
def main():
    import importlib.metadata as m
    print("flodl", m.version("flodl"), *sys.argv[1:], "in", os.getcwd())
    print("rebuild", os.environ.get("FDL_REBUILD"))
    return 7
"""


def wheel(folder, version):
    """A flodl of some version that says what it was called with, and exits with 7."""
    info = f"flodl-{version}.dist-info"
    files = {
        "fdl_double.py": MAIN,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: flodl\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nfdl = fdl_double:main\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"flodl-{version}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Variables that let pip find just these: two versions of flodl."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.2.3", "9.9.9"):
        wheel(folder, version)
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHON": sys.executable,
    }


def scaffold(folder):
    render(Mode.NATIVE.layers, folder, values(folder.name, Mode.NATIVE, "1.2.3"))
    return folder


@pytest.fixture
def bare(tmp_path):
    """A project without a ``.venv``, in a folder whose name has a blank."""
    (tmp_path / "my projects").mkdir()
    return scaffold(tmp_path / "my projects/demo")


def run(program, *words, shell=(), cwd=None, path=TOOLS, **variables):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FDL_", "PIP_", "PYTHON"))}
    return subprocess.run(
        [*shell, str(program), *words],
        cwd=cwd or Path(program).parent,
        env={**kept, "PATH": path, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def program(folder, name="fdl"):
    """An executable that tells its own path and its arguments, one on each line."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\nexit 5\n')
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("shell", [[], *SHELLS], ids=lambda words: words[0] if words else "#!")
def test_a_named_fdl_wins_over_everything(bare, tmp_path, shell):
    named, other = program(tmp_path / "named", "my fdl"), program(tmp_path / "bin")
    path = f"{other.parent}:{TOOLS}"
    done = run(bare / "fdl", "a b", "$x", "", shell=shell, path=path, FDL_BIN=str(named))
    assert (done.returncode, done.stdout) == (5, f"{named}\na b\n$x\n\n")
    assert done.stderr == ""


@pytest.mark.parametrize("shell", [[], *SHELLS], ids=lambda words: words[0] if words else "#!")
def test_the_fdl_on_the_path_is_taken_unless_it_is_such_a_script(bare, tmp_path, shell):
    found = program(tmp_path / "some bin")
    (tmp_path / "folder/fdl").mkdir(parents=True)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "fdl").symlink_to(bare / "fdl")
    another = scaffold(tmp_path / "another")
    places = [bare, linked, another, tmp_path / "folder", tmp_path / "*", found.parent]
    path = ":".join([*map(str, places), TOOLS])
    for script in (bare / "fdl", linked / "fdl"):
        done = run(script, "train", "--lr", "1", shell=shell, path=path)
        assert (done.returncode, done.stdout) == (5, f"{found}\ntrain\n--lr\n1\n")
        assert done.stderr == ""
    assert not (bare / ".venv").exists()


def test_a_named_fdl_that_cannot_be_run_is_an_error(bare, tmp_path):
    for named in (tmp_path / "missing", bare / "README.md"):
        done = run(bare / "fdl", "train", FDL_BIN=str(named))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: FDL_BIN={named} is not a program\n")
    done = run(bare / "fdl", "train", FDL_BIN=str(bare / "fdl"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: FDL_BIN={bare / 'fdl'} is the script of a project\n")


@pytest.mark.slow
def test_without_an_fdl_one_is_installed_into_the_project_and_kept(bare, index, tmp_path):
    link = tmp_path / "elsewhere/deep"
    link.parent.mkdir()
    link.symlink_to("../one")
    (tmp_path / "one").symlink_to(bare / "fdl")

    # Through links, from another folder: the environment is the project's, the folder one's own.
    done = run(link, "train", "a b", cwd=tmp_path, **index)
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"flodl 1.2.3 train a b in {tmp_path}\nrebuild None\n"
    assert done.stderr == f"Making {bare}/.venv\nInstalling flodl==1.2.3\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "my projects", "one"]

    again = run(bare / "fdl", "list")
    assert (again.returncode, again.stderr) == (7, "")
    assert again.stdout == f"flodl 1.2.3 list in {bare}\nrebuild None\n"
    silent = run(bare / "fdl", "__complete", "bash", "--", "tr", FDL_REBUILD="1")
    assert silent.stdout == f"flodl 1.2.3 __complete bash -- tr in {bare}\nrebuild None\n"

    # Cut off between flodl and its launcher, by hand.
    (bare / ".venv/bin/fdl").unlink()
    (bare / ".venv/mine.txt").write_text("")
    cut_off = run(bare / "fdl", FDL_REBUILD="0", **index)
    assert (cut_off.returncode, cut_off.stdout) == (1, "")
    assert f"error: {bare}/.venv has flodl, but no fdl" in cut_off.stderr
    assert "FDL_REBUILD=1 ./fdl" in cut_off.stderr
    assert (bare / ".venv/mine.txt").exists()

    fresh = run(bare / "fdl", "-V", FDL_REBUILD="1", **index)
    assert fresh.stdout == f"flodl 1.2.3 -V in {bare}\nrebuild None\n"
    assert not (bare / ".venv/mine.txt").exists()


def test_an_environment_whose_python_is_gone_is_made_afresh(bare, tmp_path):
    (bare / ".venv/bin").mkdir(parents=True)
    (bare / ".venv/bin/python").symlink_to(tmp_path / "gone")
    asked = program(tmp_path / "bin", "python3")
    asked.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "<$*>"; exit 1; }\n')
    done = run(bare / "fdl", "train", PYTHON=str(asked))
    assert (done.returncode, done.stdout) == (1, "")
    made, arguments, error, hint = done.stderr.splitlines()
    assert made == f"Making {bare}/.venv"
    assert arguments == f"<-m venv --clear {bare}/.venv>"
    assert error == f"error: could not make {bare}/.venv"
    assert "apt install python3-venv" in hint


def environment(project, pip):
    """An environment that is there already; ``pip`` is shell text that stands for its pip."""
    python = project / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] || exec {sys.executable} "$@"\n{pip}\n')
    python.chmod(0o755)


@pytest.mark.parametrize(
    ("dependencies", "installed"),
    [
        ('["numpy", "flodl[train] >=2,<9"]', "flodl >=2,<9"),
        ('["flodl-hf==1", "flodl @ https://host.test/f.whl"]', "flodl @ https://host.test/f.whl"),
        ('["numpy"]', "flodl"),
    ],
)
def test_what_the_project_demands_is_what_is_installed(bare, index, dependencies, installed):
    file = bare / "pyproject.toml"
    file.write_text(file.read_text().replace('["flodl[train]==1.2.3"]', dependencies))
    environment(bare, 'for last do :; done; printf "<%s>\\n" "$last"; exit 1')
    done = run(bare / "fdl", "train", **index)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[:2] == [f"Installing {installed}", f"<{installed}>"]


@pytest.mark.parametrize("word", ["__complete", "completions"])
@pytest.mark.parametrize("rebuild", ["", "1"])
def test_completion_installs_nothing_and_says_nothing(bare, index, word, rebuild):
    done = run(bare / "fdl", word, "bash", FDL_REBUILD=rebuild, **index)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert not (bare / ".venv").exists()


def test_completion_asks_the_fdl_on_the_path(bare, tmp_path):
    found = program(tmp_path / "bin")
    done = run(bare / "fdl", "completions", "zsh", path=f"{found.parent}:{TOOLS}")
    assert done.stdout == f"{found}\ncompletions\nzsh\n"


def test_without_a_network_the_remedy_is_named(bare):
    environment(bare, "echo no answer; exit 1")
    done = run(bare / "fdl", "train")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no answer\n" in done.stderr
    assert "error: could not install flodl==1.2.3; see the messages of pip above\n" in done.stderr
    assert "PIP_INDEX_URL, PIP_FIND_LINKS" in done.stderr


def test_without_a_python_the_remedy_is_named(bare, tmp_path):
    old = program(tmp_path / "bin", "python3")
    for variables in ({"PYTHON": str(old)}, {"PYTHON": "no-such-python"}):
        done = run(bare / "fdl", "train", **variables)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: fdl needs Python 3.11 or newer, and found none\n")
        assert "PYTHON=/path/to/python3 ./fdl" in done.stderr
    assert not (bare / ".venv").exists()


def test_a_broken_pyproject_is_named(bare):
    environment(bare, "exit 9")
    (bare / "pyproject.toml").write_text("[project\n")
    done = run(bare / "fdl", "train")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: cannot read the dependencies in {bare}/pyproject.toml\n" in done.stderr


def test_shellcheck_has_nothing_to_say(bare):
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if checker is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run([checker, "--severity=style", bare / "fdl"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
