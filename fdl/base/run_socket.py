"""The socket of a training: its name, the folder that is trusted, and the user at the other end.

A training makes it in a folder of its user, and ``run.json`` names it. That file may come from
somebody else, so the name of the socket is also known from the path of the run alone.
"""

from __future__ import annotations

import os
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket


def name_for(run: Path) -> str:
    """The name of the socket of a run directory."""
    import hashlib

    return hashlib.sha256(os.fsencode(os.path.realpath(run))).hexdigest()[:16] + ".sock"


def folder_names() -> tuple[str, str]:
    """The names of the folders for sockets: in the run-time folder of the user, and elsewhere."""
    return "flodl", f"flodl-{os.geteuid()}"


def is_private(folder: Path) -> bool:
    """Whether a path is a folder, no link, that only this user can use.

    Raises:
        OSError: There is nothing.
    """
    import stat

    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    )


def is_named_for(run: Path, path: Path) -> bool:
    """Whether a path is that of the socket which a training of this user makes for a run."""
    named = path.name == name_for(run) and path.parent.name in folder_names()
    return named and not path.is_symlink()


def peer(channel: socket.socket) -> int | None:
    """The user id of the other end; None if the system does not tell it.

    Without it, the mode of the folder alone keeps other users out.
    """
    import socket
    import struct

    if not hasattr(socket, "SO_PEERCRED"):
        return None
    form = "iII"
    data = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    return int(struct.unpack(form, data)[1])
