"""What can be tuned about fetching and unpacking."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an archive is fetched and unpacked; sizes in bytes, times in seconds."""

    connections: int = 2
    """Connections at a time to a server that honours ranges."""

    chunk: int = 8 << 20
    """What one request asks for. What was received beyond the first gap is lost when the process
    is killed, which is less than a chunk for each connection but one."""

    tail: int = 1 << 20
    """What is asked for first, from the end: the directory of an official archive is of this
    size."""

    journal_every: int = 1 << 20
    """How much more has to be there before the journal says so."""

    connect_timeout: float = 15.0
    """How long a server may take to accept a connection."""

    stall_timeout: float = 30.0
    """How long a connection may be silent before it is given up."""

    attempts: int = 6
    """Failures in a row, with nothing received between them, after which a server is given up."""

    restarts: int = 3
    """How often the archive may change, or a server without ranges break off, before it is given
    up."""

    backoff: float = 0.5
    """The pause before the second attempt; each further one is twice as long."""

    longest_backoff: float = 30.0
    """The longest pause, also when a server asks for a longer one."""

    workers: int = 2
    """Members that are unpacked at a time."""

    read: int = 256 << 10
    """What is read from the part at a time."""

    inflate: int = 512 << 10
    """The most that is inflated before it is written; bounds the memory a member takes."""

    largest_directory: int = 64 << 20
    """The most that the list of members may take: some 600 thousand of them."""

    largest_total: int = 64 << 30
    """The most that an archive may unpack to."""

    largest_ratio: int = 1000
    """How many times larger than its packed form a member may be, if it is over 1 MiB: deflate
    itself ends at 1032."""
