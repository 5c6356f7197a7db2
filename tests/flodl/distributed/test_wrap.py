"""Exchanges by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flodl.ranks.group import Group, LocalGroup
from flodl.train.plain_loop.shared_loop import Ddp
from tests.flodl.distributed.ranks import Ranks


def exchanged(group: Group) -> dict[str, Any]:
    torch.manual_seed(group.rank)
    first, second = nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1)
    ddp = Ddp.wrap(first, second, group=group)
    ddp.sync_params()
    found: dict[str, Any] = {
        "weight": first.weight.detach().clone(),
        "who": (ddp.rank, ddp.world_size, str(ddp.device), ddp.devices),
    }
    rank = float(group.rank)
    first.weight.grad = torch.full((1, 2), rank)
    if group.rank:
        second.weight.grad = torch.ones(1)  # on the others it counts as zeros
    ddp.all_reduce_gradients()
    found["mean"] = first.weight.grad.tolist()
    found["missing"] = (second.weight.grad, second.bias.grad)

    first.weight.grad = torch.full((1, 2), rank)
    ddp.weighted_all_reduce_gradients([3, 1, 0])
    found["weighted"] = first.weight.grad.tolist()
    first.weight.grad = torch.full((1, 2), rank)
    ddp.weighted_all_reduce_gradients((3, 1, 0)[group.rank])
    found["own count"] = first.weight.grad.tolist()

    assert second.running_mean is not None
    assert second.num_batches_tracked is not None
    second.running_mean.fill_(rank)
    second.num_batches_tracked.fill_(group.rank)
    ddp.sync_buffers()
    found["buffers"] = (second.running_mean.item(), second.num_batches_tracked.item())
    second.running_mean.fill_(float("nan") if group.rank == 2 else rank)
    ddp.sync_buffers([3, 1, 0])
    found["weighted buffers"] = second.running_mean.item()
    return found


def test_parameters_gradients_and_buffers_are_exchanged_when_told(ranks: Ranks) -> None:
    torch.manual_seed(0)
    weight = nn.Linear(2, 1, bias=False).weight
    for rank, found in enumerate(ranks(3, exchanged)):
        assert torch.equal(found["weight"], weight)
        assert found["who"] == (rank, 3, "cpu", ("cpu", "cpu", "cpu"))
        assert found["mean"] == [[1.0, 1.0]]
        scale, bias = found["missing"]
        assert scale.item() == pytest.approx(2 / 3)
        assert bias is None
        assert found["weighted"] == found["own count"] == [[0.25, 0.25]]
        assert found["buffers"] == (pytest.approx(1.0), 2)
        assert found["weighted buffers"] == pytest.approx(0.25)


def test_counts_have_to_fit_the_ranks() -> None:
    ddp = Ddp.wrap(nn.Linear(1, 1), group=LocalGroup())
    with pytest.raises(ValueError, match=r"counts=\[3, 1\] for 1 ranks: give one per rank"):
        ddp.weighted_all_reduce_gradients([3, 1])
    with pytest.raises(ValueError, match=r"Ddp\.wrap needs a module"):
        Ddp.wrap()


def nothing_counts(group: Group) -> str:
    with pytest.raises(ValueError, match="every rank counts 0") as caught:
        Ddp.wrap(nn.BatchNorm1d(1), group=group).sync_buffers(0)
    return str(caught.value)


def test_an_average_of_nothing_is_refused(ranks: Ranks) -> None:
    assert len(set(ranks(2, nothing_counts))) == 1


def test_in_one_process_exchanges_do_nothing() -> None:
    model = nn.Linear(2, 1)
    ddp = Ddp.wrap(model, group=LocalGroup())
    model.weight.grad = torch.ones(1, 2)
    ddp.sync_params()
    ddp.all_reduce_gradients()
    ddp.sync_buffers()
    assert torch.equal(model.weight.grad, torch.ones(1, 2))
    assert not torch.distributed.is_initialized()
