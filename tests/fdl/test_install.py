"""``fdl install``: the link that it puts into ``~/.local/bin``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdl import __version__
from fdl.machine.self_install import upgrade_command

OWN_SCRIPT = Path(sys.executable).parent / "fdl"
UPGRADE = f"To upgrade: {upgrade_command()}\n"


@pytest.fixture
def home(tmp_path):
    """A home with a PATH that holds its ``bin``, as variables for a session."""
    folder = tmp_path / "home"
    folder.mkdir()
    path = os.pathsep.join([str(folder / ".local/bin"), os.environ["PATH"]])
    return folder, {"HOME": str(folder), "PATH": path, "FDL_NO_UPDATE_CHECK": "1"}


@pytest.fixture
def install(fdl, home):
    """Type ``fdl install ARGS`` in that home."""
    return lambda *args, env=None: fdl("install", *args, env={**home[1], **(env or {})})


@pytest.fixture
def program(home):
    """The path that is written, with its folder."""
    path = home[0] / ".local/bin/fdl"
    path.parent.mkdir(parents=True)
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_link_starts_this_fdl_from_anywhere(install, home, tmp_path):
    done = install()
    assert (done.exit, done.err) == (0, "")
    program = home[0] / ".local/bin/fdl"
    assert done.out == f"Linked ~/.local/bin/fdl to {OWN_SCRIPT}.\n{UPGRADE}"
    (tmp_path / "elsewhere/fdl").mkdir(parents=True)
    (tmp_path / "elsewhere/fdl/__init__.py").write_text("raise SystemExit('the wrong fdl')\n")
    started = subprocess.run(
        [program, "--version"], cwd=tmp_path / "elsewhere", capture_output=True, text=True
    )
    assert started.stdout == f"flodl-cli {__version__}\n"
    assert names(program.parent) == ["fdl"]
    again = install()
    assert (again.exit, again.err) == (0, "")
    assert again.out == f"~/.local/bin/fdl starts this fdl already.\n{UPGRADE}"


def test_a_dry_run_writes_nothing(install, home):
    done = install("--dry-run")
    assert done.exit == 0
    assert done.out == f"Would link ~/.local/bin/fdl to {OWN_SCRIPT}.\n{UPGRADE}"
    assert ".local" not in names(home[0])


@pytest.mark.parametrize("kind", ["script", "link", "folder"])
@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_what_is_not_ours_stays_as_it_is(install, home, program, kind, flags):
    if kind == "script":
        program.write_text("#!/bin/sh\necho mine\n")
    elif kind == "link":
        (home[0] / "mine").write_text("mine")
        program.symlink_to(home[0] / "mine")
    else:
        program.mkdir()
    done = install(*flags)
    assert (done.exit, done.out) == (1, "")
    assert f"error: {program} is " in done.err
    assert "stays as it is" in done.err
    assert "hint: move it away and try again: mv ~/.local/bin/fdl ~/.local/bin/fdl.old" in done.err
    assert program.is_dir() if kind == "folder" else "mine" in program.read_text()


def test_a_folder_that_cannot_be_written_is_an_error(install, home):
    (home[0] / ".local").write_text("a file\n")
    done = install()
    assert done.exit == 1
    assert "error: " in done.err
    assert "Traceback" not in done.err
    assert (home[0] / ".local").read_text() == "a file\n"


def test_without_a_home_it_says_what_to_set(install):
    done = install(env={"HOME": ""})
    assert (done.exit, done.out) == (1, "")
    assert done.err == "error: there is no home folder to install into\nhint: set HOME\n"


def environment(prefix, mark="pyvenv.cfg"):
    """An environment of another fdl, and its program."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").touch()
    (prefix / mark).touch()
    (prefix / "bin/fdl").write_text("#!/bin/sh\necho another\n")
    return prefix / "bin/fdl"


def test_a_link_to_another_environment_or_to_none_is_replaced(install, home, program):
    for target in (home[0] / "deleted/.venv/bin/fdl", environment(home[0] / "other")):
        program.unlink(missing_ok=True)
        program.symlink_to(target)
        assert install().exit == 0
        assert program.readlink() == OWN_SCRIPT


@pytest.mark.parametrize("mark", ["uv-receipt.toml", "pipx_metadata.json"])
def test_a_link_that_a_tool_has_made_is_foreign(install, home, program, mark):
    target = environment(home[0] / "tool", mark)
    program.symlink_to(target)
    assert install().exit == 1
    assert program.readlink() == target


def test_the_fdl_of_pip_in_the_home_is_this_one_already(monkeypatch, program):
    """As after ``pip install --user``: nothing becomes a link to itself."""
    from fdl.machine import self_install

    program.write_text("of pip\n")
    monkeypatch.setenv("HOME", str(program.parents[2]))
    monkeypatch.setattr(self_install.sysconfig, "get_path", lambda *_: str(program.parent))
    assert self_install.install({}).startswith("~/.local/bin/fdl starts this fdl already.")


def test_without_a_program_there_is_nothing_to_link_to(tmp_path, monkeypatch):
    from fdl.base.errors import FdlError
    from fdl.machine import self_install

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(self_install.sysconfig, "get_path", lambda *_: str(tmp_path / "bin"))
    with pytest.raises(FdlError, match=r"there is no .*/bin/fdl to link to"):
        self_install.install({})
    assert names(tmp_path) == []


# PATH


@pytest.mark.parametrize(
    ("shell", "typed", "file"),
    [
        ("/bin/zsh", "export PATH=", ".zshrc"),
        ("/bin/bash", "export PATH=", ".bashrc"),
        ("/usr/bin/fish", "fish_add_path", ""),
    ],
)
def test_a_missing_path_entry_is_explained_for_the_shell(install, home, shell, typed, file):
    done = install(env={"PATH": os.environ["PATH"], "SHELL": shell, "ZDOTDIR": ""})
    assert done.exit == 0
    assert f"{home[0]}/.local/bin is not on your PATH." in done.out
    line = done.out.splitlines()[-2]
    assert typed in line
    assert line.endswith(f"{home[0]}/{file}" if file else f"{home[0]}/.local/bin")


def test_in_another_shell_no_line_is_made_up(install, home):
    done = install(env={"PATH": os.environ["PATH"], "SHELL": "/bin/tcsh"})
    assert done.out.splitlines()[-2] == (
        f"{home[0]}/.local/bin is not on your PATH. Add it in the start-up file of your shell."
    )


def test_the_line_for_bash_does_what_it_says(install, home):
    line = install(env={"PATH": os.environ["PATH"], "SHELL": "/bin/bash"}).out.splitlines()[-2]
    subprocess.run(["bash", "-c", line.strip()], check=True, env={**os.environ, **home[1]})
    shell = ["bash", "-c", ". ~/.bashrc; command -v fdl"]
    found = subprocess.run(
        shell, env={"HOME": str(home[0]), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert found.stdout == f"{home[0]}/.local/bin/fdl\n"
