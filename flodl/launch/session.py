"""Give each start of the ranks its own part of the store.

torchrun keeps one store while it restarts the ranks. Values of an earlier start, such as addresses
of dead processes, look like values of the current ranks. So the ranks first agree on a name that
no earlier start can have used.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import PrefixStore

from flodl.errors import DistributedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PAUSE = 0.005
"""Seconds between two reads of the store."""


def own_session(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return a part of a store that no earlier start of the ranks has written to; collective.

    Every rank above 0 writes a random word. Rank 0 answers each word with the name of the session,
    until every rank has repeated that name. No rank repeats a word or a name of an earlier start.

    Args:
        store: A store of all ranks, which earlier starts may have used.
        rank: Number of this process.
        world_size: Number of processes.
        timeout: How long to wait for the other ranks.

    Raises:
        DistributedError: A rank did not arrive in time.
    """
    until = time.monotonic() + timeout.total_seconds()
    meeting = PrefixStore("flodl/meeting", store)
    leads = rank == 0
    session = _lead(meeting, world_size, until) if leads else _follow(meeting, rank, until)
    return PrefixStore(f"flodl/{session}", store)


def _lead(meeting: Store, world_size: int, until: float) -> str:
    session = secrets.token_hex(8)
    missing = set(range(1, world_size))
    answered: dict[int, bytes] = {}
    while missing:
        for rank in sorted(missing):
            word = _read(meeting, f"word/{rank}")
            if word is not None and answered.get(rank) != word:
                answered[rank] = word
                meeting.set(f"answer/{rank}", f"{word.decode()} {session}")
            if _read(meeting, f"agreed/{rank}") == session.encode():
                missing.discard(rank)
        if missing and time.monotonic() > until:
            raise DistributedError(
                f"rank {min(missing)} of {world_size} has not come; see whether its process runs "
                "and reaches the address of the first one"
            )
        if missing:
            time.sleep(_PAUSE)
    return session


def _follow(meeting: Store, rank: int, until: float) -> str:
    word = secrets.token_hex(8)
    meeting.set(f"word/{rank}", word)
    while True:
        said, _, session = (_read(meeting, f"answer/{rank}") or b"").decode().partition(" ")
        if said == word:
            meeting.set(f"agreed/{rank}", session)
            return session
        if time.monotonic() > until:
            raise DistributedError(
                f"rank 0 has not come, says rank {rank}; see whether its process runs and can be "
                "reached from here"
            )
        time.sleep(_PAUSE)


def _read(store: Store, key: str) -> bytes | None:
    """Return a value, or None if it is not there yet; do not wait for it."""
    return bytes(store.get(key)) if store.check([key]) else None
