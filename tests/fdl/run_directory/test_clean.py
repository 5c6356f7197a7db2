"""``fdl runs prune`` by age, state and number: first it lists, then only what may go goes."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta

import pytest

from fdl.base.errors import FdlError
from fdl.runs import prune
from fdl.runs.run import Run, read
from tests.fdl.run_directory.trails import trail
from tests.fdl.terminal import Terminal

NAMES = [f"2026-01-0{day}T10-00-00" for day in range(1, 6)]


@pytest.fixture
def runs(project):
    """Five runs, the third one failed."""
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    for place, name in enumerate(NAMES):
        trail(folder / name, "failed" if place == 2 else "complete")
    return folder


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_without_anybody_to_ask_it_lists_and_removes_nothing(runs, fdl):
    session = fdl("runs", "prune", "--keep", "3")
    lines = session.out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [f"out/{NAMES[1]}", "complete"],
        [f"out/{NAMES[0]}", "complete"],
        ["2", "runs"],
    ]
    assert [line.split()[-1] for line in lines] == ["bytes"] * 3
    assert session.exit == 1
    assert "nothing was removed; --yes removes without asking" in session.err
    assert left(runs) == NAMES


def test_the_listed_sizes_add_up(runs, fdl):
    (runs / NAMES[0] / "deep").mkdir()
    (runs / NAMES[0] / "deep/big.bin").write_bytes(b"x" * 3_000_000)
    *one, total = fdl("runs", "prune", "-n", "--keep", "4").out.splitlines()
    assert one[0].endswith("  3.0 MB")
    assert total.endswith("  3.0 MB")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--keep", "2"], NAMES[3:]),
        (["--keep", "0"], []),
        (["--keep", "9"], NAMES),
        (["--state", "failed"], [*NAMES[:2], *NAMES[3:]]),
        (["--state", "failed", "--keep", "3"], NAMES),
        (["--older-than", "1d"], []),
        (["--older-than", "999999w"], NAMES),
    ],
)
def test_yes_removes_what_every_condition_names(runs, fdl, words, kept):
    session = fdl("runs", "prune", "--yes", *words)
    assert session.exit == 0
    assert left(runs) == kept
    assert fdl("-y", "runs", "prune", *words).err.strip().endswith("no run to remove")


def test_an_age_counts_from_the_beginning_of_the_run(project, fdl):
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    now = datetime.now(UTC)
    for hours in (1, 30):
        began = now - timedelta(hours=hours)
        name = f"{began:%Y-%m-%dT%H-%M-%S}"
        trail(folder / name, started=began.isoformat(), finished=now.isoformat())
    assert fdl("runs", "prune", "--yes", "--older-than", "1d").exit == 0
    assert left(folder) == [f"{now - timedelta(hours=1):%Y-%m-%dT%H-%M-%S}"]


def test_the_newest_of_each_folder_stay(project, fdl):
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    for part, name in (("a", NAMES[0]), ("a", NAMES[1]), ("b", NAMES[2]), ("b", NAMES[3])):
        trail(folder / part / name)
    assert fdl("runs", "prune", "--yes", "--keep", "1").exit == 0
    assert (left(folder / "a"), left(folder / "b")) == ([NAMES[1]], [NAMES[3]])


def test_a_running_run_and_what_is_no_run_stay(runs, fdl):
    trail(runs / "2025-01-01T10-00-00", "running")
    (runs / "notes").mkdir()
    (runs / "notes/keep.txt").write_text("mine")
    (runs / "README").write_text("mine")
    assert fdl("runs", "prune", "--yes", "--keep", "0").exit == 0
    assert left(runs) == ["2025-01-01T10-00-00", "README", "notes"]
    refused = fdl("runs", "prune", "--yes", "--state", "running")
    assert refused.exit == 2
    assert "a run that is running is never removed" in refused.err


def test_links_go_and_what_they_lead_to_stays(runs, fdl, tmp_path):
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (runs / NAMES[0] / "data").symlink_to(outside)
    (runs / NAMES[0] / "file").symlink_to(outside / "precious")
    other = trail(tmp_path / "other/2024-01-01T10-00-00")
    (runs / "2024-01-01T10-00-00").symlink_to(other)
    assert fdl("runs", "prune", "--yes", "--keep", "0").exit == 0
    assert left(runs) == ["2024-01-01T10-00-00"]
    assert (outside / "precious").read_text() == "mine"
    assert (other / "run.json").is_file()


def test_a_record_that_is_a_link_makes_no_run(runs, fdl, tmp_path):
    fake = tmp_path / "out/fake"
    fake.mkdir()
    (fake / "thesis.txt").write_text("mine")
    for name in ("run.json", "config.json"):
        (fake / name).symlink_to(runs / NAMES[0] / name)
    assert fdl("runs", "prune", "--yes", "--keep", "0").exit == 0
    assert left(runs) == ["fake"]
    assert (fake / "thesis.txt").read_text() == "mine"


def test_only_runs_that_were_resumed_are_compared_with_all_others(runs, monkeypatch):
    found = [read(path) for path in sorted(runs.iterdir(), reverse=True)]
    compared = []
    monkeypatch.setattr(Run, "continues", lambda one, _: compared.append(one))
    assert len(prune.choose(found, datetime.now(UTC), keep=1)) == 4
    prune.surplus(found, found, keep=())
    assert not compared, "thousands of runs took minutes"


def test_what_cannot_be_deleted_is_named_with_its_run(runs, monkeypatch):
    (runs / NAMES[4] / "page").mkdir()

    def refuse(_):
        # It names only the last part of a path.
        raise PermissionError(errno.EACCES, "Permission denied", "now.json")

    monkeypatch.setattr(prune.shutil, "rmtree", refuse)
    run = read(runs / NAMES[4])
    with pytest.raises(FdlError) as caught:
        prune.remove(prune.Removal(run, run.bytes))
    assert caught.value.message == f"{run.path} cannot be deleted: now.json: Permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root deletes whatever it likes")
def test_what_cannot_be_deleted_is_an_error_and_the_others_go(runs, fdl):
    locked = runs / NAMES[4] / "locked"
    locked.mkdir()
    (locked / "file").write_text("x")
    locked.chmod(0o500)
    session = fdl("runs", "prune", "--yes", "--keep", "0")
    locked.chmod(0o700)
    assert session.exit == 1
    assert "cannot be deleted" in session.err
    assert left(runs) == [NAMES[4]]
    assert fdl("runs", "prune", "--yes", "--keep", "0").exit == 0
    assert left(runs) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "no condition says which runs or checkpoints to remove"),
        (["--keep", "-1"], "--keep takes 0 or more, not -1"),
        (["--older-than", "soon"], "`soon` is not an age"),
        (["--older-than=-3d"], "`-3d` is not an age"),
        (["--state", "old"], "`old` is not a state of a run"),
        (["--keep", "1", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_what_makes_no_sense_is_refused(runs, fdl, words, problem):
    session = fdl("runs", "prune", "--yes", *words)
    assert session.exit in (1, 2)
    assert problem in session.err
    assert left(runs) == NAMES


@pytest.mark.parametrize(("key", "kept"), [("y\n", NAMES[1:]), ("n\n", NAMES), ("\n", NAMES)])
def test_on_a_terminal_it_asks(runs, tmp_path, key, kept):
    with Terminal("runs", "prune", "--keep", "4", cwd=tmp_path) as session:
        session.read_until("remove 1 run? [y/N]")
        session.press(key)
        code = session.finish()
    assert (code == 0) is (kept != NAMES)
    assert left(runs) == kept
