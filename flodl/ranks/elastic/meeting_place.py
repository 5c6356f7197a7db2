"""Where elastic ranks meet: the address of the lighthouse, and the token of the run."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final
from urllib.parse import urlsplit

from flodl.errors import DistributedError
from flodl.ranks.group import CONTROL_TIMEOUT
from flodl.ranks.launch.launcher import JOIN_VARIABLE

BIND_VARIABLE = "FLODL_LIGHTHOUSE"
"""``HOST:PORT`` on which the lighthouse of a training listens; only this host by default.

``HOST:PORT#TOKEN`` gives the token as well, for a launcher that starts the other ranks itself.
"""

HEARTBEAT_MS = 1000
"""A rank whose heartbeat is missing for so long counts as dead; torchft sends ten in this time."""

_EVERYWHERE = ("", "0.0.0.0", "[::]")  # noqa: S104 - refused
"""Addresses that mean every interface: one can listen there, and nobody can connect to it."""

JOIN_MS = round(CONTROL_TIMEOUT.total_seconds() * 1000)
"""How long the lighthouse waits for living ranks after the first has arrived.

It has to be longer than a window of the slowest rank, and than an evaluation on rank 0: a rank that
is left out loses what it has trained. Nobody has measured these times when the lighthouse starts.
Only a rank that lives and never comes makes the others wait so long, because ranks that are dead or
out of reach have no heartbeat.
"""


def load_torchft() -> Any:
    """Import torchft, without what it tells on the terminal about each exchange.

    Raises:
        DistributedError: It is not installed.
    """
    if importlib.util.find_spec("torchft") is None:
        raise DistributedError(
            "elastic ranks need torchft, which has packages for Linux on x86-64: install "
            "flodl[elastic], or leave elastic out"
        )
    os.environ.setdefault("RUST_LOG", "warn")
    import torchft.coordination

    return torchft


@final
@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """The address that one needs to join a training.

    Attributes:
        lighthouse: URL of the lighthouse.
        token: What a rank has to present to get the state of the training.
    """

    lighthouse: str
    token: str

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> Self | None:
        """Read the address from the environment; return None if there is none.

        Raises:
            DistributedError: It is malformed.
        """
        text = environ.get(JOIN_VARIABLE)
        if not text:
            return None
        url, _, token = text.partition("#")
        try:
            parts = urlsplit(url)
            complete = parts.scheme == "http" and parts.hostname and parts.port and token
        except ValueError:
            complete = False
        if not complete:
            raise DistributedError(
                f"{JOIN_VARIABLE} is not the address of a training; copy the line that the "
                "training printed: http://HOST:PORT/#TOKEN"
            )
        return cls(f"http://{parts.netloc}", token)

    @classmethod
    def at(cls, host: str, port: int, token: str = "") -> Self:
        """Return a new meeting place; with a fresh token, unless one is given."""
        return cls(f"http://{host}:{port}", token or secrets.token_urlsafe(16))

    @property
    def text(self) -> str:
        """The address as one types it."""
        return f"{self.lighthouse}/#{self.token}"

    @property
    def own_host(self) -> str:
        """The address of this host on the interface that leads to the lighthouse."""
        parts = urlsplit(self.lighthouse)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((parts.hostname, parts.port))
            except OSError as error:
                raise DistributedError(
                    f"the lighthouse {self.lighthouse} cannot be reached from here ({error}); "
                    f"check the address in {JOIN_VARIABLE}"
                ) from error
            host: str = probe.getsockname()[0]
        return host

    def answers(self) -> bool:
        """Whether the lighthouse can be reached."""
        parts = urlsplit(self.lighthouse)
        try:
            with socket.create_connection((parts.hostname, parts.port), timeout=5.0):
                return True
        except OSError:
            return False


def lighthouse(environ: Mapping[str, str], min_ranks: int) -> tuple[Any, MeetingPlace]:
    """Start the lighthouse of a training in this process.

    Args:
        environ: Environment variables of this process.
        min_ranks: The fewest ranks that train.

    Returns:
        The server, which lives as long as the object, and where ranks meet.

    Raises:
        DistributedError: torchft is not installed, or the address cannot be used.
    """
    coordination = load_torchft().coordination
    given, _, token = (environ.get(BIND_VARIABLE) or "127.0.0.1:0").partition("#")
    host, _, port = given.rpartition(":")
    try:
        if host in _EVERYWHERE:
            raise ValueError("other ranks need an address that they can reach")
        server = coordination.LighthouseServer(
            bind=f"{host}:{int(port)}",
            min_replicas=min_ranks,
            join_timeout_ms=JOIN_MS,
            heartbeat_timeout_ms=HEARTBEAT_MS,
            quorum_tick_ms=20,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise DistributedError(
            f"the lighthouse cannot listen on {host}:{port} ({error}); set {BIND_VARIABLE} to "
            "HOST:PORT of this host"
        ) from error
    # Its own address has the name of the host, which others may not know.
    return server, MeetingPlace.at(host, int(server.address().rpartition(":")[2]), token)
