"""Hosts that share a machine and a disk, each with a network of its own, joined by one cable."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    mark = secrets.token_hex(4)
    hosts = tuple(Host(f"flodl-{mark}-{n}", f"10.213.77.{n}") for n in (1, 2))
    first, second = hosts
    made: list[Host] = []
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
            made.append(host)
            _ip("-n", host.name, "link", "set", "lo", "up")
        ends = ("netns", first.name, "type", "veth", "peer", "name", CABLE, "netns", second.name)
        _ip("link", "add", CABLE, *ends)
        for host in hosts:
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", CABLE)
            host.plug("up")
        yield first, second
    finally:
        for host in made:
            _ip("netns", "delete", host.name)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
