"""A cable between two network namespaces that has a rate and takes time.

Not every kernel has ``netem``, which delays packets. Here a process reads the packets of one TUN
device. It writes them to the other one when a cable of that rate and length would deliver them.
Packets have up to 64 kB, so that the process keeps up with 1 Gbit/s.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.flodl.distributed.network import Host

TUNNEL = "tunnel"
"""Name of the network interface that leads to the other host."""
LARGEST = 65_000
"""Bytes of the largest packet."""
QUEUE_S = 0.2
"""Seconds of packets that wait for the cable; further ones are lost."""
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass
class Lane:
    """One direction of the cable.

    Args:
        bits_per_s: That it takes.
        delay_s: That it needs for a packet, besides sending it.
    """

    bits_per_s: float
    delay_s: float
    free_at: float = 0.0
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, packet: bytes, now: float) -> bool:
        """Put a packet on the cable; say no if too many wait for it, and lose it."""
        begins = max(now, self.free_at)
        if begins - now > QUEUE_S:
            return False
        self.free_at = begins + 8 * len(packet) / self.bits_per_s
        self.waiting.append((self.free_at + self.delay_s, packet))
        return True

    def arrived(self, now: float) -> Iterator[bytes]:
        """Yield what has reached the other end."""
        while self.waiting and self.waiting[0][0] <= now:
            yield self.waiting.popleft()[1]

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next packet arrives; None if none is under way."""
        return max(0.0, self.waiting[0][0] - now) if self.waiting else None


@contextmanager
def long_cable(hosts: Sequence[Host], bits_per_s: float, round_trip_s: float) -> Iterator[None]:
    """Join two hosts by a device :data:`TUNNEL`; their addresses move to it."""
    for host, other in zip(hosts, reversed(hosts), strict=True):
        for command in (
            ("tuntap", "add", "dev", TUNNEL, "mode", "tun"),
            ("addr", "flush", "dev", "cable"),
            ("addr", "add", host.address, "peer", other.address, "dev", TUNNEL),
            ("link", "set", TUNNEL, "mtu", str(LARGEST), "up"),
        ):
            subprocess.run(("ip", "-n", host.name, *command), check=True, capture_output=True)
    names = [host.name for host in hosts]
    words = [sys.executable, "-m", __name__, *names, str(bits_per_s), str(round_trip_s / 2)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as carrying:
        assert carrying.stdout is not None
        try:
            if carrying.stdout.readline() != "joined\n":
                raise SystemExit("error: the long cable cannot be laid")
            yield
        finally:
            carrying.kill()


def _device(name: str) -> int:
    """Open the tunnel of a network namespace; this process stays in that namespace."""
    with Path("/run/netns", name).open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", TUNNEL.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return device


def carry(devices: Sequence[int], bits_per_s: float, delay_s: float) -> None:
    """Carry packets between two devices until this process is killed."""
    lanes = {device: Lane(bits_per_s, delay_s) for device in devices}
    there = dict(zip(devices, reversed(devices), strict=True))
    while True:
        now = time.monotonic()
        waits = [wait for lane in lanes.values() if (wait := lane.wait_s(now)) is not None]
        ready, _, _ = select.select(devices, [], [], min(waits, default=None))
        now = time.monotonic()
        for device, lane in lanes.items():
            for packet in lane.arrived(now):
                with contextlib.suppress(BlockingIOError):  # a full device loses it
                    os.write(there[device], packet)
            if device in ready:
                lane.take(os.read(device, LARGEST + 64), now)


def main(words: Sequence[str]) -> None:
    """Join the tunnels of two namespaces: their names, the rate and the delay of one way."""
    devices = [_device(name) for name in words[:2]]
    sys.stdout.write("joined\n")
    sys.stdout.flush()
    carry(devices, float(words[2]), float(words[3]))


if __name__ == "__main__":
    main(sys.argv[1:])
