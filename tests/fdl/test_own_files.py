"""Projects and runs that somebody else has filled: nothing outside of them is touched.

Each test makes a hostile file, types the commands that read it, and looks at what lies outside.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fdl.base.own_files import inside, is_name, open_own, own
from fdl.runs.causes import changed_code
from fdl.runs.run import read
from tests.fdl.libtorch.archives import torch_wheel
from tests.fdl.run_directory.trails import trail
from tests.waiting import pass_a_tick

NAMES = [f"2026-01-0{day}T10-00-00" for day in range(1, 4)]

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs links"),
    pytest.mark.usefixtures("untouched"),
]


@pytest.fixture
def outside(tmp_path_factory):
    """A folder of the user: a text, JSON files, and a run of another project."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "precious").write_text("precious\n")
    for name in ("settings.json", "run.json", "config.json"):
        (folder / name).write_text('{"precious": true}')
    trail(folder / NAMES[0])
    return folder


def content(folder):
    """All files of a folder with their bytes, and its modes."""
    found = {}
    for place in [folder, *sorted(folder.rglob("*"))]:
        kept = place.read_bytes() if place.is_file() else None
        found[str(place)] = (kept, place.lstat().st_mode)
    return found


@pytest.fixture
def untouched(outside):
    """Checks at the end that the folder is as it was."""
    before = content(outside)
    yield
    assert content(outside) == before


def test_a_path_must_stay_in_its_folder_and_pass_no_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert inside(tmp_path, "real", "new") == str(tmp_path / "real/new")
    # The user named the folder itself, so it may be a link.
    assert inside(tmp_path / "link", "new") == str(tmp_path / "link/new")
    assert own(tmp_path, tmp_path / "real/file") == str(tmp_path / "real/file")
    for names in (["link"], ["link", "new"]):
        with pytest.raises(OSError, match="it is a link to real, and fdl follows no link here"):
            inside(tmp_path, *names)
    for names in ([".."], ["real", "../.."], ["/etc/passwd"], ["."], [""]):
        with pytest.raises(OSError, match="it is not inside"):
            inside(tmp_path, *names)


def test_a_name_is_one_part_of_a_path():
    assert is_name("lr=0.1,seed=1")
    for text in ("", ".", "..", "a/b", "/a", "a\\b", "c:x", "a\0b", 7, None):
        assert not is_name(text)


def test_only_a_regular_file_is_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    with open_own(tmp_path / "file") as stream:
        assert stream.read() == b"text"
    with pytest.raises(OSError, match="it is a link to file"):
        open_own(tmp_path / "link")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="it is not a regular file"):
            open_own(tmp_path / name)


# What fdl keeps beside a manifest ----------------------------------------------------------------

PROGRAM = """
import sys
# FdlArgs
if "--fdl-schema" in sys.argv:
    print('{"schema_version": 1, "options": {"lr": {"type": "float"}}}')
"""
MANIFEST = """
# yaml-language-server: $schema=.fdl/manifest.schema.json
commands:
  train: {path: train}
  count: {run: "true", inputs: [fdl.yml]}
"""


@pytest.fixture
def clone(project):
    """A project with a program, and a command that is skipped if nothing has changed."""
    folder = project(
        {
            "fdl.yml": MANIFEST,
            "train/fdl.yml": "entry: python main.py\ncompile: true\n",
            "train/main.py": PROGRAM,
        }
    )
    pass_a_tick()
    return folder


CACHED = [
    ".fdl/manifest.json",
    ".fdl/manifest.schema.json",
    ".fdl/state/files.json",
    ".fdl/may-ask-programs",
    "train/.fdl/manifest.json",
    "train/.fdl/schema-cache/train.json",
    "train/.fdl/source-cache/train.json",
]


def test_no_cache_is_written_through_a_link_to_a_file(clone, fdl, outside):
    for name in CACHED:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).symlink_to(outside / "precious")
    (clone / ".fdl/state/count.json").symlink_to(outside / "precious")
    for words in (["count"], ["count"], ["train"], ["train", "--help"], ["--help"]):
        assert fdl(*words).exit == 0
    assert fdl("self", "schema", "refresh", "train").exit == 0
    assert fdl("self", "schema", "clear").exit in (0, 1)


@pytest.mark.parametrize("name", [".fdl", ".fdl/state", "train/.fdl", "train/.fdl/schema-cache"])
def test_no_cache_is_written_or_cleared_through_a_link_to_a_folder(clone, fdl, outside, name):
    (clone / name).parent.mkdir(parents=True, exist_ok=True)
    (clone / name).symlink_to(outside)
    for words in (
        ["count"],
        ["train"],
        ["train", "--help"],
        ["self", "schema", "refresh", "train"],
    ):
        assert fdl(*words).exit == 0
    assert fdl("self", "schema", "list").exit == 0
    assert fdl("self", "schema", "clear").exit == 0


