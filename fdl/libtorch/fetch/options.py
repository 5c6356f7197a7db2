"""The options of downloading and unpacking."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of downloading and unpacking; sizes in bytes, times in seconds."""

    tail: int = 1 << 20
    """Size of the first request, at the end of the file; the directory of an official archive has
    this size."""

    journal_every: int = 8 << 20
    """Number of new bytes after which the journal is updated. If the process is killed, at most
    as many are lost."""

    journal_seconds: float = 1.0
    """Time after which the journal is updated even if fewer bytes have arrived."""

    connect_timeout: float = 15.0
    """Time for a server to accept a connection."""

    stall_timeout: float = 20.0
    """Time without data after which a connection is replaced by another one."""

    watched: float = 60.0
    """Time within which 64 KiB must arrive, else the server is given up: it stalls or drips."""

    attempts: int = 6
    """Failures in a row, with no bytes in between, after which a server is given up."""

    restarts: int = 3
    """How often the archive may change, or a server without ranges disconnect, before it is given
    up."""

    backoff: float = 0.5
    """The pause before the second attempt; each later pause is twice as long."""

    longest_backoff: float = 30.0
    """The longest pause, even if a server asks for a longer one."""

    largest_directory: int = 64 << 20
    """Maximum size of the list of members: about 600 thousand members."""

    largest_total: int = 64 << 30
    """Maximum total size of an unpacked archive."""

    largest_ratio: int = 1000
    """Maximum ratio of a member's size to its packed size, if it is over 1 MiB. Deflate itself
    reaches at most 1032."""
