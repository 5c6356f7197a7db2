"""Stays beside one run: tells the client how it ends, and ends it when the client is gone.

Runs in the project's interpreter, as a fork of the server. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from . import wire

_CONTROL = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGALRM,
)  # fmt: skip
"""Key presses and requests reach a whole group of processes. They are for the program."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def keep(connection: socket.socket, become: Callable[[list[int], dict[int, Any]], None]) -> None:
    """Start the program in a fork, and return only there.

    The program has a process group that is not its own to lead, as under any shell. Its parent
    belongs to another group of the same session, so it can be stopped with Ctrl-Z.

    Args:
        connection: The client.
        become: Called in the fork, with the descriptors of the client, and the handlers of the
            signals that the keeper ignores.
    """
    os.setpgid(0, 0)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _CONTROL}
    try:
        wire.send(connection, {"ready": True})
        answer, descriptors = wire.receive(connection)
    except (OSError, EOFError):
        answer = {}
    if not answer.get("go"):
        os._exit(0)
    child = os.fork()
    if not child:
        connection.close()
        become(descriptors, handlers)
        return
    for one in descriptors:
        os.close(one)
    _attend(connection, child)


def _attend(connection: socket.socket, child: int) -> None:
    """Wait for the end of the program or of the client."""
    code = 1
    try:
        wire.send(connection, {"pid": child, "group": os.getpid()})
        connection.settimeout(None)
        ends = os.pidfd_open(child)
        waiting = select.poll()
        waiting.register(ends, select.POLLIN)
        waiting.register(connection, select.POLLIN)
        while True:
            ready = {one for one, _ in waiting.poll()}
            if ends in ready:
                wire.send(connection, {"status": os.waitpid(child, 0)[1]})
                code = 0
                break
            if not connection.recv(1):
                break
    except OSError:
        code = 1
    if code:
        # Of the run's other groups, fdl's own watcher takes care.
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
