"""Take from this process what another system lacks, then run a program in it.

    python other_system.py macos -m fdl list
    python other_system.py windows -c 'import flodl'

``macos``: no ``/proc``, no ``sched_getaffinity``, ``memfd_create``, ``SO_PEERCRED``, ``prctl`` or
glibc, and ``sys.platform`` says ``darwin``.

``windows``: also no Unix sockets, users, process groups, ``fork`` and POSIX modules, and
``sys.platform`` says ``win32``. ``os.name`` stays: the paths of this machine are POSIX paths. So
this is for flodl. What fdl does where ``os.name`` is ``nt`` cannot run here.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import importlib.abc
import io
import os
import runpy
import signal
import socket
import sys
import sysconfig
from pathlib import Path

LINUX = {
    os: ("memfd_create", "sched_getaffinity", "sched_setaffinity", "pidfd_open"),
    socket: ("SO_PEERCRED",),
}
POSIX = {
    os: (
        *("fork", "forkpty", "getegid", "geteuid", "getgid", "getpgid", "getpgrp", "getuid"),
        *("getloadavg", "killpg", "mkfifo", "openpty", "setpgid", "setsid", "tcsetpgrp"),
    ),
    signal: ("SIGCHLD", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGUSR2"),
    socket: ("AF_UNIX",),
}
MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}


class _NoModules(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _hide_proc() -> None:
    """Let every way to open, list or look at ``/proc`` fail as on a system without it."""

    def hidden(path: object) -> bool:
        # psutil has a way of its own for each system. It keeps that of the real one.
        if sys._getframe(2).f_globals.get("__name__", "").startswith("psutil"):
            return False
        if isinstance(path, (str, bytes, os.PathLike)):
            text = os.fsdecode(path)
            return text == "/proc" or text.startswith("/proc/")
        return False

    def guard(function):
        def guarded(path=".", *args, **kwargs):
            if hidden(path):
                raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
            return function(path, *args, **kwargs)

        return guarded

    for name in ("open", "listdir", "scandir", "stat", "lstat", "readlink", "access"):
        setattr(os, name, guard(getattr(os, name)))
    builtins.open = io.open = guard(builtins.open)


def _not_known(name: object) -> str:
    raise ValueError(f"unrecognized configuration name: {name}")


class _Library:
    """The C library of this process without what only Linux and glibc have."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str):
        if name in {"prctl", "mallopt", "malloc_trim", "gnu_get_libc_version"}:
            raise AttributeError(name)
        return getattr(self._library, name)


def become(system: str) -> None:
    """Take away what ``macos`` or ``windows`` lacks."""
    # These choose their own ways by system when they are imported.
    for name in ("asyncio", "multiprocessing.reduction", "subprocess", "tempfile", "uuid"):
        importlib.import_module(name)
    sysconfig.get_config_vars()

    real, confstr = ctypes.CDLL, os.confstr
    ctypes.CDLL = lambda name, *args, **kwargs: (
        _Library(real(name, *args, **kwargs)) if name is None else real(name, *args, **kwargs)
    )
    os.confstr = lambda name: _not_known(name) if "GNU" in str(name) else confstr(name)
    taken = [LINUX, POSIX] if system == "windows" else [LINUX]
    for one in taken:
        for module, names in one.items():
            for name in names:
                if hasattr(module, name):
                    delattr(module, name)
    _hide_proc()
    if system == "windows":
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, _NoModules())
    sys.platform = "win32" if system == "windows" else "darwin"


def main() -> None:
    """Run ``-m MODULE``, ``-c TEXT`` or a file, as the interpreter would."""
    system, kind, *words = sys.argv[1:]
    sys.path[0] = str(Path.cwd())
    if "--torch" in words:
        words.remove("--torch")
        # Its import asks for the system too, and takes the way of the real one.
        import psutil
        import torch.distributed.launcher.api  # noqa: F401

        psutil.virtual_memory()
    become(system)
    if kind == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *words[1:]]
        exec(compile(words[0], "<other system>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
