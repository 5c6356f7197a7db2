"""A Unix socket that only its owner can use: requests come in, one answer each goes out.

The folder has mode 0700 and belongs to the user, and the system names the user of each connection.
docs/reference/run-record.md describes the documents.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, final

from fdl.base.run_record import folder_names, is_private, name_for, peer
from flodl.train.observers.mailbox import Mailbox, Wish, refused

if TYPE_CHECKING:
    from flodl.train.observers.mailbox import Answer

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
        name = name_for(run)
        self.path = _private_folder(len(name) + 1) / name
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()  # of a killed process: only one process writes a run directory
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen(_MOST_CLIENTS)
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
