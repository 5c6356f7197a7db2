"""The processes of a job: find them, send them a signal, end them.

Imported when the first signal arrives. A process that lost its parent is found by the mark that
:func:`fdl.run.program.marked` puts into the job's environment. Linux shows the environment of other
processes; on macOS only parents are followed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fdl.base.files import text_of
from fdl.base.run_record import status
from fdl.run.program import JOB_VARIABLE, deliver

_PAUSE_S = 0.02
_ROUNDS = 50


def descendants(pid: int, mark: str = "") -> list[int]:
    """All processes below one or below those that carry the mark of its job, and these.

    Args:
        pid: The job's first process. It is not in the result.
        mark: The job's mark; read from the first process when omitted.
    """
    table = {one.pid: one for one in processes() if one.state != "Z"}
    if not mark and pid != os.getpid():
        mark = _mark_of(pid)
    below = {pid, *(one for one in table if mark and _inside(_mark_of(one), mark))}
    # A pass adds one generation at least, so this ends.
    while added := {one.pid for one in table.values() if one.parent in below} - below:
        below |= added
    return sorted(below - {pid, os.getpid()})


def send(pid: int, number: int, mark: str = "") -> list[int]:
    """Send a signal to a process and all its descendants, each once; return the descendants.

    An `fdl` among them passes the signal to its own job.
    """
    mark = mark or _mark_of(pid)
    below = descendants(pid, mark)
    # The parent comes first, so that a shell does not start its next command.
    for one in (pid, *(one for one in below if not mark or not _deeper(_mark_of(one), mark))):
        deliver(one, number)
    return below


def kill(pid: int, mark: str = "", known: Iterable[int] = (), looks: int = 1) -> None:
    """Kill a process and all its descendants, also those that start meanwhile.

    Args:
        pid: The process. The calling process itself is spared.
        mark: As for :func:`descendants`.
        known: Further processes to kill.
        looks: How often in a row nothing must be found. A process hides its mark in the moment in
            which it becomes another program.
    """
    mark = mark or _mark_of(pid)
    first = {pid, *known}

    def doomed() -> set[int]:
        found = {*first, *descendants(pid, mark)} - {os.getpid()}
        first.clear()
        return found

    _kill_all(doomed, looks)


def _kill_all(doomed: Callable[[], Iterable[int]], looks: int = 1) -> None:
    """Kill what is found, again and again: a process may fork while the list is being read."""
    quiet = 0
    for _ in range(_ROUNDS):
        found = sorted(doomed())
        quiet = 0 if found else quiet + 1
        if quiet == looks:
            return
        for one in found:
            deliver(one, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def foreground(pid: int) -> list[int]:
    """The commands that a shell waits for; empty for every other program."""
    if text_of(f"/proc/{pid}/comm") != "sh\n":
        return []
    # A shell starts its background commands with these two ignored.
    ignored = (1 << signal.SIGINT - 1) | (1 << signal.SIGQUIT - 1)
    # Everything ignores them if fdl itself is a background command. Then each one counts.
    if _ignores(os.getpid(), ignored):
        ignored = 0
    found = []
    for one in processes():
        if one.parent == pid and one.state != "Z" and not (ignored and _ignores(one.pid, ignored)):
            found += [one.pid, *foreground(one.pid)]
    return found


def _ignores(pid: int, signals: int) -> bool:
    lines = text_of(f"/proc/{pid}/status").splitlines()
    mask = next((int(one.split()[1], 16) for one in lines if one.startswith("SigIgn:")), 0)
    return mask & signals == signals


def end(pids: Iterable[int], grace: float, hurried: Callable[[], bool] = lambda: False) -> None:
    """Wait until processes have ended that have received a signal; kill them after ``grace``.

    They have ended afterwards also where they were killed: what they held is free.

    Args:
        pids: The processes.
        grace: Seconds.
        hurried: Whether to kill them now, asked again and again.
    """
    limit = time.monotonic() + grace
    left = alive(pids)
    while left and time.monotonic() < limit and not hurried():
        time.sleep(_PAUSE_S)
        left = alive(left)
    _kill_all(lambda: alive(left))


def alive(pids: Iterable[int]) -> list[int]:
    """Those of the processes that still run."""
    running = {one.pid for one in processes() if one.state != "Z"}
    return [one for one in pids if one in running]


def _mark_of(pid: int) -> str:
    """The mark that a process carries; empty if it has none or hides it."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    start = f"{JOB_VARIABLE}=".encode()
    found = (one.removeprefix(start) for one in variables if one.startswith(start))
    return os.fsdecode(next(found, b""))


def _inside(found: str, mark: str) -> bool:
    return found == mark or _deeper(found, mark)


def _deeper(found: str, mark: str) -> bool:
    return found.startswith(f"{mark}/")


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
    _kill_all(lambda: _doomed(child, spared | ancestors()))


@contextmanager
def _terminal() -> Iterator[int]:
    """The controlling terminal.

    Raises:
        OSError: There is none.
    """
    terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    try:
        yield terminal
    finally:
        os.close(terminal)


def reads_keys() -> bool:
    """Whether a program reads single keys from the terminal, as prompts with a history do."""
    with suppress(OSError, termios.error), _terminal() as terminal:
        local_modes: int = termios.tcgetattr(terminal)[3]
        return not local_modes & termios.ICANON
    return False


def is_in_foreground() -> bool:
    """Whether keys pressed on the controlling terminal reach this process group."""
    with suppress(OSError), _terminal() as terminal:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    return False


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
        if folder.name.isdigit() and (facts := status(int(folder.name))):
            state, parent, group = facts[:3]
            yield Process(int(folder.name), int(parent), int(group), state)


def _listed_by_ps() -> Iterator[Process]:
    columns = "pid=,ppid=,pgid=,stat="
    done = subprocess.run(["ps", "-axo", columns], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        pid, parent, group, state = line.split()[:4]
        yield Process(int(pid), int(parent), int(group), state[:1])
