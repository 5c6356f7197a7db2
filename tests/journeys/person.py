"""A person with an empty home, who types commands on a terminal and reads what appears."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests.fdl import screen
from tests.fdl.terminal import Terminal
from tests.surroundings import of_machine
from tests.waiting import wait_for

LIMIT = 180.0
"""Seconds that a command may take if a journey gives no other limit."""

CTRL_C = "\x03"

MARK = "JOURNEY"
"""The variable by which the programs of a person are found at the end."""

COLUMNS, ROWS = 120, 40

# A shell as at a prompt: the terminal is its controlling one, every command is a job of its own,
# and the variables and the folder outlast the line.
_SHELL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp("bash", ["bash", "--noprofile", "--norc", "-c", *sys.argv[1:]])
"""
_LINE = """trap 'env -0 >"$JOURNEY_STATE"' EXIT
set -m
{}
"""
_ABOUT_SHELL = ("JOURNEY_STATE", "SHLVL", "_", "OLDPWD")


@dataclass(frozen=True)
class Typed:
    """What came of a line on a terminal."""

    line: str
    exit: int
    raw: str
    """All that the terminal received."""
    visible: list[str]
    """The lines on the screen, as high as needed: up to 300."""
    seconds: float

    @property
    def text(self) -> str:
        """The visible lines as one text."""
        return "\n".join(self.visible)


@dataclass(frozen=True)
class Ran:
    """What came of a line without a terminal."""

    line: str
    exit: int
    out: str
    err: str
    seconds: float


class Running:
    """A command on a terminal that has not ended yet. What it prints is read all the time."""

    def __init__(self, line: str, terminal: Terminal, ending: Future[int], limit: float) -> None:
        self._line, self._terminal, self._ending = line, terminal, ending
        self._limit = limit
        self._began = time.monotonic()
        self._read = 0

    @property
    def raw(self) -> str:
        """All that the terminal has received so far."""
        return self._terminal.text

    @property
    def visible(self) -> list[str]:
        """The lines on the screen now."""
        return screen.lines(self.raw, COLUMNS)

    def wait_for(self, words: str, seconds: float | None = None) -> None:
        """Wait until words appear below those that were waited for before."""

        def there() -> bool:
            found = self.raw.find(words, self._read)
            assert found >= 0 or not self._ending.done() or words in self.raw[self._read :], (
                f"`{self._line}` ended without {words!r}:\n{self.raw}"
            )
            if found >= 0:
                self._read = found + len(words)
            return found >= 0

        wait_for(there, seconds or self._limit, f"{words!r} did not appear after `{self._line}`")

    def press(self, keys: str) -> None:
        """Press keys, such as ``"y\\n"`` or :data:`CTRL_C`."""
        self._terminal.press(keys)

    def finish(self) -> Typed:
        """Wait for the end."""
        code = self._ending.result()
        raw = self.raw
        seconds = time.monotonic() - self._began
        return Typed(self._line, code, raw, screen.lines(raw, COLUMNS), seconds)


class Person:
    """Somebody at a machine: a home, a folder to work in, and the variables of a shell.

    Lines are typed into bash. As at a prompt, ``cd``, ``export`` and ``. .venv/bin/activate``
    are there for the next line. Every line and its screen is printed, so that a failed journey
    shows all of it.

    Args:
        home: An empty folder.
        folder: Where the person begins.
        environment: A virtual environment that is activated, or None.
        variables: More variables, as the machine or a line in the person's profile sets them.
    """

    def __init__(
        self,
        home: Path,
        folder: Path,
        environment: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.home, self.folder = home, folder
        self._mark = uuid.uuid4().hex
        self.variables = {**clean(home), **(variables or {}), MARK: self._mark}
        if environment is not None:
            self.activate(environment)

    def activate(self, environment: Path) -> None:
        """Do what ``. ENVIRONMENT/bin/activate`` does."""
        path = f"{environment / 'bin'}{os.pathsep}{self.variables['PATH']}"
        self.variables |= {"VIRTUAL_ENV": str(environment), "PATH": path}

    def type(
        self, line: str, *answers: tuple[str, str], exits: int | None = 0, limit: float = LIMIT
    ) -> Typed:
        """Type a line on a terminal and wait for the end of the command.

        Args:
            line: For bash.
            answers: What to wait for, and the keys to press then.
            exits: The exit code, None for any.
            limit: Seconds until it has to end.
        """
        state = self.home.parent / f"shell-{uuid.uuid4().hex}"
        with self._terminal(line, limit, state) as running:
            for words, keys in answers:
                running.wait_for(words)
                running.press(keys)
            typed = running.finish()
        self._adopt(state)
        assert exits in (None, typed.exit), f"`{line}` ended with {typed.exit}:\n{typed.text}"
        return typed

    def start(self, line: str, *, limit: float = LIMIT) -> AbstractContextManager[Running]:
        """Type a line into a second terminal. At the end of the ``with``, it is closed.

        Args:
            line: For bash. Its folder and variables are not there for the next line.
            limit: Seconds until it has to end, unless it is closed before.
        """
        return self._terminal(line, limit, Path(os.devnull))

    @contextmanager
    def _terminal(self, line: str, limit: float, state: Path) -> Iterator[Running]:
        print(f"{self.folder}$ {line}")
        terminal = Terminal(
            *(_LINE.format(line), "bash"),
            cwd=self.folder,
            env={**self.variables, "JOURNEY_STATE": str(state)},
            program=_SHELL,
            size=(ROWS, COLUMNS),
            alone=True,
            patience=limit,
        )
        with ThreadPoolExecutor(1) as reader:
            ending = reader.submit(terminal.finish)
            running = Running(line, terminal, ending, limit)
            try:
                yield running
            finally:
                # What is still there on this terminal, also if nobody reads it any more.
                _end(one for one in self._programs() if _session(one) == terminal.pid)
                # Its failure is told by `Running.finish`, unless the journey has failed before.
                with suppress(AssertionError, subprocess.TimeoutExpired):
                    ending.result()
                terminal.__exit__()
                print("\n".join(running.visible))

    def run(
        self,
        line: str,
        *,
        stdin: str | None = None,
        exits: int | None = 0,
        limit: float = LIMIT,
    ) -> Ran:
        """Run a line without a terminal, as a script or CI does."""
        print(f"{self.folder}$ {line}  # without a terminal")
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", line],
            cwd=self.folder,
            env=self.variables,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=limit,
        )
        print(done.stdout, done.stderr, sep="")
        ran = Ran(line, done.returncode, done.stdout, done.stderr, time.monotonic() - began)
        assert exits in (None, ran.exit), f"`{line}` ended with {ran.exit}:\n{ran.out}{ran.err}"
        return ran

    def leave(self, patience: float = 10) -> list[str]:
        """End every program that is still there after a while; returns their command lines."""
        with suppress(AssertionError):  # some end by themselves, a moment after their parents
            wait_for(lambda: not self._programs(), patience)
        return _end(self._programs())

    def _programs(self) -> list[psutil.Process]:
        found = []
        for program in psutil.process_iter():
            with suppress(psutil.Error):
                if program.environ().get(MARK) == self._mark:
                    found.append(program)
        return found

    def _adopt(self, state: Path) -> None:
        """Go on with the folder and the variables that the shell had at its end."""
        if not state.exists():  # it was killed
            return
        pairs = os.fsdecode(state.read_bytes()).split("\0")
        state.unlink()
        told = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self.folder = Path(told.pop("PWD"))
        self.variables = {name: told[name] for name in told if name not in _ABOUT_SHELL}


