"""A project whose program imports a package that stands for torch, and its warm process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fdl.warm import start as warm
from tests import fork_server
from tests.fdl.terminal import PATIENCE, Terminal

HEAVY = """
import os
LOADED_BY = os.getpid()

class Thing:
    pass

thing = Thing()
"""

# Says what it is, as JSON; the arguments choose what it does then.
MAIN = """
import atexit, heavy, json, os, signal, sys, time, weakref
import helper

def raw(stream):
    return getattr(stream.buffer, "raw", stream.buffer)

def describe():
    streams = (sys.stdin, sys.stdout, sys.stderr)
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "executable": sys.executable,
        "flags": repr(sys.flags), "path": sys.path, "cwd": os.getcwd(),
        "main": sorted(vars(main)), "file": __file__, "name": __name__,
        "spec": getattr(main.__spec__, "name", None), "loader": type(main.__loader__).__name__,
        "package": main.__package__,
        "umask": os.umask(0o022), "env": dict(os.environ),
        "handlers": {str(n): repr(signal.getsignal(n)) for n in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "streams": [
            (s.name, s.mode, s.encoding, s.errors, s.newlines, s.line_buffering, s.write_through,
             s.isatty(), raw(s).name, raw(s).mode, raw(s).closefd, type(s.buffer).__name__)
            for s in streams
        ],
        "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__],
        "descriptors": [int(n) for n in sorted(os.listdir("/proc/self/fd"))
                        if os.path.lexists(f"/proc/self/fd/{n}")],
        "leads": os.getpid() == os.getpgrp(), "comm": open("/proc/self/comm").read(),
        "helper": helper.VALUE,
    }

class Last:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        os.write(1, f"end of {self.name}\\n".encode())

def leave(what):
    global mine, stream
    sys.watch = weakref.ref(heavy.thing, lambda _: os.write(1, b"heavy is taken apart\\n"))
    atexit.register(os.write, 1, b"exit function\\n")
    if what == "own":
        mine = Last("mine")
    elif what == "held":
        heavy.held = Last("held")
    elif what == "file":
        stream = open("left.txt", "w")
        stream.write("all of it")

def main(do="", *rest):
    if do == "describe":
        print(json.dumps(describe()))
    elif do == "warm":
        print(heavy.LOADED_BY != os.getpid())
    elif do == "exit":
        sys.exit(int(rest[0]))
    elif do == "raise":
        raise ValueError("on purpose")
    elif do == "signal":
        os.kill(os.getpid(), int(rest[0]))
    elif do == "leave":
        leave(rest[0])
    elif do == "read":
        print("read", sys.stdin.read())
    elif do == "wait":
        open(rest[0], "w").write(str(os.getpid()))
        while not os.path.exists("go"):
            time.sleep(0.02)
        print("went")

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


class Warm:
    """A project with its own environment, and what a person types in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.packages = _environment(folder / ".venv")
        self.write("t/main.py", MAIN)
        self.write("t/helper.py", "VALUE = 1\n")
        self.write("t/fdl.yml", "entry: python main.py\n")
        self.write("fdl.yml", "commands:\n  t: {path: t}\n")
        (self.packages / "heavy.py").write_text(HEAVY)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def fdl(
        self, *words: str, env: Mapping[str, str] | None = None, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return fork_server.python(
            *("-m", "fdl", *words),
            cwd=self.root,
            env={**variables(), **(env or {})},
            stdin=stdin,
            timeout=PATIENCE,
        )

    def popen(self, *words: str, **more: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fdl", *words],
            **{
                "cwd": self.root,
                "env": variables(),
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT,
                "text": True,
                "start_new_session": True,
                **more,
            },
        )

    def terminal(self, *words: str, size: tuple[int, int] | None = None) -> Terminal:
        return Terminal(*words, cwd=self.root, env={**variables(), "CI": ""}, size=size)

    def is_warm(self, **more: object) -> bool:
        """Whether a start now comes from the warm process."""
        done = self.fdl("t", "warm", **more)
        assert done.stdout in ("True\n", "False\n"), done
        return done.stdout == "True\n"

    def status(self) -> dict[str, object]:
        return json.loads(self.fdl("warm", "status", "--json").stdout)[0]

    def start(self, *words: str) -> dict[str, object]:
        done = self.fdl("warm", *words)
        assert done.returncode == 0, done
        return self.status()


def variables() -> dict[str, str]:
    """The environment of a call: that of the tests, with what selects no other one."""
    foreign = ("FDL_ENV", "FDL_PLAN", "FDL_PROJECT_ROOT", "VIRTUAL_ENV")
    return {**{k: v for k, v in os.environ.items() if k not in foreign}, "CI": "1"}


def socket_of(project: Warm) -> Path:
    """The socket of the warm process of a project."""
    (file,) = (project.root / ".fdl/warm").iterdir()
    return Path(json.loads(file.read_text())["socket"])


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _environment(folder: Path) -> Path:
    """An environment with no packages; returns its site-packages."""
    packages = folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(sys._base_executable)
    (folder / "bin/python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    return packages


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Warm]:
    """The project, before `fdl warm`; its warm processes end with the test."""
    made = Warm(tmp_path)
    yield made
    warm.stop(str(tmp_path))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """The project with its warm process, for tests that leave both as they are."""
    made = Warm(tmp_path_factory.mktemp("warm"))
    made.start()
    yield made
    warm.stop(str(made.root))


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """What a person types in an empty folder, with the interpreter of the tests; must succeed."""

    def fdl(*words: str, **env: str) -> str:
        done = fork_server.python(
            *("-m", "fdl", *words), cwd=tmp_path, env={**variables(), **env}, timeout=PATIENCE
        )
        assert done.returncode == 0, done
        return done.stdout

    yield fdl
    warm.stop(str(tmp_path))


def starts(typed: Callable[..., str]) -> int:
    """How often the only warm process of that folder has started a program."""
    return json.loads(typed("warm", "status", "--json"))[0]["starts"]
