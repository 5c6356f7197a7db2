"""Watch a run, act on its training, and show its page."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base.errors import FdlError, UsageError, failing
from fdl.base.own_files import open_own
from fdl.base.run_record import is_named_for, is_private, peer
from fdl.runs.find import shortened
from fdl.runs.run import METRICS, RECORD, RUNNING, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fdl.runs.run import Run

_PAUSE_SECONDS = 0.2
# Reading a run's state opens files and asks the system. A delay of half a second is not noticed.
_LOOKS_PER_STATE = 3


def last_lines(file: Path, count: int) -> list[str]:
    """The last lines of a run's file, without line ends; of a table also its heading.

    Raises:
        FdlError: The file cannot be read.
    """
    run = file.parent.name
    with failing(f"{run} has no {file.name} to read", hint=f"fdl runs show {run}"):
        open_own(file).close()
    return _end(_Growing(file).lines(rest=True), file, count)


def _end(lines: list[str], file: Path, count: int) -> list[str]:
    end = lines[-count:] if count > 0 else []
    if file.name == METRICS and len(end) < len(lines):
        return [lines[0], *end]
    return end


def follow(
    run: Run, file: Path, count: int, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield the lines of :func:`last_lines`, then every new line, until the run has ended.

    A rewritten file is read from its beginning; the file may not exist yet.
    """
    source = _Growing(file)
    yield from _end(source.lines(), file, count)
    looks = 0
    while True:
        looks += 1
        current = read(run.path) if looks % _LOOKS_PER_STATE == 1 else run
        # Read after the state, so that everything the run wrote before its end is there.
        yield from source.lines(rest=current is None or current.state != RUNNING)
        if current is None or current.state != RUNNING:
            return
        pause(_PAUSE_SECONDS)


