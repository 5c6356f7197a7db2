"""What people, callbacks and signals ask of a running training.

A private socket hears people, and a mailbox keeps what they ask for. Then all ranks learn of it and
act after the same batch.

The folder of the socket has mode 0700 and belongs to the user, and the system names the user of
each connection. docs/reference/run-record.md describes the documents.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, final

from fdl.base.run_record import folder_names, is_private, name_for, peer
from flodl.ranks.launch.interrupt import InterruptRequest
from flodl.ranks.launch.launcher import LAUNCHED_VARIABLE, detect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flodl.ranks.group import Group
    from flodl.train.callbacks import TrainingRun

    Answer: TypeAlias = Mapping[str, Any]
    """A JSON object: ``ok``, and ``text`` or ``error`` for people."""


ACTS = ("lr", "set", "checkpoint", "pause", "continue", "stop")
FORMAT = 1
_LONGEST = 1000


@final
@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks for.

    Attributes:
        act: One of :data:`ACTS`.
        key: Name of the setting, for ``set``.
        value: Text of the new value, for ``lr`` and ``set``.
        by: The user.
    """

    act: str
    key: str = ""
    value: str = ""
    by: str = ""

    @classmethod
    def read(cls, form: Any, by: str) -> Wish:
        """Read a request, a JSON object with ``flodl``, ``act``, and ``key`` and ``value``.

        Raises:
            ValueError: It has another form.
        """
        if not isinstance(form, dict) or form.get("flodl") != FORMAT:
            raise ValueError(
                f"the request is not of format {FORMAT}; use the fdl of the same release"
            )
        act, key, value = (form.get(name, "") for name in ("act", "key", "value"))
        if act not in ACTS:
            raise ValueError(f"{act!r} is not an act; use one of {', '.join(ACTS)}")
        if not (isinstance(key, str) and isinstance(value, str)):
            raise ValueError("key and value of a request must be texts")
        if len(key) + len(value) > _LONGEST:
            raise ValueError(f"key and value together are longer than {_LONGEST} characters")
        return cls(act, key, value, by)


@final
@dataclass(frozen=True, slots=True)
class Letter:
    """A wish, and where its answer goes."""

    wish: Wish
    reply: Callable[[Answer], object]


