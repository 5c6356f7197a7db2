"""A store of its own for each start of the ranks.

torchrun keeps one store while it starts the ranks again and again. What an earlier start has left
there, such as the addresses of processes that are dead, looks like what a rank of this one has
said. So the ranks first agree on a name that none but they can know.
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
"""Seconds between two looks."""


def own_session(store: Store, rank: int, world_size: int, timeout: timedelta) -> Store:
    """Return a part of a store that no earlier start of the ranks has written to; collective.

    Every rank above 0 says a random word; rank 0 answers it with the name of the session, and goes
    on until every rank has repeated that name. A word or a name of an earlier start is never
    repeated by a rank of this one.

    Args:
        store: Reached by all ranks, and perhaps by earlier starts of them before.
        rank: Of this process.
        world_size: Number of processes.
        timeout: How long the others may take to come.

    Raises:
        DistributedError: Some did not come.
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
    """Read a value that may not be there yet, without waiting for it."""
    return bytes(store.get(key)) if store.check([key]) else None
