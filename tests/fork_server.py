"""Python programs without the price of an interpreter: each is a fork of one that waits.

A forked program is as new as any other: its arguments, folder, environment and streams are its
own, and nothing has run. Only the interpreter and imported modules are there already: some of the
standard library, PyYAML, pydantic, Typer and fdl, or torch and flodl for those that ask for it.
Where a fork would differ from an ordinary start, programs start the ordinary way.

The processes that run tests beside each other share what waits: it imports once, not in each.

The loader of the operating system reads its search path when a process starts. A path that many
programs share gets an interpreter of its own: see :func:`share_library_path`.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Self

from tests import typed
from tests.forked import LIGHT, ON_PATH, ON_TERMINAL, ROOT, SERVER, TORCH

# What an interpreter, or the C library below it, reads before its program begins.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "TZ", "OMP_", "MKL_")
_LIBRARY_PATH = "LD_LIBRARY_PATH"
# As a value of PYTHONPATH it hides nothing of what is imported already.
_ROOT = str(ROOT)
FORGET = """
import sys
for name in [one for one in sys.modules if one.partition(".")[0] in ("fdl", "flodl")]:
    del sys.modules[name]
"""
"""Begins a program that is about what an import of fdl or flodl does: they are imported again."""
_SHARED = "PYTEST_XDIST_TESTRUNUID"
"""Names the run, where several processes run its tests."""
_MOST_INPUT = 32 << 10
"""Bytes that a pipe holds before anybody reads."""


AtStart = tuple[tuple[str, str], ...]
"""What an interpreter reads of an environment before its program begins, sorted."""


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
    """An interpreter that waits, and forks when it is asked to; it ends with its last client."""

    def __init__(self, imports: str, at_start: AtStart) -> None:
        # Programs that stand on a PATH ask here: see `on_path`.
        self.folder = _folder(imports, at_start)
        address = str(self.folder / "socket")
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        atexit.register(self._channel.close)
        with _alone(self.folder):
            try:
                self._channel.connect(address)
            except (FileNotFoundError, ConnectionRefusedError):
                process = _start(address, imports, at_start)
                self._channel.connect(address)
                if _SHARED not in os.environ:
                    atexit.register(self._end, process)
            self._channel.send(b"client")

    def _end(self, process: int) -> None:
        """Wait until it has ended: it writes then what it has run, if that is measured."""
        self._channel.close()
        os.waitpid(process, 0)

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


def _folder(imports: str, at_start: AtStart) -> Path:
    """Where the interpreter can be asked: one for each run of tests, whichever process asks."""
    run = os.environ.get(_SHARED) or str(os.getpid())
    asked = repr((sys.executable, _ROOT, imports, at_start)).encode()
    # Short: the address of a socket has 108 bytes at most.
    name = f"fork-{run[:16]}-{hashlib.sha256(asked).hexdigest()[:16]}"
    return Path(tempfile.gettempdir(), name)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time look whether an interpreter waits there, start it or end it."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists() and os.path.samestat(folder.stat(), os.fstat(lock)):
                yield
                return
        finally:
            os.close(lock)


def _start(address: str, imports: str, at_start: AtStart) -> int:
    """Start an interpreter that listens there; returns its process."""
    others = {name: value for name, value in os.environ.items() if not _is_read_at_start(name)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        Path(address).unlink(missing_ok=True)
        listener.bind(address)
        listener.listen(64)
        listener.set_inheritable(True)
        program = f"IMPORTS = {imports!r}\nROOT = {_ROOT!r}\n{SERVER}"
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", program, str(listener.fileno())],
            {**others, **dict(at_start)},
            file_actions=[(os.POSIX_SPAWN_OPEN, one, os.devnull, os.O_RDWR, 0) for one in (0, 1)],
        )


@cache
def _server(imports: str, at_start: AtStart) -> _Server:
    return _Server(imports, at_start)


def _server_for(env: Mapping[str, str], torch: bool) -> _Server:
    return _server(TORCH if torch else LIGHT, _at_start(env))


def _is_read_at_start(name: str) -> bool:
    # PYTHON_EXEC is torchrun's own.
    return name.startswith(_READ_AT_START) and name != "PYTHON_EXEC"


def _at_start(env: Mapping[str, str]) -> AtStart:
    found = {name: value for name, value in env.items() if _is_read_at_start(name)}
    if not found.get(_LIBRARY_PATH):  # the loader takes an empty path for none
        found.pop(_LIBRARY_PATH, None)
    if found.get("PYTHONPATH") == _ROOT:
        del found["PYTHONPATH"]
    return tuple(sorted(found.items()))


@cache
def _usual() -> set[AtStart]:
    return {_at_start(os.environ)}


def share_library_path(path: str) -> None:
    """Keep an interpreter for programs that start with this value of LD_LIBRARY_PATH."""
    _usual().add(_at_start({**os.environ, _LIBRARY_PATH: path}))


def can_fork(env: Mapping[str, str], stdin: str | None = None) -> bool:
    """Whether a forked program differs in nothing from one that was started."""
    small = len((stdin or "").encode()) <= _MOST_INPUT
    return sys.platform == "linux" and small and _at_start(env) in _usual()


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
    ended: list[subprocess.CompletedProcess[str]] = []
    typed.note(
        words, cwd, env, lambda: (ended[0].returncode, _both(ended[0])) if ended else (None, "")
    )
    ended.append(_python(words, cwd, env, stdin, timeout, torch, abrupt))
    return ended[0]


def _both(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def _python(
    words: tuple[str, ...],
    cwd: Path | str,
    env: Mapping[str, str],
    stdin: str | None,
    timeout: float,
    torch: bool,
    abrupt: bool,
) -> subprocess.CompletedProcess[str]:
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


def start(
    *words: str,
    cwd: Path | str = ".",
    env: Mapping[str, str] = os.environ,
    torch: bool = False,
    abrupt: bool = False,
) -> Forked | subprocess.Popen[str]:
    """A program while it runs; ``torch`` and ``abrupt`` as for :func:`python`."""
    if can_fork(env):
        return _server_for(env, torch).start(words, Path(cwd).absolute(), env, None, abrupt)
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
        [sys.executable, "-c", ON_TERMINAL, " ".join(map(str, further)), *words],
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
    killed. On a terminal, with options of Python but ``-u`` and ``-B``, or with other variables
    that an interpreter reads at its start, it becomes the ordinary `python`.

    Args:
        env: The environment of the programs, as far as an interpreter reads it at its start.
    """
    return on_path("python", (), TORCH, env)


