"""Ranks of one host add large tensors in memory that all of them map."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl.ranks.averaging import backends, buckets
from flodl.ranks.averaging.average import ParameterAverager
from flodl.ranks.averaging.buckets import SharedSum, share_rows
from flodl.ranks.settings import Backend


def _added(group, length):
    (sums, maxima) = found = share_rows(group, [length, 3], [torch.float32, torch.int64])
    given = torch.arange(length) * (group.rank + 1.0)
    sums.own.copy_(given)
    maxima.own.copy_(torch.tensor([group.rank, -group.rank, 5]))
    SharedSum(group, found, [False, True]).wait()
    again = sums.own.clone()
    sums.own.fill_(1.0)
    SharedSum(group, [sums], [False]).wait()
    return again, maxima.own.clone(), sums.own.unique().tolist()


@pytest.mark.parametrize("length", [1, 129, 70_001])
def test_rows_are_added_and_compared_by_all_ranks(ranks, length):
    for sums, maxima, again in ranks(3, _added, length):
        assert torch.equal(sums, torch.arange(length) * 6.0)
        assert maxima.tolist() == [2, 0, 5]
        assert again == [3.0]
    assert not list(Path("/dev/shm").glob("flodl*")), "the memory has no name"


def _large(rank):
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(600, 600), nn.BatchNorm1d(600))


def _averaged(group, backend):
    """What an average makes of a model, through shared memory and through Gloo."""
    results = []
    for least in (0, 2**60):
        with pytest.MonkeyPatch.context() as patch:  # the process of a rank goes on to other tests
            patch.setattr(backends, "_WORTH_SHARING", least)
            model = _large(group.rank)
            averager = ParameterAverager(model, group, backend)
            divergences = [averager.average(16 + group.rank).divergence for _ in range(2)]
        results.append((averager.wire, copy.deepcopy(model.state_dict()), divergences))
    (wire, mine, one), (other_wire, theirs, other) = results
    inner, other_inner = (getattr(each, "_inner", each) for each in (wire, other_wire))
    assert inner._shared is not None
    assert other_inner._shared is None
    assert one == other
    return all(torch.equal(value, theirs[name]) for name, value in mine.items())


@pytest.mark.parametrize("backend", list(Backend))
def test_an_average_of_two_ranks_is_that_of_gloo_to_the_bit(ranks, backend):
    assert ranks(2, _averaged, backend) == [True, True]


def _refused_on_one(group, refusing):
    model = _large(group.rank)
    averager = ParameterAverager(model, group, Backend.NCCL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "_WORTH_SHARING", 0)
        if group.rank == refusing:
            patch.setattr(buckets, "_map", lambda *_: None)
        assert share_rows(group, [300], [torch.float32]) is None
        averager.average(1)
    assert averager.wire._shared is None
    return float(model[0].weight.detach().double().sum())


@pytest.mark.parametrize("refusing", [0, 1])
def test_ranks_that_cannot_map_the_same_memory_send_their_values(ranks, refusing):
    one, other = ranks(2, _refused_on_one, refusing)
    expected = sum(float(_large(rank)[0].weight.detach().double().sum()) for rank in (0, 1)) / 2
    assert one == other == pytest.approx(expected, abs=1e-4)


def test_memory_that_cannot_be_had_is_refused_and_leaves_no_file_open(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(buckets.os, "posix_fallocate", full)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert buckets._anonymous_file(64, b"x" * 32) == -1
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_memory_of_another_process_is_recognised_by_its_token(tmp_path):
    file = tmp_path / "memory"
    file.write_bytes(b"\0" * 64 + b"t" * 32)
    assert buckets._map(str(file), 96, b"u" * 32) is None
    assert buckets._map(str(file), 95, b"t" * 32) is None
    assert buckets._map(str(tmp_path / "none"), 96, b"t" * 32) is None
    memory = buckets._map(str(file), 96, b"t" * 32)
    assert memory is not None
    memory.close()
