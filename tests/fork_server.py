"""Python programs without the price of an interpreter: each is a fork of one that waits.

A forked program is as new as any other: its arguments, folder, environment and streams are its
own, and nothing of fdl or flodl has been imported. Only the interpreter and what others wrote are
there already: some of the standard library, PyYAML, pydantic and Typer, or torch for those that
ask for it. Where a fork would differ from an ordinary start, programs start the ordinary way.

The loader of the operating system reads its search path when a process starts. A path that many
programs share gets an interpreter of its own: see :func:`share_library_path`.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Self

_SERVER = """
import atexit, contextlib, fcntl, gc, os, runpy, select, signal, socket, sys, termios, threading
import types, weakref

def run(first, arguments):
    sys.argv[:] = [first, *arguments]
    if first == "-m":
        del sys.argv[1]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        del sys.argv[1]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")

of_imports = list(weakref.finalize._registry)
gc.freeze()
channel, *listener = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
signal.signal(signal.SIGINT, signal.SIG_DFL)
woken, wakes = os.pipe()
for end in (woken, wakes):
    os.set_blocking(end, False)
signal.set_wakeup_fd(wakes)
signal.signal(signal.SIGCHLD, lambda number, frame: None)
running = {}  # Process id -> where to tell how it ended, and who stands for it.

def tell(status, text):
    # Nobody may be left to read it.
    with contextlib.suppress(OSError):
        os.write(status, text)

def reap():
    with contextlib.suppress(BlockingIOError):
        os.read(woken, 4096)
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status, caller = running.pop(ended[0])
            tell(status, b"%d\\n" % os.waitstatus_to_exitcode(ended[1]))
            os.close(status)
            if caller is not channel:
                caller.close()

while True:
    callers = {caller: child for child, (_, caller) in running.items() if caller is not channel}
    ready = select.select([channel, woken, *listener, *callers], [], [])[0]
    if woken in ready:
        reap()
        continue
    caller = ready[0]
    if caller in callers:
        # Who stands for the program on somebody's PATH was killed: so is the program.
        os.kill(callers[caller], signal.SIGKILL)
        running[callers[caller]] = (running[callers[caller]][0], channel)
        caller.close()
        continue
    if caller is not channel:
        caller, _ = caller.accept()
    data, streams, _, _ = socket.recv_fds(caller, 1 << 20, 5)
    if not data and caller is channel:
        sys.exit()
    child = os.fork() if data else -1
    if child == 0:
        break
    *streams, status = streams or [None]
    for stream in streams:
        os.close(stream)
    if data:
        tell(status, b"%d\\n" % child)
        running[child] = (status, caller)

signal.set_wakeup_fd(-1)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
*streams, status = streams
for number in (woken, wakes, status, *(one for one, _ in running.values())):
    os.close(number)
for one in (channel, *listener, caller, *(one for _, one in running.values())):
    one.close()
signal.signal(signal.SIGINT, signal.default_int_handler)
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
request = json.loads(data)
if request["terminal"]:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["env"])
sys.orig_argv[:] = [sys.executable, *request["words"]]
try:
    run(request["words"][0], request["words"][1:])
    code = 0
except SystemExit as end:
    code = end.code or 0
    if not request["abrupt"] or not isinstance(code, int):
        raise
if request["abrupt"]:
    threading._shutdown()
    for one in of_imports:  # torch would take its registered operators apart
        one.atexit = False
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""
_LIGHT = """
import collections, concurrent.futures.thread, contextlib, csv, ctypes.util, dataclasses, datetime
import email.message, enum, functools, hashlib, importlib.metadata, importlib.resources
import importlib.util, json, logging, re, secrets, shlex, shutil, string, subprocess, tempfile
import threading, tomllib, typing
import pydantic, pydantic.fields, pydantic.types, rich.console, rich.panel, rich.table, rich.text
import typer, yaml
pydantic.BaseModel
"""
_TORCH = """
import html, importlib.resources, json, lazy_loader, netrc, numpy.typing, resource, zoneinfo
import pydantic, pydantic.fields, pydantic.types
import torch, torch.utils.data
pydantic.BaseModel
torch.set_num_threads(1)
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports more than torch itself
"""
# Nothing is imported before the first program asks for a fork.
_WAIT = """
import select, sys
channel, listener = map(int, sys.argv[1:])
if listener not in select.select([channel, listener], [], [])[0]:
    sys.exit()
"""

# What an interpreter, or the C library below it, reads before its program begins.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "TZ", "OMP_", "MKL_")
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_shared_paths: set[str] = set()
_MOST_INPUT = 32 << 10
"""Bytes that a pipe holds before anybody reads."""


# Makes the terminal on stdin the controlling one, as a login does, then becomes Python.
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
further, *words = sys.argv[1:]
for number, stream in enumerate(further.split(), 3):
    os.dup2(int(stream), number)
