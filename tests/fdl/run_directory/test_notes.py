"""``fdl runs tag``, ``note`` and ``rm``: what people say about runs, and which ones they delete."""

from __future__ import annotations

import json

import pytest

from tests.fdl.run_directory.trails import trail
from tests.fdl.terminal import Terminal

FIRST, SECOND, THIRD = "2026-01-31T10-00-00", "2026-02-01T10-00-00", "2026-02-02T10-00-00"


@pytest.fixture
def runs(project):
    """Three runs; the last one was resumed from the first."""
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    for name, more in (
        (FIRST, {}),
        (SECOND, {}),
        (THIRD, {"resumed_from": f"out/{FIRST}/last.fdl"}),
    ):
        trail(folder / name, **more)
    return folder


def test_tags_are_added_shown_and_removed(runs, fdl):
    session = fdl("runs", "tag", FIRST, SECOND, "baseline", "paper")
    assert (session.exit, session.err) == (0, "")
    assert session.out.splitlines() == [
        f"out/{FIRST}  baseline,paper",
        f"out/{SECOND}  baseline,paper",
    ]
    assert json.loads((runs / FIRST / "notes.json").read_text()) == {
        "tags": ["baseline", "paper"],
        "note": "",
    }
    assert fdl("runs", "tag", SECOND, "paper", "--remove").out == f"out/{SECOND}  baseline\n"
    assert fdl("runs", "tag", THIRD).out == f"out/{THIRD}  no tags\n"
    assert not (runs / THIRD / "notes.json").exists()
    assert "[baseline,paper]" in fdl("runs", "list").out.splitlines()[3]
    assert "tags      baseline, paper" in fdl("runs", "show", FIRST).out
    compared = fdl("runs", "compare", FIRST, SECOND).out.splitlines()
    assert [line.split() for line in compared if line.startswith("tags")] == [
        ["tags", "baseline,paper", "baseline"]
    ]
    document = json.loads(fdl("runs", "list", "--where", "tags = paper", "--json").out)
    assert [one["tags"] for one in document["runs"]] == [["baseline", "paper"]]
    offered = fdl("__complete", "fish", "--", "runs", "tag", FIRST, "").out.splitlines()
    assert offered[:2] == ["baseline\tTag", "paper\tTag"]


def test_the_name_that_a_run_was_given_is_no_tag(runs, fdl):
    for folder, title in ((FIRST, "small"), (SECOND, "large")):
        record = json.loads((runs / folder / "run.json").read_text())
        (runs / folder / "run.json").write_text(json.dumps({**record, "name": title}))
    session = fdl("runs", "tag", "small", "large", "paper")
    assert session.out.splitlines() == [f"out/{FIRST}  paper", f"out/{SECOND}  paper"]


@pytest.mark.usefixtures("runs")
def test_a_note_is_written_printed_and_removed(fdl):
    assert "the note is written" in fdl("runs", "note", "last", "with the old data\nagain").err
    assert fdl("runs", "note", THIRD).out == "with the old data\nagain\n"
    assert "note" in fdl("runs", "show").out
    fdl("runs", "tag", THIRD, "x")
    document = json.loads(fdl("runs", "note", THIRD, "", "--json").out)
    assert document["runs"][0]["tags"] == ["x"]
    assert document["runs"][0]["note"] == ""
    assert f"out/{THIRD} has no note" in fdl("runs", "note", THIRD).err


def test_unknown_keys_of_the_file_are_kept_and_a_damaged_one_is_not_replaced(runs, fdl):
    (runs / FIRST / "notes.json").write_text('{"tags": ["a"], "stars": 3}')
    fdl("runs", "tag", FIRST, "b")
    content = json.loads((runs / FIRST / "notes.json").read_text())
    assert content == {"tags": ["a", "b"], "note": "", "stars": 3}
    (runs / FIRST / "notes.json").write_text("{half")
    session = fdl("runs", "tag", FIRST, "c")
    assert session.exit == 1
    assert "notes.json is damaged" in session.err
    assert (runs / FIRST / "notes.json").read_text() == "{half"
    assert FIRST in fdl("runs", "list").out


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "no run is named"),
        (["nowhere", "x"], "no run is called `nowhere`"),
        ([FIRST, "2026-02-09T10-00-00", "x"], "`2026-02-09T10-00-00` is neither a run nor a tag"),
        ([FIRST, "a b"], "`a b` is neither a run nor a tag"),
        ([FIRST, "a,b"], "`a,b` is neither a run nor a tag"),
        ([FIRST, "x", "last"], "`last` is neither a run nor a tag"),
        ([FIRST, "--remove"], "no tag is named"),
    ],
)
def test_what_is_neither_a_run_nor_a_tag_is_refused(fdl, words, problem):
    session = fdl("runs", "tag", *words)
    assert (session.exit, session.out) == (2, "")
    assert problem in session.err


def test_rm_names_the_runs_that_were_resumed_from_one(runs, fdl):
    session = fdl("runs", "rm", FIRST, SECOND)
    first, second, total = session.out.splitlines()
    assert first.startswith(f"out/{FIRST}  complete")
    assert first.endswith(f"resumed by {THIRD}")
    assert second.endswith("bytes")
    assert total.startswith("2 runs")
    assert session.exit == 1
    assert "--yes removes without asking" in session.err
    assert fdl("runs", "rm", FIRST, "--dry-run").exit == 0
    assert len(list(runs.iterdir())) == 3
    session = fdl("runs", "rm", FIRST, FIRST, "--yes")
    assert (session.exit, session.err) == (0, "removed 1 run\n")
    assert sorted(path.name for path in runs.iterdir()) == [SECOND, THIRD]


def test_rm_refuses_a_running_run_and_a_link(runs, fdl, tmp_path):
    trail(runs / "2026-03-01T10-00-00", "running")
    session = fdl("runs", "rm", SECOND, "2026-03-01T10-00-00", "--yes")
    assert session.exit == 1
    assert "out/2026-03-01T10-00-00 is running and is not removed" in session.err
    other = trail(tmp_path / "other/2024-01-01T10-00-00")
    (runs / "2024-01-01T10-00-00").symlink_to(other)
    assert "is a link to" in fdl("runs", "rm", "2024-01-01T10-00-00", "--yes").err
    assert "no run is named" in fdl("runs", "rm", "--yes").err
    assert (runs / SECOND).is_dir()
    assert other.is_dir()


def test_on_a_terminal_it_asks(runs, tmp_path):
    with Terminal("runs", "rm", SECOND, cwd=tmp_path) as session:
        session.read_until("remove 1 run? [y/N]")
        session.press("y\n")
        assert session.finish() == 0
    assert not (runs / SECOND).exists()


def test_an_empty_word_is_no_run(project, fdl):
    """A variable of the shell that is not set must not delete the only run."""
    run = trail(project({"fdl.yml": ""}) / "runs" / FIRST)
    session = fdl("runs", "rm", "", "--yes")
    assert (session.exit, session.out) == (2, "")
    assert "no run is named" in session.err
    assert run.is_dir()