def _end(programs: Iterable[psutil.Process]) -> list[str]:
    """Kill programs; returns their command lines."""
    ended = []
    killed = []
    for program in programs:
        with suppress(psutil.NoSuchProcess):
            ended.append(" ".join(program.cmdline()))
            program.kill()
            killed.append(program)
    psutil.wait_procs(killed, 10)
    return ended


def _session(program: psutil.Process) -> int | None:
    try:
        return os.getsid(program.pid)
    except ProcessLookupError:
        return None


def clean(home: Path) -> dict[str, str]:
    """The variables of a new person on this machine."""
    told = {name: text for name, text in of_machine().items() if name != "XDG_CONFIG_HOME"}
    return {
        **told,
        **registries(),
        "HOME": str(home),
        "PATH": path_of_machine(),
        "SHELL": "/bin/bash",
        "TERM": "xterm-256color",
    }


@cache
def registries() -> dict[str, str]:
    """The registries of pip, where the developer's own files name them, as variables."""
    told = {name: text for name, text in of_machine().items() if name.startswith("PIP_")}
    for level in ("--user", "--site"):
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", level, "list"],
            env={**os.environ, **of_machine()},
            capture_output=True,
            text=True,
            timeout=60,
        )
        for line in listed.stdout.splitlines():
            key, _, text = line.partition("=")
            section, _, option = key.partition(".")
            if section in ("global", "install"):
                value = " ".join(str(ast.literal_eval(text)).split())
                told.setdefault(f"PIP_{option.replace('-', '_').upper()}", value)
    return told


def path_of_machine() -> str:
    """PATH without the developer's environments: the Python they were made with comes first."""
    python = Path(sys.base_prefix) / "bin"
    usual = [Path(one) for one in os.environ.get("PATH", os.defpath).split(os.pathsep) if one]
    others = [one for one in usual if not (one / "fdl").exists() and one != python]
    return os.pathsep.join(map(str, (python, *dict.fromkeys(others))))


def copied(environment: Path, folder: Path) -> Path:
    """Make an environment with the same packages, into which a journey may install others.

    The files of the packages are hard links, so that a copy takes a second and no space. pip
    replaces files and never writes into them: the other environment stays as it is.
    """
    python = Path(sys.base_prefix) / "bin/python3"
    made = [python, "-m", "venv", "--without-pip", folder]
    subprocess.run(made, env=clean(folder), check=True, timeout=120)
    (packages,) = environment.glob("lib/python*/site-packages")
    target = folder / packages.relative_to(environment)
    shutil.rmtree(target)
    shutil.copytree(packages, target, copy_function=os.link, symlinks=True)
    for program in (environment / "bin").iterdir():
        script = folder / "bin" / program.name
        # The others are those of `python -m venv`, and the folder of compiled scripts.
        if program.is_file() and not script.exists():
            text = program.read_bytes().replace(os.fsencode(environment), os.fsencode(folder))
            script.write_bytes(text)
            script.chmod(0o755)
    return folder


def finished(argv: Sequence[str | Path], *, env: Mapping[str, str], limit: float) -> None:
    """Run a program of the preparation; where it fails, all that it printed is in the failure."""
    try:
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        pytest.fail(f"{argv} took more than {limit:.0f} s:\n{said.decode(errors='replace')}")
    if done.returncode != 0:
        pytest.fail(f"{argv} ended with {done.returncode}:\n{done.stdout}")
