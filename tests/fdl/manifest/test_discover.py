"""Which file is the manifest, and what happens when there is only an example of it."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fdl.manifest import Found, find, find_in, settle
from tests.conftest import Fdl, Project
from tests.fdl.terminal import Terminal

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


@pytest.mark.parametrize(
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
    assert settle(found, executes=True) is found
    assert "; using " in capsys.readouterr().err
    assert sorted(path.name for path in root.iterdir()) == ["fdl.yml", "fdl.yml.example"]


def test_settling_what_is_real_or_only_shown_changes_nothing(project: Project) -> None:
    root = project({"fdl.yml": "", "sub/fdl.yml.example": ""})
    real, example = find_in(str(root)), find_in(str(root / "sub"))
    assert real is not None
    assert example is not None
    assert settle(real, executes=True) is real
    assert settle(example, executes=False) is example
    assert [path.name for path in (root / "sub").iterdir()] == ["fdl.yml.example"]


# Settles twice in one process and reports what was used and what is left on standard input. The
# child leads its own session, so opening its terminal makes it the controlling one.
ASK = """
import os, sys
terminal = os.open(os.ttyname(2), os.O_RDWR)
from fdl.manifest import find_in, settle
used = [
    os.path.basename(settle(find_in(folder), executes=True).path)
    for folder in (sys.argv[1], sys.argv[1], sys.argv[1] + "/train")
]
print(*used, sys.stdin.read())
"""

QUESTION = "was last changed by them@example.org. Copy it to"


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def committed(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make a repository whose examples were committed by somebody; I am me@example.org."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "me@example.org")

    def make(author: str) -> Path:
        root = project(
            {"fdl.yml.example": HELLO, "train/fdl.yml.example": HELLO, ".gitignore": "fdl.yml\n"}
        )
        git(root, "init", "-q")
        if author:
            git(root, "add", ".")
            git(root, "commit", "-q", "-m", "Begin", f"--author=Them <{author}>")
        return root

    return make


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are a Unix thing")
@pytest.mark.parametrize(
    ("typed", "used", "copied"),
    [
        (b"\n", "fdl.yml", True),
        (b"y\n", "fdl.yml", True),
        (b"\x04", "fdl.yml", True),
        (b"n\n", "fdl.yml.example", False),
        (b"perhaps\nNO\n", "fdl.yml.example", False),
    ],
)
def test_a_foreign_example_is_asked_about_once_and_standard_input_is_left_alone(
    committed: Callable[[str], Path], typed: bytes, used: str, copied: bool
) -> None:
    import pty

    root = committed("them@example.org")
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed)
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(root)],
            input="for the child",
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "CI": ""},
            cwd=root,
            text=True,
            start_new_session=True,
            timeout=60,
        )
        shown = b""
        # A terminal hands its text on by and by.
        while select.select([ours], [], [], 1)[0]:
            shown += os.read(ours, 10_000)
        screen = shown.decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0, screen
    assert done.stdout == f"{used} {used} {used} for the child\n"
    assert (root / "fdl.yml").exists() is copied
    assert (root / "train/fdl.yml").exists() is copied
    question = f"fdl.yml.example {QUESTION} fdl.yml? [Y/n]"
    assert screen.count(question) == typed.count(b"\n") + (typed == b"\x04")


@pytest.mark.skipif(os.name == "nt", reason="pseudo-terminals are a Unix thing")
@pytest.mark.parametrize("author", ["me@example.org", "ME@example.org", ""])
def test_ones_own_example_is_copied_without_a_question(
    committed: Callable[[str], Path], author: str
) -> None:
    root = committed(author)
    with Terminal("hello", cwd=root) as session:
        assert session.finish() == 0
    assert session.text == "Created fdl.yml from fdl.yml.example (git-ignored).\r\nhi\r\n"
    assert (root / "fdl.yml").read_text() == HELLO


def test_an_example_outside_of_every_repository_is_copied_without_a_question(
    project: Project,
) -> None:
    root = project({"fdl.yml.example": HELLO})
    with Terminal("hello", cwd=root) as session:
        assert session.finish() == 0
    assert session.text == "Created fdl.yml from fdl.yml.example.\r\nhi\r\n"


def test_an_example_that_git_cannot_tell_about_is_asked_about(
    committed: Callable[[str], Path],
) -> None:
    root = committed("me@example.org")
    (root / ".git/HEAD").write_text("broken")
    with Terminal("hello", cwd=root) as session:
        session.read_until("was last changed by somebody else. Copy it to fdl.yml? [Y/n]")
        session.press("\n")
        assert session.finish() == 0
    assert (root / "fdl.yml").is_file()


@pytest.mark.parametrize(
    ("flags", "variables"), [(["-y"], {}), (["--yes"], {}), ([], {"CI": "1"}), ([], {"CI": "true"})]
)
def test_nobody_is_asked_who_said_yes_or_is_a_robot(
    committed: Callable[[str], Path], flags: list[str], variables: dict[str, str]
) -> None:
    root = committed("them@example.org")
    with Terminal(*flags, "hello", cwd=root, env=variables) as session:
        assert session.finish() == 0
    assert "Copy it" not in session.text
    assert "Created fdl.yml from fdl.yml.example (git-ignored)." in session.text
    assert (root / "fdl.yml").is_file()


def test_a_foreign_example_is_read_by_help_without_a_question(
    committed: Callable[[str], Path],
) -> None:
    root = committed("them@example.org")
    with Terminal("--help", cwd=root) as session:
        assert session.finish() == 0
    assert "Copy it" not in session.text
    assert not (root / "fdl.yml").exists()