os.execv(sys.executable, [sys.executable, *words])
"""

# A program on a PATH: asks the server for a fork of itself, then stands for it.
_ON_PATH = """
import json, os, signal, socket, sys

words = [*FIRST, *sys.argv[1:]]
at_start = {name: value for name, value in os.environ.items() if name.startswith(NAMES)}
option = not words or words[0].startswith("-") and words[0] not in ("-c", "-m")
if option or at_start != AT_START or any(map(os.isatty, range(3))):
    os.execv(REAL, [REAL, *words])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(ADDRESS)
reader, writer = os.pipe()
request = {"words": words, "cwd": os.getcwd(), "env": dict(os.environ), "terminal": False}
text = json.dumps({**request, "abrupt": True}).encode()
server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(text) + 4096)
socket.send_fds(server, [text], [0, 1, 2, writer])
os.close(writer)
status = os.fdopen(reader)
child = int(status.readline())

def pass_on(number, frame):
    os.kill(child, number)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, pass_on)
code = int(status.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Child:
    """A forked program; used like a :class:`subprocess.Popen`."""

    def __init__(self, words: tuple[str, ...], status: int) -> None:
        self.args = list(words)
        self._status = os.fdopen(status, buffering=1)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not, after ``timeout`` seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._status, selectors.EVENT_READ)
                if waiting.select(timeout):
                    self.returncode = int(self._status.readline())
                    self._status.close()
        return self.returncode


class Forked(Child):
    """A forked program whose streams are pipes of text."""

    def __init__(self, words: tuple[str, ...], out: int, err: int, status: int) -> None:
        super().__init__(words, status)
        self._streams = (out, err)
        self.stdout = os.fdopen(out, encoding="utf-8", buffering=1, closefd=False)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of both streams, once nobody holds them any more.

        Raises:
            subprocess.TimeoutExpired: Somebody does, after ``timeout`` seconds.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        try:
            out, err = _read_all(self._streams, limit)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
        self.wait()
        return out, err

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self.stdout.close()
        for stream in self._streams:
            os.close(stream)


class _Server:
    """An interpreter that waits, and forks when it is asked to."""

    def __init__(
        self, imports: str, env: Mapping[str, str], listener: socket.socket | None = None
    ) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed = [theirs, *([listener] if listener else [])]
        numbers = [one.fileno() for one in passed]
        self._process = subprocess.Popen(
            [sys.executable, "-c", imports + _SERVER, *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=env,
            pass_fds=numbers,
        )
        for one in passed:
            one.close()
        atexit.register(self._close)

    def _close(self) -> None:
        self._channel.close()
        self._process.wait()

    def start(
        self,
        words: tuple[str, ...],
        cwd: Path | str,
        env: Mapping[str, str],
        stdin: str | None,
        abrupt: bool = False,
    ) -> Forked:
        request = {"words": words, "cwd": str(cwd), "env": dict(env), "abrupt": abrupt}
        out, theirs_out = os.pipe()
        err, theirs_err = os.pipe()
        theirs = [_holding(stdin), theirs_out, theirs_err]
        status = self._ask({**request, "terminal": False}, theirs)
        for stream in theirs:
            os.close(stream)
        return Forked(words, out, err, status)

    def start_on_terminal(
        self,
        words: tuple[str, ...],
        cwd: Path | str,
        env: Mapping[str, str],
        streams: list[int],
        abrupt: bool,
    ) -> Child:
        request = {"words": words, "cwd": str(cwd), "env": dict(env), "abrupt": abrupt}
        return Child(words, self._ask({**request, "terminal": True}, streams))

    def _ask(self, request: dict[str, object], streams: list[int]) -> int:
        """Fork a program; returns where its keeper tells of it."""
        status, theirs = os.pipe()
        socket.send_fds(self._channel, [json.dumps(request).encode()], [*streams, theirs])
        os.close(theirs)
        return status


@cache
def _server(imports: str, library_path: str = "") -> _Server:
    env = {**os.environ, **({_LIBRARY_PATH: library_path} if library_path else {})}
    return _Server(imports, env)


def _server_for(env: Mapping[str, str], torch: bool) -> _Server:
    path = env.get(_LIBRARY_PATH, "")
    return _server(_TORCH if torch else _LIGHT, path if path in _shared_paths else "")


def share_library_path(path: str) -> None:
    """Keep an interpreter for programs that start with this value of LD_LIBRARY_PATH."""
    _shared_paths.add(path)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}
    if found.get(_LIBRARY_PATH) in _shared_paths:
        found[_LIBRARY_PATH] = os.environ.get(_LIBRARY_PATH, "")
    # The loader takes an empty path for none.
    return {name: value for name, value in found.items() if value or name != _LIBRARY_PATH}


@cache
def _servers_environment() -> dict[str, str]:
    return _at_start(os.environ)


