"""Hosts that share a machine and a disk, each with a network of its own, joined by one cable."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

CABLE = "cable"
"""Name of the network interface that leads to the other host."""


@dataclass(frozen=True)
class Host:
    """A network namespace."""

    name: str
    address: str

    @property
    def within(self) -> tuple[str, ...]:
        """Words before a command that let it run there, on a host of that name."""
        rename = 'hostname "$0" && exec "$@"'
        return ("ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", rename, self.name)

    @property
    def environ(self) -> dict[str, str]:
        """What torch has to know.

        Without the second, a launcher whose rank was the first once, and is not any more, goes on
        telling its ranks to meet there.
        """
        return {"GLOO_SOCKET_IFNAME": CABLE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def plug(self, how: str) -> None:
        """Pull the cable out (``down``), or put it back (``up``)."""
        _ip("-n", self.name, "link", "set", CABLE, how)


def why_not() -> str | None:
    """Say why there can be no such hosts here; None where there can."""
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here"
    try:
        with two_hosts() as (first, _):
            _run(*first.within, "true")
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd[:4])} is refused: {error.stderr.strip()}"
    return None


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts with a cable between them; nothing is left of them afterwards."""
    with _hosts(["10.213.77.1", "10.213.77.2"]) as (first, second):
        _connect((first, CABLE, first.address), (second, CABLE, second.address))
        yield first, second


@contextmanager
def hosts_in_a_row(count: int) -> Iterator[list[Host]]:
    """Make hosts of which each reaches only its neighbours; the address is for the one before."""
    with _hosts(["10.213.78.1", *(f"10.213.{77 + n}.2" for n in range(1, count))]) as made:
        for n, (left, right) in enumerate(pairwise(made), 1):
            _connect((left, "next", f"10.213.{77 + n}.1"), (right, CABLE, right.address))
        yield made


@contextmanager
def _hosts(addresses: Sequence[str]) -> Iterator[list[Host]]:
    mark = secrets.token_hex(4)
    made: list[Host] = []
    try:
        for n, address in enumerate(addresses, 1):
            host = Host(f"flodl-{mark}-{n}", address)
            _ip("netns", "add", host.name)
            made.append(host)
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield made
    finally:
        for host in made:
            _ip("netns", "delete", host.name)


def _connect(*ends: tuple[Host, str, str]) -> None:
    """Lay a cable; of each end the host, the name of the interface and its address."""
    (left, left_name, _), (right, right_name, _) = ends
    cable = ("name", left_name, "netns", left.name, "type", "veth")
    _ip("link", "add", *cable, "peer", "name", right_name, "netns", right.name)
    for host, name, address in ends:
        _ip("-n", host.name, "addr", "add", f"{address}/24", "dev", name)
        _ip("-n", host.name, "link", "set", name, "up")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
