"""Messages between client, server and keeper: JSON behind its length, with descriptors beside it.

Imported on the warm path: ``_socket`` instead of ``socket``, whose import takes longer than a
request. Standard library only.

A run is one connection:

1. client: ``{"do": "run", …}``
2. server: ``{"cold": REASON}``, and the client starts the program itself; or
   keeper: ``{"ready": true}``
3. client: ``{"go": true}`` with the descriptors that the program inherits. Only now a program may
   start, so a client that gave up never has two. A server that does not answer holds no descriptor,
   so no reader of the client's output waits for it.
4. keeper: ``{"pid": PID, "group": PID}``, and at its end ``{"status": WAIT_STATUS}``
"""

from __future__ import annotations

import _socket
import json
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_LENGTH_BYTES = 4
_LONGEST = 16 << 20
"""Bytes. Arguments and environment of a process are limited to less."""
_MOST_DESCRIPTORS = 253
_PEER = 12
"""Bytes of process, user and group of a peer."""


def connect(path: str, timeout: float) -> _socket.socket:
    """Connect to a socket; every answer must come within ``timeout`` seconds.

    Raises:
        OSError: Nobody listens there.
    """
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def peer(connection: _socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel says."""
    found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER)
    numbers = array("i", found)
    return numbers[0], numbers[1]


def send(
    connection: _socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()
) -> None:
    """Send one message.

    Raises:
        OSError: The other end is gone, or too many descriptors.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    data = len(body).to_bytes(_LENGTH_BYTES, "big") + body
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array("i", descriptors))]
    sent = connection.sendmsg([data], rights if descriptors else [])
    # Even an empty rest would fail if the other end has answered and gone.
    if sent < len(data):
        connection.sendall(data[sent:])


def receive(connection: _socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message, and the descriptors that came with it.

    Raises:
        OSError: Nothing comes in time, or it is no message.
        EOFError: The other end is gone.
    """
    room = _socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)
    head, found = b"", array("i")
    try:
        while len(head) < _LENGTH_BYTES:
            data, beside, flags, _ = connection.recvmsg(
                _LENGTH_BYTES - len(head), room, _socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, rights in beside:
                if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                    found.frombytes(rights[: len(rights) - len(rights) % found.itemsize])
            if flags & _socket.MSG_CTRUNC:
                raise OSError("not all descriptors arrived")
            if not data:
                raise EOFError
            head += data
        length = int.from_bytes(head, "big")
        if length > _LONGEST:
            raise OSError("the message is too long")
        body = bytearray()
        while len(body) < length:
            data = connection.recv(length - len(body))
            if not data:
                raise EOFError
            body += data
        message = json.loads(body)
        if not isinstance(message, dict):
            raise OSError("the message is no object")
    except BaseException as problem:
        _close(found)
        if isinstance(problem, ValueError):
            raise OSError("the message is no JSON") from None
        raise
    return message, list(found)


def _close(descriptors: array[int]) -> None:
    import os

    for one in descriptors:
        os.close(one)
