"""Ranks that are started again find nothing of an earlier start in the store."""

from __future__ import annotations

from datetime import timedelta
from threading import Thread

import pytest
from torch.distributed import HashStore, PrefixStore

from flodl.errors import DistributedError
from flodl.ranks.launch.join import own_session

SOON = timedelta(seconds=20)


def start(store: HashStore, world_size: int) -> list[PrefixStore]:
    found: list[PrefixStore] = [None] * world_size  # type: ignore[list-item]

    def come(rank: int) -> None:
        found[rank] = own_session(store, rank, world_size, SOON)

    threads = [Thread(target=come, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_ranks_of_a_start_share_a_store_and_no_two_starts_do() -> None:
    store = HashStore()
    starts = [start(store, 3) for _ in range(20)]
    for number, ranks in enumerate(starts):
        ranks[0].set("said", str(number))
    for number, ranks in enumerate(starts):
        assert [rank.get("said") for rank in ranks] == [str(number).encode()] * 3


def test_a_rank_that_died_while_it_came_confuses_nobody() -> None:
    store = HashStore()
    with pytest.raises(DistributedError, match="rank 1 cannot find rank 0"):
        own_session(store, 1, 2, timedelta(seconds=0.05))
    with pytest.raises(DistributedError, match="rank 1 of 2 did not start in time"):
        own_session(store, 0, 2, timedelta(seconds=0.05))
    one, two = start(store, 2)
    one.set("said", "hello")
    assert two.get("said") == b"hello"