def torch_program(env: Mapping[str, str]) -> str:
    """The file of that `python`: for torchrun as well, whose variable PYTHON_EXEC names it."""
    return shutil.which("python", path=torch_on_path(env)) or sys.executable


def worker_program() -> str:
    """The same for the processes that run tests. Their errors may go to a terminal."""
    path = on_path("worker", (), TORCH, os.environ, streams=(0, 1))
    return shutil.which("worker", path=path) or sys.executable


def python_on_path(env: Mapping[str, str]) -> str:
    """A PATH whose `python` forks programs without torch, under the same conditions."""
    return on_path("python", (), LIGHT, env)


def fdl_on_path(env: Mapping[str, str]) -> str:
    """A PATH whose `fdl` is forked, under the same conditions."""
    return on_path("fdl", ("-m", "fdl"), LIGHT, env)


def on_path(
    name: str,
    first: tuple[str, ...],
    imports: str,
    env: Mapping[str, str],
    streams: tuple[int, ...] = (0, 1, 2),
) -> str:
    """A PATH with a program of this name that is forked, after imports and with first words.

    Where one of the streams is a terminal, it is not forked.
    """
    server = _server(imports, _at_start(env))
    program = server.folder / name
    if not program.exists():
        program.write_text(
            f"#!{sys.executable} -IS\nREAL = {sys.executable!r}\nFIRST = {first!r}\n"
            f"ROOT = {_ROOT!r}\nSTREAMS = {streams!r}\n"
            f"AT_START = {dict(_at_start(env))!r}\nNAMES = {_READ_AT_START!r}\n"
            f"ADDRESS = '{server.folder}/socket'\n{ON_PATH}",
            encoding="utf-8",
        )
        program.chmod(0o755)
    usual = env.get("PATH", os.defpath)
    return os.pathsep.join([str(server.folder), str(Path(sys.executable).parent), usual])


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
