"""The cable of the benchmarks that has a rate and takes time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.long_cable import QUEUE_S, Lane, long_cable
from tests.flodl.distributed.network import two_hosts, why_not


def test_a_packet_needs_the_time_to_be_sent_and_the_time_of_the_way() -> None:
    lane = Lane(bits_per_s=8000, delay_s=0.5)
    assert lane.take(b"x" * 100, now=10.0)  # 0.1 s to send
    assert lane.take(b"y" * 100, now=10.0)  # after the first
    assert lane.wait_s(10.0) == pytest.approx(0.6)
    assert list(lane.arrived(10.59)) == []
    assert list(lane.arrived(10.61)) == [b"x" * 100]
    assert list(lane.arrived(10.71)) == [b"y" * 100]
    assert lane.wait_s(10.71) is None


def test_packets_that_would_wait_too_long_are_lost() -> None:
    lane = Lane(bits_per_s=8000, delay_s=0.0)
    size = int(QUEUE_S * 1000)  # bytes that are sent in that time
    assert lane.take(bytes(size), now=0.0)
    assert lane.take(bytes(size), now=0.0)  # waits as long as may be
    assert not lane.take(bytes(size), now=0.0)
    assert lane.take(bytes(size), now=2 * QUEUE_S)


ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 5555))
print("ready", flush=True)
connection, _ = server.accept()
while taken := connection.recv(1 << 20):
    connection.sendall(taken)
"""
ASK = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5555))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
began = time.monotonic()
for _ in range(5):
    connection.sendall(b"x")
    assert connection.recv(1) == b"x"
print((time.monotonic() - began) / 5)
"""


def test_two_hosts_talk_over_it_and_wait_for_the_way_there_and_back() -> None:
    if why_not():
        pytest.skip("needs the right to make network namespaces")
    with two_hosts() as hosts, long_cable(hosts, bits_per_s=1e8, round_trip_s=0.04):
        far = hosts[1]
        words = [*far.within, sys.executable, "-c", ECHO, far.address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as echo:
            ask = [*hosts[0].within, sys.executable, "-c", ASK, far.address]
            try:
                assert echo.stdout is not None
                assert echo.stdout.readline() == "ready\n"
                said = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=True)
            finally:
                echo.kill()
    assert float(said.stdout) >= 0.04
