"""The processes that share the terminal's foreground with fdl; used after a second Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fdl.run.program import deliver

_ROUNDS = 50
_PAUSE_S = 0.01


class Process(NamedTuple):
    """One entry of the process table."""

    pid: int
    parent: int
    group: int
    state: str


def ancestors() -> set[int]:
    """The process of fdl and the programs that started it: ``make``, a script, a shell."""
    parents = {one.pid: one.parent for one in processes()}
    found, one = set[int](), os.getpid()
    while one in parents and one not in found:
        found.add(one)
        one = parents[one]
    return found


def kill_foreground(child: int, spared: set[int]) -> None:
    """Kill fdl's process group: the child, its children, and programs in one pipe with them.

    Args:
        child: The program that fdl runs.
        spared: :func:`ancestors` at the first Ctrl-C. They got the same key press and decide
            themselves. When one of them has ended, the ones above it can no longer be found.
    """
    # A process may fork while the list is being read, so there is more than one round.
    for _ in range(_ROUNDS):
        doomed = _doomed(child, spared | ancestors())
        if not doomed:
            return
        for pid in doomed:
            deliver(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def reads_keys() -> bool:
    """Whether a program reads single keys from the terminal, as prompts with a history do."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        local_modes: int = termios.tcgetattr(terminal)[3]
        return not local_modes & termios.ICANON
    except termios.error:
        return False
    finally:
        os.close(terminal)


def _doomed(child: int, spared: set[int]) -> list[int]:
    return [
        one.pid
        for one in processes()
        if (one.group == os.getpgrp() or one.pid == child)
        and one.pid not in spared
        and one.state != "Z"
    ]


def processes() -> Iterator[Process]:
    """The process table."""
    if not Path("/proc/self/stat").exists():
        yield from _listed_by_ps()
        return
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The program's name is in parentheses and may contain any character, also parentheses.
        state, parent, group = text.rpartition(")")[2].split()[:3]
        yield Process(int(folder.name), int(parent), int(group), state)


def _listed_by_ps() -> Iterator[Process]:
    columns = "pid=,ppid=,pgid=,stat="
    done = subprocess.run(["ps", "-axo", columns], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        pid, parent, group, state = line.split()[:4]
        yield Process(int(pid), int(parent), int(group), state[:1])