# Runs --------------------------------------------------------------------------------------------


@pytest.fixture
def runs(project):
    return project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"


def test_a_note_is_not_written_through_a_link(runs, fdl, outside):
    for name, target in zip(NAMES, ("precious", "settings.json", "new"), strict=True):
        trail(runs / name)
        (runs / name / "notes.json").symlink_to(outside / target)
        for words in (["tag", name, "good"], ["note", name, "text"]):
            done = fdl("runs", *words)
            assert done.exit == 1
            assert f"{name}/notes.json" in done.err
            assert f"it is a link to {outside / target}" in done.err
    assert fdl("runs", "list").exit == 0


READ = [
    "metrics.csv", "training.log", "environment.json", "notes.json", "packages.txt", "code.diff",
    "acts.jsonl", "steps.trace", "report.html",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_files_of_a_run_are_read_only_if_they_are_its_own(runs, fdl, outside, kind):
    (outside / "precious").write_text("epoch,duration_s,secret\n1,1,7\n")
    before = content(outside)
    for run in NAMES[:2]:
        trail(runs / run)
        for name in READ:
            (runs / run / name).unlink(missing_ok=True)
            if kind == "link":
                (runs / run / name).symlink_to(outside / "precious")
            else:
                os.mkfifo(runs / run / name)
    shown = [
        fdl("runs", *words, timeout=60)
        for words in (
            ["list"], ["show", NAMES[0]], ["compare", *NAMES[:2]], ["diff", *NAMES[:2]],
            ["tail", NAMES[0]], ["tail", NAMES[0], "--metrics"], ["best", "loss"],
        )
    ]  # fmt: skip
    assert not any("secret" in one.out + one.err for one in shown)
    assert f"training.log to read: it is {'a link' if kind == 'link' else 'not'}" in shown[4].err
    assert content(outside) == before
    (outside / "precious").write_text("precious\n")


@pytest.mark.parametrize(
    "words",
    [
        ["prune", "--keep", "0", "--yes"],
        ["prune", "--where", "lr=0.1", "--yes"],
        ["prune", "--checkpoints", "none", "--yes"],
        ["prune", "--keep-best", "0", "--by", "loss", "--yes"],
    ],
    ids=" ".join,
)
def test_a_link_to_a_folder_of_runs_does_not_lend_them_for_deletion(runs, fdl, outside, words):
    (outside / NAMES[0] / "best.fdl").write_bytes(b"weights")
    before = content(outside)
    trail(runs / NAMES[1])
    (runs / "borrowed").symlink_to(outside)
    assert NAMES[0] in fdl("runs", "list").out
    assert fdl("runs", *words).exit == 0
    assert content(outside) == before
    (outside / NAMES[0] / "best.fdl").unlink()


@pytest.fixture
def with_code(runs):
    """Two runs in a repository; ``with_code(ONE, OTHER)`` gives them commits."""

    def write(*commits):
        for name, commit in zip(NAMES, commits, strict=False):
            trail(runs / name)
            (runs / name / "code.diff").write_text(f"# commit: {commit}\n# truncated: no\n")
        git(runs.parent, "init", "-q")
        git(runs.parent, "commit", "-qm", "one", "--allow-empty")
        return runs

    return write


def git(folder, *words):
    known = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", *known, *words], cwd=folder, check=True)


def compared(runs, monkeypatch):
    monkeypatch.chdir(runs.parent)
    left, right = (read(runs / name) for name in NAMES[:2])
    return list(changed_code(left, right))


def test_a_commit_is_not_taken_for_an_option_of_git(with_code, outside, monkeypatch):
    compared(with_code(f"--output={outside / 'precious'}", "HEAD"), monkeypatch)


def test_git_reads_no_repository_that_came_with_a_run(with_code, outside, monkeypatch):
    runs = with_code("1" * 40, "0" * 40)
    git(runs / NAMES[0], "init", "-q")
    with (runs / NAMES[0] / ".git/config").open("a") as stream:
        stream.write(
            f'[core]\n\tfsmonitor = "touch {outside}/executed"\n[extensions]\n'
            '\tpartialClone = evil\n[protocol "ext"]\n\tallow = always\n[remote "evil"]\n'
            f"\tpromisor = true\n\turl = ext::touch {outside}/executed\n"
        )
    compared(runs, monkeypatch)


def test_the_project_that_a_record_names_is_not_read(runs, fdl, outside):
    """A manifest can be a pipe that never answers, or lie on a drive that is slow to mount."""
    os.mkfifo(outside / "fdl.yml")
    run = trail(
        runs / NAMES[0], "interrupted", config={"resume": None}, project_root=str(outside),
        typed=["fdl", "train"], argv=["main.py"], cwd=str(outside),
    )  # fmt: skip
    (run / "last.fdl").write_bytes(b"")
    done = fdl("runs", "show", NAMES[0], timeout=60)
    assert done.exit == 0
    # The run lies in this project, which may be a copy of that one.
    assert f"resume with  fdl train --resume {run.relative_to(runs.parent)}" in done.out
    (outside / "fdl.yml").unlink()


# Sweeps ------------------------------------------------------------------------------------------

SWEEP = {
    "command": ["train"], "each": {"seed": "1"}, "zip": False, "search": "", "trials": 0,
    "goal": "", "jobs": 1, "gpus_each": 0, "env": None, "append": True,
    "started": "2026-01-01T10:00:00+00:00",
}  # fmt: skip


@pytest.fixture
def sweep(project):
    """Write a sweep with a run of this name: ``sweep(NAME)`` returns its folder."""
    root = project(
        {
            "fdl.yml": "commands: {train: {path: train}}\n",
            "train/fdl.yml": "entry: python main.py\n",
            "train/main.py": "import argparse\np = argparse.ArgumentParser()\n"
            "p.add_argument('--seed', type=int)\np.parse_args()\n",
        }
    )

    def write(name):
        folder = root / "runs/sent"
        folder.mkdir(parents=True)
        row = {"name": name, "varied": {"seed": "1"}, "state": "waiting", "code": None}
        (folder / "sweep.json").write_text(json.dumps(SWEEP | {"runs": [row | {"seconds": 0.0}]}))
        return folder

    return write


@pytest.mark.parametrize("form", ["absolute", "above"])
def test_a_sweep_names_no_run_outside_of_it(sweep, fdl, outside, form):
    there = os.path.relpath(outside, Path.cwd()) if form == "above" else str(outside)
    folder = sweep(there)
    if form == "above":
        name = os.path.relpath(outside, folder)
        text = (folder / "sweep.json").read_text().replace(json.dumps(there), json.dumps(name))
        (folder / "sweep.json").write_text(text)
    assert fdl("sweep", "list").exit == 0
    for verb in ("resume", "show"):
        done = fdl("sweep", verb, "runs/sent")
        assert done.exit == 2
        assert "runs/sent is not a sweep: sweep.json is damaged, or names a run outside" in done.err


def test_a_run_of_a_sweep_is_not_a_link(sweep, fdl, outside):
    folder = sweep("seed=1")
    (folder / "seed=1").symlink_to(outside)
    assert fdl("sweep", "show", "runs/sent").exit == 0
    done = fdl("sweep", "resume", "runs/sent")
    assert done.exit == 1
    assert f"runs/sent/seed=1: it is a link to {outside}" in done.err
    assert "hint: fdl sweep show runs/sent" in done.err


def test_the_lock_of_a_sweep_is_not_a_link(sweep, fdl, outside):
    folder = sweep("seed=1")
    (folder / ".sweep.lock").symlink_to(outside / "precious")
    done = fdl("sweep", "resume", "runs/sent")
    assert done.exit == 1
    assert f".sweep.lock: it is a link to {outside}/precious" in done.err


def test_the_record_of_a_sweep_is_not_a_link(sweep, fdl):
    folder = sweep("seed=1")
    (folder / "sweep.json").rename(folder / "kept.json")
    (folder / "sweep.json").symlink_to("kept.json")
    assert "is not a sweep" in fdl("sweep", "resume", "runs/sent").err


# The store of libtorch ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".staging", ".cache", ".locks"])
def test_the_store_of_a_project_leads_nowhere(project, fdl, outside, name):
    root = project({"fdl.yml": "commands: {}\n"})
    (outside / "precious.lock").write_text("")
    (outside / "downloads/old").mkdir(parents=True)
    before = content(outside)
    (root / "libtorch/precompiled/cpu/lib").mkdir(parents=True)
    (root / "libtorch" / name).symlink_to(outside)
    # An installation removes parts of downloads that are of no use any more.
    wheel = torch_wheel(root / "wheels", "2.14.1+cpu")
    done = [
        fdl("libtorch", *words)
        for words in (["activate", "precompiled/cpu"], ["remove", "precompiled/cpu"],
                      ["install", "--from", str(wheel)])
    ]  # fmt: skip
    assert any(f"libtorch/{name}: it is a link to {outside}" in one.err for one in done), done
    assert content(outside) == before
    (outside / "precious.lock").unlink()
    (outside / "downloads/old").rmdir()
    (outside / "downloads").rmdir()
