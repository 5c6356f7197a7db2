"""``fdl self autocomplete``: one block in the start-up file, and nothing else touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Fdl
from tests.fdl.complete.shells import Shell, required, start_file

SHELLS = ("bash", "zsh", "fish")
BEGIN, END = "# fdl shell completions\n", "# fdl shell completions end\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder for the commands of a test."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("SHELL", "/bin/bash")
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


def block_of(text: str) -> str:
    """The one block of a file."""
    assert text.count(BEGIN) == text.count(END) == 1
    return text[text.index(BEGIN) : text.index(END) + len(END)]


@pytest.mark.case("cli", 53)
@pytest.mark.parametrize("shell", SHELLS)
def test_twice_leaves_one_block_in_the_start_up_file(fdl: Fdl, home: Path, shell: str) -> None:
    rc = start_file(shell, home)
    for done in range(2):
        session = fdl("self", "autocomplete", env={"SHELL": f"/usr/bin/{shell}"})
        assert (session.exit, session.err) == (0, "")
        assert f"source {rc}" in session.out
        assert ("already" in session.out) is bool(done)
        assert rc.read_text() == block_of(rc.read_text())
    assert sorted(path for path in home.rglob("*") if path.is_file()) == [rc]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_block_completes_in_a_new_shell(
    fdl: Fdl, home: Path, root: Path, tmp_path: Path, shell: str
) -> None:
    fdl("self", "autocomplete", env={"SHELL": shell})
    block = start_file(shell, home).read_text()
    with Shell(shell, tmp_path / "session", root, block) as session:
        # The first TAB fetches the script, the second finds it there.
        assert session.press_tab("fdl tr") == "fdl train "
        assert session.press_tab("fdl train --model=lin") == "fdl train --model=linear "
        assert session.press_tab("fdl t") == "fdl t"
        assert "test" in session.text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_block_is_silent_where_there_is_no_fdl(
    fdl: Fdl, home: Path, root: Path, tmp_path: Path, shell: str
) -> None:
    fdl("self", "autocomplete", env={"SHELL": shell})
    block = start_file(shell, home).read_text()
    with Shell(shell, tmp_path / "session", root, block, path=False) as session:
        assert session.press_tab("fdl tr") == "fdl tr"
        for word in ("not found", "Unknown", "error"):
            assert word not in session.text
        # By its path it can still be asked.
        assert session.press_tab(f"{session.launcher} tr") == f"{session.launcher} train "


@pytest.mark.parametrize("shell", SHELLS)
def test_the_block_starts_no_program(fdl: Fdl, home: Path, tmp_path: Path, shell: str) -> None:
    program = required(shell)
    fdl("self", "autocomplete", env={"SHELL": shell})
    spy = tmp_path / "bin/fdl"
    spy.parent.mkdir()
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    spy.chmod(0o755)
    done = subprocess.run(
        [program, "-c", f"source {start_file(shell, home)}"],
        env={**os.environ, "PATH": f"{spy.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "started").exists()


def test_the_rest_of_the_file_stays_byte_for_byte(fdl: Fdl, home: Path) -> None:
    before, after = b"export A=1\r\n\xff\xfe\n", b"\n# the end\nalias f=fdl"
    rc = home / ".bashrc"
    rc.write_bytes(before + b"# fdl shell completions\nold\n# fdl shell completions end\n" + after)
    assert fdl("self", "autocomplete").exit == 0
    written = rc.read_bytes()
    assert written.startswith(before + BEGIN.encode())
    assert written.endswith(END.encode() + after)
    assert b"old" not in written


def test_a_block_is_added_at_the_end_on_a_line_of_its_own(fdl: Fdl, home: Path) -> None:
    rc = home / ".bashrc"
    rc.write_text("export A=1")
    assert fdl("self", "autocomplete").exit == 0
    assert rc.read_text() == "export A=1\n" + block_of(rc.read_text())


def test_several_blocks_become_one(fdl: Fdl, home: Path) -> None:
    rc = home / ".bashrc"
    rc.write_text(f"a\n{BEGIN}1\n{END}b\n{BEGIN}2\n{END}c\n")
    assert fdl("self", "autocomplete").exit == 0
    text = rc.read_text()
    assert text == f"a\n{block_of(text)}b\nc\n"


@pytest.mark.usefixtures("home")
def test_without_a_home_folder_nothing_is_written(fdl: Fdl) -> None:
    done = fdl("self", "autocomplete", "--dry-run", env={"HOME": ""})
    assert done.exit == 1
    assert done.err == "error: there is no home folder to install into\nhint: set HOME\n"


@pytest.mark.parametrize("rest", ["", f"alias mine=1\n{BEGIN}1\n{END}"])
def test_half_a_block_is_reported_and_nothing_written(fdl: Fdl, home: Path, rest: str) -> None:
    rc = home / ".bashrc"
    rc.write_text(f"a\n{BEGIN}b\n{rest}")
    session = fdl("self", "autocomplete")
    assert session.exit == 1
    assert f"{rc}:2: `# fdl shell completions` begins a block without" in session.err
    assert rc.read_text() == f"a\n{BEGIN}b\n{rest}"


def test_a_linked_file_stays_a_link_and_keeps_its_mode(fdl: Fdl, home: Path) -> None:
    real = home / "dotfiles/bashrc"
    real.parent.mkdir()
    real.write_text("x\n")
    real.chmod(0o600)
    (home / ".bashrc").symlink_to("dotfiles/bashrc")
    assert fdl("self", "autocomplete").exit == 0
    assert (home / ".bashrc").readlink() == Path("dotfiles/bashrc")
    assert real.read_text() == "x\n" + block_of(real.read_text())
    assert real.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in real.parent.iterdir()] == ["bashrc"]


@pytest.mark.parametrize(
    "flags", [("-n", "self", "autocomplete"), ("self", "autocomplete", "--dry-run")]
)
def test_a_dry_run_shows_the_file_and_the_block(
    fdl: Fdl, home: Path, flags: tuple[str, ...]
) -> None:
    session = fdl(*flags)
    assert session.exit == 0
    assert session.out.startswith(f"Would write to {home}/.bashrc:\n")
    assert block_of(session.out)
    assert list(home.iterdir()) == []


def test_the_shells_own_variables_name_their_folders(fdl: Fdl, home: Path) -> None:
    fdl("self", "autocomplete", env={"SHELL": "zsh", "ZDOTDIR": str(home / "z")})
    fdl("self", "autocomplete", env={"SHELL": "fish", "XDG_CONFIG_HOME": str(home / "c")})
    files = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    assert files == ["c/fish/config.fish", "z/.zshrc"]


@pytest.mark.parametrize(
    ("shell", "problem"),
    [("/bin/tcsh", "completion does not work in /bin/tcsh"), ("", "SHELL is not set")],
)
@pytest.mark.parametrize("flags", [(), ("-n",)])
def test_another_shell_is_refused_and_no_file_is_written(
    fdl: Fdl, home: Path, shell: str, problem: str, flags: tuple[str, ...]
) -> None:
    session = fdl("self", "autocomplete", *flags, env={"SHELL": shell})
    assert (session.exit, session.out) == (1, "")
    assert session.err == (
        f"error: {problem}; it works in bash, zsh and fish; nothing was written\n"
        "hint: for bash, type: SHELL=bash fdl self autocomplete\n"
    )
    assert list(home.iterdir()) == []
    assert fdl("self", "autocomplete", env={"SHELL": "bash"}).exit == 0
    assert (home / ".bashrc").is_file()


def test_a_file_that_cannot_be_written_is_an_error(fdl: Fdl, home: Path) -> None:
    (home / ".config").write_text("a file where the folder should be")
    session = fdl("self", "autocomplete", env={"SHELL": "fish"})
    assert session.exit == 1
    assert "config.fish cannot be" in session.err
    assert "Traceback" not in session.err