@final
class Mailbox:
    """Keeps letters until the training takes them; threads may share it.

    Args:
        wake: Called when a letter has arrived, so that the training looks soon.

    Attributes:
        waiting: Whether there are letters. The training reads it, which costs nothing else.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self.waiting = False
        self._wake = wake
        self._letters: deque[Letter] = deque()
        self._changed = threading.Condition()
        self._closed = ""

    def post(self, wish: Wish, reply: Callable[[Answer], object]) -> None:
        """Leave a letter; ``reply`` is called once, on another thread.

        After :meth:`close`, it is called at once.
        """
        with self._changed:
            closed = self._closed
            if not closed:
                self._letters.append(Letter(wish, reply))
                self.waiting = True
                self._changed.notify_all()
        if closed:
            reply(refused(closed))
        else:
            self._wake()

    def take(self) -> list[Letter]:
        """Take all letters."""
        with self._changed:
            letters = list(self._letters)
            self._letters.clear()
            self.waiting = False
        return letters

    def wait(self, seconds: float) -> None:
        """Wait for a letter, at most this long."""
        with self._changed:
            if not self._letters:
                self._changed.wait(seconds)

    def close(self, why: str) -> None:
        """Refuse the letters that were not taken, and all later ones, for this reason."""
        with self._changed:
            self._closed = self._closed or why
            letters, self._letters, self.waiting = self._letters, deque(), False
        for letter in letters:
            letter.reply(refused(why))


def refused(error: str) -> Answer:
    """Return the answer to a wish that was not carried out."""
    return {"ok": False, "error": error}


_LONGEST_REQUEST = 4096
_LONGEST_PATH = 100
"""Systems allow 104 bytes and more for the path of a socket."""
_MOST_CLIENTS = 16
_READ_SECONDS = 10.0


@final
class PrivateSocket:
    """Listens on threads of its own, for a mailbox.

    Args:
        run: The run directory; its path gives the socket its name.
        mailbox: Gets the wishes.

    Attributes:
        path: Path of the socket.

    Raises:
        OSError: This system has no such sockets, or no folder for them can be trusted.
    """

    def __init__(self, run: Path, mailbox: Mailbox) -> None:
        if not hasattr(socket, "AF_UNIX") or not hasattr(os, "geteuid"):
            raise OSError("this system has no Unix sockets")
        self._mailbox = mailbox
        name, first = name_for(run), f"{name_for(run)}.new"
        folder = _private_folder(len(first) + 1)
        self.path, new = folder / name, folder / first
        _remove_left(folder)
        new.unlink(missing_ok=True)  # of a killed process: only one writes a run directory
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(new))
            new.chmod(0o600)
            self._listener.listen(_MOST_CLIENTS)
            # It listens before it has its name: others remove sockets where nothing listens.
            new.replace(self.path)
        except OSError:
            self._listener.close()
            raise
        self._clients = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._pid = os.getpid()
        threading.Thread(target=self._accept, name="flodl-acts", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        with contextlib.suppress(OSError):
            # A worker of a data loader may hold a copy; this ends the listening itself.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            if not self._clients.acquire(blocking=False):
                channel.close()
                continue
            threading.Thread(
                target=self._serve, args=(channel,), name="flodl-act", daemon=True
            ).start()

    def _serve(self, channel: socket.socket) -> None:
        try:
            with channel, contextlib.suppress(OSError):
                channel.settimeout(_READ_SECONDS)
                answer = self._answer(channel)
                channel.sendall(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        finally:
            self._clients.release()

    def _answer(self, channel: socket.socket) -> Answer:
        user = peer(channel)
        if user is not None and user != os.geteuid():
            return refused("only the user who started the training can act on it")
        try:
            wish = Wish.read(json.loads(_line(channel)), _name(os.geteuid()))
        except ValueError as problem:
            return refused(str(problem))
        answered = threading.Event()
        answers: list[Answer] = []

        def reply(answer: Answer) -> None:
            answers.append(answer)
            answered.set()

        self._mailbox.post(wish, reply)
        answered.wait()
        return answers[0]


def _line(channel: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = channel.recv(_LONGEST_REQUEST)
        if not piece:
            break
        data += piece
        if len(data) > _LONGEST_REQUEST:
            raise ValueError("the request is too long")
    return data


def _remove_left(folder: Path) -> None:
    """Remove the sockets that killed processes left: nothing listens there."""
    for path in filter(Path.is_socket, folder.glob("*.sock")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.setblocking(False)
            try:
                channel.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # it has many clients, or has just ended


def _private_folder(room: int) -> Path:
    """Return the folder for sockets of this user, made if it is missing.

    Args:
        room: Bytes of a name in it.

    Raises:
        OSError: No folder belongs to this user alone.
    """
    problem = OSError("no folder for a socket was found")
    given = os.environ.get("XDG_RUNTIME_DIR")
    below, elsewhere = folder_names()
    own = Path(tempfile.gettempdir(), elsewhere)
    for folder in (*([Path(given, below)] if given and Path(given).is_absolute() else []), own):
        if len(os.fsencode(folder)) + room > _LONGEST_PATH:
            problem = OSError(f"the path {folder} is too long for a socket")
            continue
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            trusted = is_private(folder)
        except OSError as failure:
            problem = failure
            continue
        if not trusted:
            problem = OSError(f"{folder} is not a folder that only you can use (mode 0700)")
            continue
        return folder
    raise problem


def _name(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return str(user)


@final
class StopRequests:
    """The requests of all ranks.

    Args:
        run: Holds the request of a callback on this rank.
        mailbox: Holds what people asked this rank for.
        wake: Called when a signal arrives, so that the loop looks soon.

    Attributes:
        acts: People asked some rank for acts, and all ranks know it; the code that acts clears it.
        told: People asked to stop, and all ranks know it.
        interrupt: Holds the request of a signal to this process.
        agreed: A callback on some rank asked to stop, and all ranks know it.
        interrupted_by: The signal that a rank got, once all ranks know it.
    """

    def __init__(
        self, run: TrainingRun, mailbox: Mailbox, wake: Callable[[], object] | None = None
    ) -> None:
        self._run = run
        self._mailbox = mailbox
        self.acts = self.told = False
        self.interrupt = InterruptRequest(wake)
        self.agreed = False
        self.interrupted_by: signal.Signals | None = None

    def __bool__(self) -> bool:
        """Whether all ranks stop now."""
        return self.agreed or self.interrupted_by is not None

    def wishes(self) -> tuple[float, float, float, float]:
        """Return the requests of this rank, each 0 or 1: SIGINT, SIGTERM, a callback, acts."""
        asked = self.interrupt.asked_by
        return (
            float(asked == signal.SIGINT),
            # After the notice of a batch system, all ranks stop as after SIGTERM.
            float(asked not in (None, signal.SIGINT)),
            float(self._run.stopped is not None),
            float(self._mailbox.waiting),
        )

    def heed(self, wishes: Sequence[float]) -> None:
        """Apply the requests of all ranks, combined by sum or maximum."""
        interrupt, terminate, stop, acts = wishes
        if terminate or interrupt:
            self.interrupted_by = signal.SIGTERM if terminate else signal.SIGINT
        if stop:
            self.agree(["another rank stopped it"])
        if acts:
            self.acts = True

    def tell(self) -> None:
        """Stop as after Ctrl-C, because people asked for it; all ranks call this."""
        self.told, self.interrupted_by = True, self.interrupted_by or signal.SIGINT

    def agree(self, reasons: Sequence[str | None]) -> None:
        """Apply the callbacks' reasons to stop, one per rank; None means no request."""
        for reason in reasons:
            if reason is not None:
                self._run.stop(reason)  # the first one stays
                self.agreed = True

    def leave(self, message: str, by: signal.Signals | None) -> NoReturn:
        """End this process as the signal demands.

        Args:
            message: Text for people.
            by: The signal that all ranks obey; None for that of this process.

        Raises:
            KeyboardInterrupt: The signal was SIGINT.
            Terminated: The signal was SIGTERM.
        """
        self.interrupt.stop(message, by)


