"""Ranks exchange values; and the ranks of the tests are killed rather than waited for."""

import os
import pickle
import signal
import threading
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
import torch

from flodl.ranks.group import LocalGroup
from tests.flodl.distributed.ranks import RankError, _results


def _gathered(group, base):
    return group.gather([base + group.rank, 2.0])


def _objects(group):
    return (
        group.gather_objects({"rank": group.rank}),
        group.gather_objects_to_first(group.rank * 2),
        group.broadcast_object("first" if group.leads else None),
        group.scatter_objects(["a", "b", "c"] if group.leads else None),
    )


def _tensors(group):
    total = torch.tensor([1.0, group.rank])
    group.all_reduce_(total)
    largest = torch.tensor([group.rank, -group.rank])
    group.all_reduce_later(largest, maximum=True).wait()
    first = torch.tensor([float(group.rank)])
    group.broadcast_(first)
    return total.tolist(), largest.tolist(), first.tolist()


def test_every_rank_gets_the_values_of_all(ranks):
    for _ in range(3):
        assert ranks(3, _gathered, 10.0) == [[[10.0, 2.0], [11.0, 2.0], [12.0, 2.0]]] * 3


def test_objects_go_to_all_or_to_the_first_or_one_to_each(ranks):
    everything = [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert ranks(3, _objects) == [
        (everything, [0, 2, 4], "first", "a"),
        (everything, None, "first", "b"),
        (everything, None, "first", "c"),
    ]


def test_tensors_are_summed_compared_and_copied(ranks):
    assert ranks(3, _tensors) == [([3.0, 3.0], [2, 0], [0.0])] * 3


def test_one_rank_alone_gets_back_what_it_gives():
    group = LocalGroup()
    assert group.gather([1, 2]) == [[1.0, 2.0]]
    assert _objects_of_one(group) == ([5], [5], 5, 5)
    tensor = torch.tensor([3.0])
    pending = group.all_reduce_later(tensor)
    assert pending.done()
    assert pending.wait() is tensor


def _objects_of_one(group):
    return (
        group.gather_objects(5),
        group.gather_objects_to_first(5),
        group.broadcast_object(5),
        group.scatter_objects([5]),
    )


def test_an_exchange_under_way_is_not_done_before_the_last_rank_is_there(ranks):
    assert ranks(2, _started_alone) == [(False, [[0.0], [1.0]]), (None, [[0.0], [1.0]])]


def _started_alone(group):
    if group.rank == 1:
        group.store.wait(["asked"])
        return None, group.gather([1.0])
    pending = group.gather_later([0.0])
    asked = pending.done()
    group.store.set("asked", "yes")
    return asked, pending.wait()


def _raises_on_the_last(group):
    if group.rank == group.world_size - 1:
        raise KeyError("lost")
    group.barrier()


def _killed(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def _hangs(group):
    if group.rank == 1:
        threading.Event().wait()


def test_the_ranks_of_the_tests_carry_the_traceback_of_the_first_failure(ranks):
    with pytest.raises(RankError, match=r"(?s)rank 1 of 2.*_raises_on_the_last.*KeyError: 'lost'"):
        ranks(2, _raises_on_the_last)
    assert ranks(2, _gathered, 0.0) == [[[0.0, 2.0], [1.0, 2.0]]] * 2


def test_the_ranks_of_the_tests_are_replaced_when_one_is_killed(ranks):
    with pytest.raises(RankError, match="rank 1 of 2: was ended by SIGKILL"):
        ranks(2, _killed, sync_timeout=5)
    assert len(ranks(3, _gathered, 0.0)) == 3


def test_the_ranks_of_the_tests_are_killed_when_they_take_too_long(ranks):
    with pytest.raises(RankError, match=r"rank\(s\) \[.*1\] did not end within 1 s"):
        ranks(2, _hangs, limit=1.0)
    assert len(ranks(2, _gathered, 0.0)) == 2


def test_of_ranks_that_take_too_long_those_that_have_ended_are_not_named():
    ends = [Pipe() for _ in range(3)]
    for answered in (0, 2):
        ends[answered][1].send_bytes(pickle.dumps((True, "done")))
    team = [SimpleNamespace(answers=ours) for ours, _ in ends]
    with pytest.raises(RankError, match=r"^rank\(s\) \[1\] did not end within 0 s$"):
        _results(team, 0.0)
