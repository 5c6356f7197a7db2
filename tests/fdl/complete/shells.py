"""The three shells on pseudo-terminals: type a line, press TAB, look at what it became."""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import typed

PATIENCE = 60

# Makes the terminal on stdin the controlling one and wide enough for one-line answers, then
# becomes the shell.
_ON_TERMINAL = """
import fcntl, os, struct, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 240, 0, 0))
os.execvp(sys.argv[1], sys.argv[1:])
"""

# Ctrl-T shows the line between marks and empties it; everything typed before has been handled
# then, so no test has to guess how long a completion takes.
_SHOW = "\x14"
_SETTINGS = {
    "bash": r"""
        PS1='> '
        bind 'set bell-style none' 'set enable-bracketed-paste off' 'set show-all-if-ambiguous on'
        bind 'set page-completions off' 'set completion-query-items 0'
        show() { printf '\n{{%s}}\n' "$READLINE_LINE"; READLINE_LINE= READLINE_POINT=0; }
        bind -x '"\C-t": show'
    """,
    "zsh": r"""
        PS1='> ' LISTMAX=1000
        unsetopt beep
        zstyle ':completion:*' insert-tab false
        show() { zle -I; print -r -- "{{$BUFFER}}"; BUFFER= }
        zle -N show
        bindkey '^T' show
    """,
    "fish": r"""
        set -g fish_greeting
        set -g fish_autosuggestion_enabled 0
        function fish_prompt; echo '> '; end
        function show; printf '\n{{%s}}\n' (commandline); commandline -r ''; end
        bind \ct show
    """,
}
_ESCAPES = re.compile(r"\x1b\[[0-9;?>=]*[A-Za-z~]|\x1b[()][A-Z0-9]|\x1b[=>]|\x1b\][^\x07]*\x07")


def required(name: str) -> str:
    """The shell's path; the test is skipped without it, but not where nobody would notice."""
    found = shutil.which(name)
    if found is None:
        assert os.environ.get("CI", "").lower() in ("", "0", "false"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return found


class Shell:
    """An interactive shell with a home of its own and ``fdl`` on its path.

    Attributes:
        home: Its home folder, which holds nothing but its start-up file.
        text: What the last :meth:`press_tab` made appear, without colours and cursor movements.
    """

    def __init__(self, name: str, home: Path, cwd: Path, start: str, *, path: bool = True) -> None:
        """Start it.

        Args:
            name: ``bash``, ``zsh`` or ``fish``.
            home: Where to put its start-up file and the launcher of ``fdl``.
            cwd: Where it starts.
            start: What its start-up file says besides the tests' own settings.
            path: Whether ``fdl`` is on its path.
        """
        self.name = name
        self.home = home
        self._cwd = cwd
        self._raw = ""
        self.launcher = launcher(home / "bin")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        program = required(name)
        rc = start_file(name, home)
        rc.parent.mkdir(parents=True, exist_ok=True)
        lines = [line.strip() for line in _SETTINGS[name].strip().splitlines()]
        rc.write_text("\n".join([*lines, start, "echo {{ready}}", ""]))
        argv = [program, "--rcfile", str(rc), "-i"] if name == "bash" else [program, "-i"]
        search = os.environ.get("PATH", os.defpath)
        variables = {
            "HOME": str(home),
            "PATH": f"{self.launcher.parent}{os.pathsep}{search}" if path else _without_fdl(search),
            "TERM": "xterm",
            "LC_ALL": "C.UTF-8",
            "INPUTRC": os.devnull,
        }
        self._master, slave = os.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *argv],
            cwd=cwd,
            env=variables,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        assert self._shown() == "ready"

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self._raw)

    def press_tab(self, line: str) -> str:
        """Type a line, press TAB, and return what the line has become, as far as it is typed."""
        self._raw = ""
        typed.note(f"{line}<TAB>", self._cwd, os.environ, lambda: (None, self.text))
        os.write(self._master, f"{line}\t{_SHOW}".encode())
        return self._shown()

    def run(self, line: str) -> None:
        """Type a line and press Enter; the next :meth:`press_tab` comes after it."""
        os.write(self._master, f"{line}\r".encode())

    def _shown(self) -> str:
        limit = time.monotonic() + PATIENCE
        while True:
            if found := re.search(r"\{\{(.*?)\}\}", self.text, re.DOTALL):
                return found[1].replace("\r", "").replace("\n", "")
            assert time.monotonic() < limit, f"no answer from {self.name}: {self.text!r}"
            assert self._process.poll() is None, f"{self.name} has ended: {self.text!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                self._raw += self._decoder.decode(os.read(self._master, 1 << 16))


def start_file(name: str, home: Path) -> Path:
    """The file that a shell reads when it starts."""
    return home / {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}[name]


def launcher(folder: Path) -> Path:
    """A program ``fdl`` that starts the one under test."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "fdl"
    made.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fdl "$@"\n')
    made.chmod(0o755)
    return made


def _without_fdl(search: str) -> str:
    folders = search.split(os.pathsep)
    return os.pathsep.join(one for one in folders if not Path(one, "fdl").exists())