_LAUNCHER_SECONDS = 10.0


@final
class BetweenSteps:
    """All ranks of a training between two steps.

    Args:
        group: The ranks.
        stops: Their requests.
        save_now: Saves a checkpoint, and returns why not, or an empty text; collective.
    """

    def __init__(self, group: Group, stops: StopRequests, save_now: Callable[[], str]) -> None:
        self._group, self._stops = group, stops
        self.save_now = save_now

    def is_interrupted(self) -> bool:
        """Whether a signal to some rank asks to stop; collective."""
        rows = self._group.gather(self._stops.wishes())
        interrupt, terminate, *_ = map(max, zip(*rows, strict=True))
        self._stops.heed((interrupt, terminate, 0.0, 0.0))
        return bool(self._stops)

    def share(self, wishes: Sequence[Wish]) -> Sequence[Wish]:
        """Return the wishes of rank 0; collective."""
        return self._group.from_first(lambda: list(wishes))


def end_launcher(group: Group, interrupt: InterruptRequest) -> None:
    """Let the launcher of the ranks end as after Ctrl-C, so that it starts none of them again.

    The launcher passes the signal on to the ranks. They wait for it, so that it does not interrupt
    the end of their work. Collective, after all files are written.
    """
    group.barrier()
    launched = detect(os.environ)
    if launched is None or LAUNCHED_VARIABLE not in os.environ:
        return
    if group.leads or launched.local_rank == 0:
        os.kill(os.getppid(), signal.SIGINT)
    limit = time.monotonic() + _LAUNCHER_SECONDS
    while not interrupt.requested and time.monotonic() < limit:
        time.sleep(0.02)