def can_fork(env: Mapping[str, str], stdin: str | None = None) -> bool:
    """Whether a forked program differs in nothing from one that was started."""
    small = len((stdin or "").encode()) <= _MOST_INPUT
    return sys.platform == "linux" and small and _at_start(env) == _servers_environment()


def python(
    *words: str,
    cwd: Path | str = ".",
    env: Mapping[str, str] = os.environ,
    stdin: str | None = None,
    timeout: float = 60,
    torch: bool = False,
    abrupt: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What ``python -m MODULE …``, ``-c PROGRAM …`` or ``FILE …`` leaves, without a terminal.

    Args:
        words: As on the interpreter's command line.
        cwd: Its working directory.
        env: Its whole environment.
        stdin: What it may read; nothing when omitted.
        timeout: Seconds after which it is killed.
        torch: Whether it imports torch.
        abrupt: Whether it may end after its exit functions, with all objects in place: to take
            modules apart lasts longer than to fork them. Not where destructors matter.

    Raises:
        subprocess.TimeoutExpired: The program took longer than that.
    """
    if not can_fork(env, stdin):
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env=env,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    with _server_for(env, torch).start(words, Path(cwd).absolute(), env, stdin, abrupt) as child:
        out, err = child.communicate(timeout)
        return subprocess.CompletedProcess(child.args, child.wait(), out, err)


def start_torch(
    *words: str, cwd: Path | str = ".", env: Mapping[str, str] = os.environ
) -> Forked | subprocess.Popen[str]:
    """A program that imports torch, while it runs."""
    if can_fork(env):
        return _server_for(env, torch=True).start(words, Path(cwd).absolute(), env, None)
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def on_terminal(
    *words: str,
    cwd: Path | str,
    env: Mapping[str, str],
    streams: list[int],
    torch: bool = False,
    abrupt: bool = False,
) -> Child | subprocess.Popen[bytes]:
    """A program in a session of its own, whose terminal is its standard input.

    Args:
        words: As on the interpreter's command line.
        cwd: Its working directory.
        env: Its whole environment.
        streams: Its standard input, output and error; a further one is its descriptor 3.
        torch: Whether it imports torch.
        abrupt: As for :func:`python`.
    """
    if can_fork(env):
        server = _server_for(env, torch)
        return server.start_on_terminal(words, Path(cwd).absolute(), env, streams, abrupt)
    further = streams[3:]
    return subprocess.Popen(
        [sys.executable, "-c", _ON_TERMINAL, " ".join(map(str, further)), *words],
        cwd=cwd,
        env=env,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        pass_fds=further,
        start_new_session=True,
    )


def torch_on_path(env: Mapping[str, str]) -> str:
    """A PATH whose `python` forks programs that import torch: what fdl starts, for example.

    It ends as its program ends, passes on signals, and takes the program with it when it is
    killed. On a terminal, with options of Python or with other variables that an interpreter
    reads at its start, it becomes the ordinary `python`.

    Args:
        env: The environment of the programs, as far as an interpreter reads it at its start.
    """
    return _path("python", (), _TORCH, env)


def fdl_on_path(env: Mapping[str, str]) -> str:
    """A PATH whose `fdl` is forked, under the same conditions."""
    return _path("fdl", ("-m", "fdl"), _LIGHT, env)


def _path(name: str, first: tuple[str, ...], imports: str, env: Mapping[str, str]) -> str:
    folder = _folder(name, first, imports, tuple(sorted(_at_start(env).items())))
    usual = env.get("PATH", os.defpath)
    return os.pathsep.join([folder, str(Path(sys.executable).parent), usual])


@cache
def _folder(
    name: str, first: tuple[str, ...], imports: str, at_start: tuple[tuple[str, str], ...]
) -> str:
    folder = tempfile.mkdtemp(prefix="fork-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{folder}/socket")
    listener.listen(64)
    own = _at_start(os.environ)
    env = {name: value for name, value in os.environ.items() if name not in own}
    _Server(_WAIT + imports, {**env, **dict(at_start)}, listener)
    program = Path(folder, name)
    program.write_text(
        f"#!{sys.executable} -IS\nREAL = {sys.executable!r}\nAT_START = {dict(at_start)!r}\n"
        f"NAMES = {_READ_AT_START!r}\nFIRST = {first!r}\nADDRESS = '{folder}/socket'\n{_ON_PATH}",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return folder


def _holding(text: str | None) -> int:
    """A stream to read the text from; an empty one without any."""
    if text is None:
        return os.open(os.devnull, os.O_RDONLY)
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return reader


def _read_all(streams: tuple[int, int], limit: float | None) -> list[str]:
    """Read both streams to their ends."""
    texts = dict.fromkeys(streams, b"")
    with selectors.DefaultSelector() as waiting:
        for stream in streams:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(None if limit is None else max(0.0, limit - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                texts[key.fd] += data
                if not data:
                    waiting.unregister(key.fd)
    # As subprocess reads text.
    return [text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in texts.values()]