class _Growing:
    """A text file that grows, or is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._partial = b""

    def lines(self, *, rest: bool = False) -> list[str]:
        """The complete lines since the last call; with ``rest`` also an incomplete last one."""
        try:
            with open_own(self._path) as stream:
                status = os.fstat(stream.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._file or status.st_size < self._offset:
                    self._file, self._offset, self._partial = identity, 0, b""
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            data = b""
        self._offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        if rest and self._partial:
            whole.append(self._partial)
            self._partial = b""
        return [line.decode("utf-8", "replace").rstrip("\r") for line in whole]


FORMAT = 1
PLAIN = ("checkpoint", "pause", "continue", "stop")
"""The acts without a value."""

_LONGEST_ANSWER = 1 << 20
_LONGEST_WAIT_S = 1e9
"""The system takes no time that is much longer, nor infinity."""
_EXAMPLE = "fdl runs tell RUN lr=1e-4"


class Act(NamedTuple):
    """What a training is told."""

    act: str
    key: str = ""
    value: str = ""


def parse(words: Sequence[str]) -> Act:
    """Read the words of an act: ``lr=1e-4``, ``checkpoint``, ``set KEY=VALUE``.

    Raises:
        UsageError: They are not an act.
    """
    match list(words):
        case [word] if word in PLAIN:
            return Act(word)
        case ["set", assignment] if assignment.partition("=")[0] and "=" in assignment:
            key, _, value = assignment.partition("=")
            return parse([assignment]) if key == "lr" else Act("set", key, value)
        case [word] if word.startswith("lr="):
            return Act("lr", value=word.removeprefix("lr="))
        case [word] if word.partition("=")[0].isidentifier() and "=" in word:
            raise UsageError(f"{word!r} is not an act", hint=f"fdl runs tell RUN set {word}")
        case []:
            raise UsageError("no act is given", hint=_EXAMPLE)
    raise UsageError(
        f"{' '.join(words)!r} is not an act: use one of lr=RATE, set KEY=VALUE, {', '.join(PLAIN)}",
        hint=_EXAMPLE,
    )


def tell(run: Run, act: Act, seconds: float) -> dict[str, Any]:
    """Tell a run, and wait until it has done so.

    Args:
        run: The run.
        act: What to do.
        seconds: How long to wait for the end of a step.

    Returns:
        The answer: ``act``, ``step``, ``text``, and ``value`` and ``old`` if there are any.

    Raises:
        FdlError: The run is over or cannot be reached, it refuses, or no step has ended in time.
    """
    _require_running(run)
    where = shortened(run.path)
    path = run.record.get("socket")
    if not isinstance(path, str) or not path:
        raise FdlError(
            f"{where} takes no acts: its program has no Trainer that listens, or its first step "
            "has not begun",
            hint=f"fdl runs tail {run.name} -f",
        )
    document = {"flodl": FORMAT, **act._asdict()}
    try:
        with _connected(Path(path), run) as channel:
            channel.settimeout(min(seconds, _LONGEST_WAIT_S))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # A training that refuses the connection answers before it has read the request.
                channel.sendall(json.dumps(document).encode() + b"\n")
            answer = _answer(channel)
    except TimeoutError:
        raise FdlError(
            f"{where} has ended no step within {seconds:g} s; it does what you told it after the "
            "step or evaluation that it computes now",
            hint=f"fdl runs show {run.name}",
        ) from None
    except PermissionError:
        raise FdlError(
            f"{where} belongs to another user: only the user who started a training can act on it",
            hint=f"fdl runs show {run.name}",
        ) from None
    except (OSError, ValueError) as failure:
        raise FdlError(
            f"{where} cannot be reached at {path}: {getattr(failure, 'strerror', '') or failure}; "
            "it may have ended, or runs in a container",
            hint=f"fdl runs show {run.name}",
        ) from None
    if not answer.get("ok"):
        raise FdlError(f"{where}: {answer.get('error', 'refused')}", hint=_remedy(run, act))
    return answer


def _require_running(run: Run) -> None:
    where = shortened(run.path)
    if run.state != RUNNING:
        hint = "fdl runs list --state running"
        raise FdlError(f"{where} is {run.state}, so it takes no acts", hint=hint)
    host = run.record.get("host")
    if isinstance(host, str) and host != socket.gethostname():
        raise FdlError(
            f"{where} runs on the machine {host}, and only that machine can reach it",
            hint=f"ssh {host}, and type the command there",
        )


def _remedy(run: Run, act: Act) -> str:
    if act.act == "set":
        return f"fdl runs tell {run.name} set KEY=VALUE, with one of the declared settings"
    return f"fdl runs show {run.name}"


def _connected(path: Path, run: Run) -> socket.socket:
    """Connect to the socket that a training of this user made for a run.

    Raises:
        FdlError: The record names something else; it may come from another person.
        PermissionError: Its folder or the process behind it belongs to somebody else.
        OSError: There is nothing to connect to.
    """
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "geteuid"):
        raise OSError("this system has no Unix sockets")
    if not is_named_for(run.path, path):
        raise FdlError(
            f"{shortened(run.path / RECORD)} names {path}, which is not the socket of this run: "
            "the folder was moved, or somebody else wrote it. Nothing was sent",
            hint=f"fdl runs show {run.name}",
        )
    if not is_private(path.parent):
        raise PermissionError
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.connect(str(path))
        if peer(channel) not in (None, os.geteuid()):
            raise PermissionError
    except OSError:
        channel.close()
        raise
    return channel


def _answer(channel: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = channel.recv(65536)
        if not piece or len(data) > _LONGEST_ANSWER:
            raise ValueError("the training ended without an answer")
        data += piece
    answer = json.loads(data)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not a JSON object")
    return answer


def show(file: str | Path, environ: Mapping[str, str]) -> bool:
    """Open a file or an address with the desktop's program for it; return whether one was started.

    Without a display or such a program, none is.
    """
    if sys.platform == "win32":
        os.startfile(file)  # noqa: S606 - the user's own report
        return True
    if sys.platform == "darwin":
        opener = "open"
    elif environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"):
        opener = "xdg-open"
    else:
        return False
    program = shutil.which(opener, path=environ.get("PATH"))
    if program is None:
        return False
    done = subprocess.run(
        [program, str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0
