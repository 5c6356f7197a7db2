"""Which file is the manifest, and what happens when there is only an example of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fdl.manifest.discover import Found, find, find_in
from fdl.manifest.example import settled
from fdl.manifest.load import load
from tests.conftest import Fdl, Project
from tests.fdl.terminal import Terminal
from tests.rows import each_row

HELLO = "commands: {hello: {run: echo hi}}\n"


def name_of(found: Found | None) -> str:
    assert found is not None
    return Path(found.path).name


@pytest.mark.case("cli", 7)
def test_a_manifest_two_levels_up_is_found(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": HELLO, "a/b/notes.txt": ""})
    session = fdl("hello", cwd="a/b")
    assert (session.exit, session.out) == (0, "hi\n")
    found = find(str(root / "a" / "b"))
    assert found is not None
    assert (found.path, found.directory) == (str(root / "fdl.yml"), str(root))
    assert not found.is_example


@pytest.mark.case("cli", 8)
def test_without_terminal_an_example_is_copied_by_what_runs_and_only_read_by_help(
    project: Project, fdl: Fdl
) -> None:
    root = project({"fdl.yml.example": HELLO})
    page = fdl("--help")
    assert page.exit == 0
    assert "hello" in page.out
    assert sorted(path.name for path in root.iterdir()) == ["fdl.yml.example"]
    shown = fdl("config", "show")
    assert shown.exit == 0
    assert sorted(path.name for path in root.iterdir()) == ["fdl.yml.example"]
    session = fdl("hello")
    assert (session.exit, session.out) == (0, "hi\n")
    assert (root / "fdl.yml").read_text() == HELLO
    assert session.err == "Created fdl.yml from fdl.yml.example.\n"
    assert fdl("hello").err == ""


@each_row(
    ("names", "wins", "others"),
    [
        (["fdl.json", "fdl.yaml", "fdl.yml"], "fdl.yml", ("fdl.yaml", "fdl.json")),
        (["fdl.json", "fdl.yaml"], "fdl.yaml", ("fdl.json",)),
        (["fdl.yml.example", "fdl.json"], "fdl.json", ()),
        (["fdl.yml.dist", "fdl.yml.example"], "fdl.yml.example", ("fdl.yml.dist",)),
        (["fdl.yaml.example", "fdl.yml.dist"], "fdl.yml.dist", ("fdl.yaml.example",)),
    ],
)
def test_order_within_one_directory(
    tmp_path: Path, names: list[str], wins: str, others: tuple[str, ...]
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    found = find_in(str(tmp_path))
    assert found is not None
    assert (name_of(found), found.others) == (wins, others)
    assert bool(found.warnings) == bool(others)
    assert all(other in found.warnings[0] for other in others)


def test_an_example_nearby_beats_a_real_file_above(project: Project) -> None:
    root = project({"fdl.yml": "", "sub/fdl.yml.example": "", "sub/deep/x": ""})
    found = find(str(root / "sub" / "deep"))
    assert found is not None
    assert found.path == str(root / "sub" / "fdl.yml.example")
    assert found.real_path == str(root / "sub" / "fdl.yml")
    assert found.is_example


def test_children_are_looked_up_in_their_directory_only(project: Project) -> None:
    root = project({"fdl.yml": "", "sub/x": ""})
    assert find_in(str(root / "sub")) is None
    assert find_in(str(root / "missing")) is None


def test_a_directory_with_the_name_of_a_manifest_is_not_passed_over(project: Project) -> None:
    root = project({"fdl.yml": "", "sub/fdl.yml/x": "", "sub/fdl.yml.example": ""})
    assert name_of(find(str(root / "sub"))) == "fdl.yml"
    assert not find(str(root / "sub")).is_example  # type: ignore[union-attr]


def test_an_example_that_cannot_be_copied_is_used_as_it_is(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project({"fdl.yml.example": HELLO})
    found = find_in(str(root))
    assert found is not None
    # Created since we looked: a directory is what no file can replace.
    (root / "fdl.yml" / "x").mkdir(parents=True)
    assert settled(found) is found
    assert "; using " in capsys.readouterr().err
    assert sorted(path.name for path in root.iterdir()) == ["fdl.yml", "fdl.yml.example"]


def test_settling_what_is_real_or_only_shown_changes_nothing(project: Project) -> None:
    root = project({"fdl.yml": "", "sub/fdl.yml.example": ""})
    real, example = find_in(str(root)), find_in(str(root / "sub"))
    assert real is not None
    assert example is not None
    assert settled(real) is real
    assert load(example, write_cache=True).found is example
    assert [path.name for path in (root / "sub").iterdir()] == ["fdl.yml.example"]


# Settles twice in one process and reports what was used and what is left on standard input. The
# child leads its own session, so opening its terminal makes it the controlling one.
def git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are a Unix thing")
@pytest.mark.parametrize("tracked", [True, False])
def test_an_example_is_copied_without_a_question(project: Project, tracked: bool) -> None:
    root = project({"fdl.yml.example": HELLO, ".gitignore": "fdl.yml\n"})
    if tracked:
        if shutil.which("git") is None:
            pytest.skip("needs git")
        git(root, "init", "-q")
        git(root, "add", ".")
        them = ("-c", "user.name=Them", "-c", "user.email=them@example.org")
        git(root, *them, "commit", "-q", "-m", "Begin")
    with Terminal("hello", cwd=root) as session:
        assert session.finish() == 0
    ignored = " (git-ignored)" if tracked else ""
    assert session.text == f"Created fdl.yml from fdl.yml.example{ignored}.\r\nhi\r\n"
    assert (root / "fdl.yml").read_text() == HELLO


def test_the_keys_in_which_the_example_is_newer_are_named(project: Project, fdl: Fdl) -> None:
    root = project(
        {
            "fdl.yml": "commands:\n  sub:\n  hello: {run: echo hi}\n",
            "fdl.yml.example": "commands:\n  sub:\n  hello: {run: echo hi}\n",
            "sub/fdl.yml": "entry: echo\ntraining: {lr: 1, epochs: 2}\n",
            "sub/fdl.yml.example": "entry: echo\ntraining: {lr: 3, epochs: 2}\noptions: {new: 1}\n",
        }
    )
    example, copy = root / "sub/fdl.yml.example", root / "sub/fdl.yml"
    os.utime(root / "fdl.yml", (1, 1))
    os.utime(copy, (1, 1))
    assert fdl("hello").err == ""
    for _ in range(2):
        assert fdl("sub").err == (
            "warning: sub/fdl.yml.example is newer than sub/fdl.yml and differs in training.lr "
            "(line 2), options.new (line 3); take over what you need, then `touch sub/fdl.yml`\n"
        )
    for count, more in ((5, ""), (6, " and 1 more")):
        options = ", ".join(f"new{number}: 1" for number in range(count))
        example.write_text(f"{copy.read_text()}options: {{{options}}}\n")
        assert f"options.new4 (line 3){more}; take over" in fdl("sub").err
    copy.touch()
    assert fdl("sub").err == ""
    example.write_text("entry: [\n")
    assert fdl("sub").err == ""
